// The functions behind the list of weight formats (core/weight_format.h), and the layout of blocks.
//
// Decoding does not depend on whether products and sums are fused: a scale of f16 has 11
// significant bits, the scale of a sub-block 6 (signed 8 in q6_k) and a code at most 5, so that
// scale * code is exact in f32 and only the last sum rounds; q6_k rounds its one product.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "touchstone/core/half.h"

namespace touchstone::inline v0::weights {

inline constexpr int kBlock = 32;       // values in a block of q8_0, q4_0, q4_1, q5_0, q5_1
inline constexpr int kSuper = 256;      // values in a block of q4_k, q5_k, q6_k
inline constexpr int kScaleBytes = 12;  // eight 6-bit scales and eight 6-bit minima

inline float load_f16(const std::byte* p) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, p, 2);
  return static_cast<float>(F16::from_bits(bits));
}

// Scale and minimum of sub-block i of q4_k and q5_k. The first four lie in the low six bits of
// bytes 0-3 and 4-7; of the others four bits each lie in bytes 8-11 and the upper two above the
// first four.
struct ScaleMin {
  std::uint8_t scale;
  std::uint8_t min;
};
inline ScaleMin unpack_scale_min(const std::uint8_t* packed, int i) {
  if (i < 4) {
    return {static_cast<std::uint8_t>(packed[i] & 63),
            static_cast<std::uint8_t>(packed[i + 4] & 63)};
  }
  const std::uint8_t low = packed[i + 4];
  return {static_cast<std::uint8_t>((low & 15) | ((packed[i - 4] >> 2) & 48)),
          static_cast<std::uint8_t>((low >> 4) | ((packed[i] >> 2) & 48))};
}

// Named as the formats. n blocks each.
void decode_f64(const std::byte* from, std::int64_t n, float* to);
void decode_f32(const std::byte* from, std::int64_t n, float* to);
void decode_bf16(const std::byte* from, std::int64_t n, float* to);
void decode_f16(const std::byte* from, std::int64_t n, float* to);
void decode_fp8_e4m3(const std::byte* from, std::int64_t n, float* to);
void decode_int8_g32(const std::byte* from, std::int64_t n, float* to);
void decode_int8_g64(const std::byte* from, std::int64_t n, float* to);
void decode_int8_g128(const std::byte* from, std::int64_t n, float* to);
void decode_int4_g32(const std::byte* from, std::int64_t n, float* to);
void decode_int4_g64(const std::byte* from, std::int64_t n, float* to);
void decode_int4_g128(const std::byte* from, std::int64_t n, float* to);
void decode_q8_0(const std::byte* from, std::int64_t n, float* to);
void decode_q4_0(const std::byte* from, std::int64_t n, float* to);
void decode_q4_1(const std::byte* from, std::int64_t n, float* to);
void decode_q5_0(const std::byte* from, std::int64_t n, float* to);
void decode_q5_1(const std::byte* from, std::int64_t n, float* to);
void decode_q4_k(const std::byte* from, std::int64_t n, float* to);
void decode_q5_k(const std::byte* from, std::int64_t n, float* to);
void decode_q6_k(const std::byte* from, std::int64_t n, float* to);

void encode_f64(const float* from, std::int64_t n, std::byte* to);
void encode_f32(const float* from, std::int64_t n, std::byte* to);
void encode_bf16(const float* from, std::int64_t n, std::byte* to);
void encode_f16(const float* from, std::int64_t n, std::byte* to);
void encode_int8_g32(const float* from, std::int64_t n, std::byte* to);
void encode_int8_g64(const float* from, std::int64_t n, std::byte* to);
void encode_int8_g128(const float* from, std::int64_t n, std::byte* to);
void encode_int4_g32(const float* from, std::int64_t n, std::byte* to);
void encode_int4_g64(const float* from, std::int64_t n, std::byte* to);
void encode_int4_g128(const float* from, std::int64_t n, std::byte* to);
void encode_q8_0(const float* from, std::int64_t n, std::byte* to);
void encode_q4_0(const float* from, std::int64_t n, std::byte* to);
void encode_q4_1(const float* from, std::int64_t n, std::byte* to);
void encode_q5_0(const float* from, std::int64_t n, std::byte* to);
void encode_q5_1(const float* from, std::int64_t n, std::byte* to);
void encode_q4_k(const float* from, std::int64_t n, std::byte* to);
void encode_q5_k(const float* from, std::int64_t n, std::byte* to);
void encode_q6_k(const float* from, std::int64_t n, std::byte* to);

}  // namespace touchstone::inline v0::weights
