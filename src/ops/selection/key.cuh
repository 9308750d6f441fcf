// Keys: one integer per token whose unsigned order is the output order (value descending, token
// ascending), and the scalar helpers that every selection kernel uses.
#pragma once

#include <cstdint>
#include <numbers>

#include "cuda/vector.cuh"

namespace touchstone::selection {

inline constexpr double kLn2 = std::numbers::ln2;
inline constexpr double kLog2E = std::numbers::log2e;

__device__ inline float infinity() { return __int_as_float(0x7f800000); }
__device__ inline float not_a_number() { return __int_as_float(0x7fffffff); }

// Order-preserving map of f32 to u32; -0 and +0 map to one word. Undefined for NaN.
__device__ inline std::uint32_t ordered(float value) {
  const std::uint32_t bits = __float_as_uint(value + 0.0F);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
__device__ inline float unordered(std::uint32_t word) {
  return __uint_as_float((word & 0x80000000U) != 0 ? word & 0x7fffffffU : ~word);
}

// The ordered word of the value above the complement of the token. Larger keys come first; no key
// is 0.
using Key = unsigned long long;
__device__ inline Key key_of(float value, std::uint32_t token) {
  return static_cast<Key>(ordered(value)) << 32 | static_cast<std::uint32_t>(~token);
}
__device__ inline float value_of(Key key) {
  return unordered(static_cast<std::uint32_t>(key >> 32));
}
__device__ inline std::uint32_t token_of(Key key) { return ~static_cast<std::uint32_t>(key); }

__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// NaN if either operand is NaN.
__device__ inline float max_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

// Maximum over the lanes of a warp. Undefined for NaN.
__device__ inline float warp_max(float value) {
  const auto flipped = [](int bits) { return bits ^ (bits >> 31 & 0x7fffffff); };
  return __int_as_float(flipped(__reduce_max_sync(~0U, flipped(__float_as_int(value)))));
}

}  // namespace touchstone::selection
