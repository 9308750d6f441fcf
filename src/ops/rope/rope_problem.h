// The checked problem of rope and its backward, and the sine and cosine of a whole number of turns.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "core/host_device.h"
#include "touchstone/core/context.h"
#include "touchstone/core/dtype.h"

namespace touchstone::rope_op {

// The backward is the forward with `inverse`.
struct Problem {
  DType dtype = DType::f32;
  const void* x = nullptr;
  void* y = nullptr;
  const std::int64_t* positions = nullptr;
  const double* frequencies = nullptr;
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  std::int64_t dim = 0;
  std::int64_t pairs = 0;  // R / 2
  // Elements from token to token and from head to head.
  std::int64_t x_token = 0, x_head = 0;
  std::int64_t y_token = 0, y_head = 0;
  bool adjacent = false;
  bool inverse = false;
  double scale = 1;

  TOUCHSTONE_HOST_DEVICE bool in_place() const { return x == y; }
  // Of pair i.
  TOUCHSTONE_HOST_DEVICE std::int64_t first(std::int64_t i) const { return adjacent ? 2 * i : i; }
  TOUCHSTONE_HOST_DEVICE std::int64_t second(std::int64_t i) const {
    return adjacent ? 2 * i + 1 : i + pairs;
  }
};

inline constexpr double kTurnsPerRadian = 0.15915494309189533576888;

// a * b + c: one rounding on a GPU and two on a CPU, in every kernel of each, so that a token has the
// same bits in every kernel.
TOUCHSTONE_HOST_DEVICE inline float mul_add(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(a, b, c);
#else
  return a * b + c;
#endif
}

// The part of an angle beyond whole turns, in turns of [-1/2, 1/2].
TOUCHSTONE_HOST_DEVICE inline float turns_of(std::int64_t position, double frequency) {
  const double per_position = frequency * kTurnsPerRadian;
#ifdef __CUDA_ARCH__
  const double turns = __dmul_rn(static_cast<double>(position), per_position);
#else
  const double turns = static_cast<double>(position) * per_position;
#endif
  return static_cast<float>(turns - rint(turns));
}

struct SinCos {
  float sin;
  float cos;
};

// Of f turns, |f| <= 1/2. Reduced to an eighth of a turn, which is exact, then polynomials of the angle
// with errors below 2^-26. NaN for NaN.
TOUCHSTONE_HOST_DEVICE inline SinCos sin_cos_turns(float f) {
  const float quarters = rintf(4 * f);
  const float a = mul_add(-0.25F, quarters, f) * 6.28318530717958648F;
  const float a2 = a * a;
  float s = mul_add(a2, -1.95152959e-4F, 8.33216087e-3F);
  s = mul_add(a2, s, -1.66666546e-1F);
  s = mul_add(a2 * s, a, a);
  float c = mul_add(a2, 2.44331571e-5F, -1.38873162e-3F);
  c = mul_add(a2, c, 4.16666456e-2F);
  c = mul_add(a2, c, -0.5F);
  c = mul_add(a2, c, 1.0F);
  switch (static_cast<int>(quarters) & 3) {
    case 0:
      return {s, c};
    case 1:
      return {c, -s};
    case 2:
      return {-s, -c};
    default:
      return {-c, s};
  }
}

// CPU, plain loops in f64: rope_plain.cc.
void rope_plain(Context& context, const Problem& p);
// CPU, Highway, every SIMD target: rope_cpu.cc.
void rope_simd(Context& context, const Problem& p);
// CUDA: rope_cuda.cu, or src/no_cuda in a CPU-only build. `vectorized`: 16-byte accesses.
std::string rope_vectorized_refuses(const Context& context, const Problem& p);
void rope_vectorized(Context& context, const Problem& p);
void rope_portable(Context& context, const Problem& p);

}  // namespace touchstone::rope_op
