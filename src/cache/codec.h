// The storage formats of the cache, to the bit. Every kernel that writes or reads a page must agree
// with the functions here; the slow, plain encode() and decode() are what the fast ones are tested
// against.
//
// A quantized vector is cut into groups that share a scale. With s the scale and m the minimum as
// they are stored, and nearest() rounding halves to even:
//
//   symmetric     s = largest |x| / kTop          q = nearest(x * (1 / s)) in [-kTop, kTop]
//                 decoded: q * s                  kTop = 127 for int8, 7 for int4
//   asymmetric    m = least x                     q = nearest((x - m) * (1 / s)) in [0, kTop]
//                 s = (largest x - m) / kTop      kTop = 255 for int8, 15 for int4
//                 decoded: m + q * s
//   fp8_e4m3      s = largest |x| / 448           q = nearest e4m3 of x * (1 / s), at most 448
//
// - s is rounded up and m down, so that no value of the group lies outside what its codes reach.
//   s in f32 keeps 16 significant bits: q * s is then exact in float for every format, and a
//   decoded value is rounded once at most, with fused multiply-add or without.
// - int8 symmetric is stored as a signed byte, int4 symmetric as q + 8, asymmetric codes as they
//   are. int4: the value of even index is in the low half of its byte.
// - A group of zeros has s = 0 (asymmetric: any group of one value that the scale type holds).
//   Otherwise s is at least the least f16 above zero, or 2^-126 in f32: what is much smaller reads
//   as 0 (or m).
// - Magnitudes above kLargestMagnitude count as that; f16 holds s and |m| up to 65504 and what lies
//   beyond the range of its codes becomes the nearest end of the range.
// - A group with a NaN or an infinity is stored as s = NaN (and m = NaN) with codes of zero: all of
//   it reads as NaN, and nothing outside of it.
//
// f32, bf16 and f16 store each value by itself, rounded as half.h says: f16 turns what is too large
// into infinity. A NaN becomes the quiet NaN without sign and payload.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/host_device.h"
#include "touchstone/cache/layout.h"
#include "touchstone/core/half.h"

namespace touchstone::inline v0::cache {

inline constexpr float kLargestMagnitude = 0x1p126F;
inline constexpr float kLargestFp8 = 448.0F;
inline constexpr std::uint32_t kInfinityBits = 0x7f800000;
inline constexpr std::uint32_t kNanBits = 0x7fc00000;

// Half to even; |x| at most 2^30.
TOUCHSTONE_HOST_DEVICE inline std::int32_t nearest(float x) {
#ifdef __CUDA_ARCH__
  return __float2int_rn(x);
#else
  return static_cast<std::int32_t>(std::lrint(x));
#endif
}

// The value, or the one NaN that is ever stored.
TOUCHSTONE_HOST_DEVICE inline float with_quiet_nan(float x) {
  return x == x ? x : std::bit_cast<float>(kNanBits);
}

TOUCHSTONE_HOST_DEVICE inline float clamped(float x, float least, float most) {
  return x < least ? least : (x > most ? most : x);
}

// ---- e4m3 (OCP): 4 exponent bits with bias 7, 3 mantissa bits, no infinities -----------------

TOUCHSTONE_HOST_DEVICE inline float decode_fp8_e4m3(std::uint8_t code) {
  const std::uint32_t sign = std::uint32_t{code & 0x80U} << 24;
  const std::uint32_t magnitude = code & 0x7fU;
  if (magnitude == 0x7f) return std::bit_cast<float>(sign | kNanBits);
  if (magnitude < 8) {  // a subnormal is an integer times 2^-9
    const float value = static_cast<float>(magnitude) * 0x1p-9F;
    return sign != 0 ? -value : value;
  }
  return std::bit_cast<float>(sign | ((magnitude << 20) + ((127U - 7U) << 23)));
}

// The nearest value, ties to the even code; beyond 448, infinity included, 448. NaN gives 0x7f.
TOUCHSTONE_HOST_DEVICE inline std::uint8_t encode_fp8_e4m3(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  const std::uint32_t sign = (bits >> 24) & 0x80U;
  std::uint32_t code = 0;
  if (magnitude > kInfinityBits) {
    code = 0x7f;
  } else if (magnitude < 0x3c800000) {  // below 2^-6
    code = static_cast<std::uint32_t>(nearest(std::bit_cast<float>(magnitude) * 0x1p9F));
  } else {
    // A carry out of the mantissa moves into the exponent, which is what rounding up means.
    const std::uint32_t rounded = magnitude + 0x7ffffU + ((magnitude >> 20) & 1U);
    code = (rounded >> 20) - ((127U - 7U) << 3);
    if (code > 0x7e) code = 0x7e;
  }
  return static_cast<std::uint8_t>(sign | code);
}

// ---- scales and minima -------------------------------------------------------------------------

// The f16 next to a finite magnitude (no sign): not below it, or not above it. At most 65504.
TOUCHSTONE_HOST_DEVICE inline std::uint16_t f16_magnitude(float x, bool up) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if (bits >= 0x477fe000) return 0x7bff;  // 65504 and more
  if (bits < 0x38800000) {                // below 2^-14: an integer times 2^-24
    const float units = x * 0x1p24F;
    const auto whole = static_cast<std::uint16_t>(units);
    return static_cast<std::uint16_t>(whole + (up && static_cast<float>(whole) < units ? 1 : 0));
  }
  const std::uint32_t half = (bits + (up ? 0x1fffU : 0U)) >> 13;
  return static_cast<std::uint16_t>(half - ((127U - 15U) << 10));
}

// A positive number as a scale: rounded up to what the type holds. See above for the ends.
TOUCHSTONE_HOST_DEVICE inline float round_scale(float x, DType type) {
  if (type == DType::f16) return static_cast<float>(F16::from_bits(f16_magnitude(x, true)));
  if (x < 0x1p-126F) return 0x1p-126F;
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(x) + 0xffU) & ~0xffU);
}

// A finite number as a minimum: rounded down to what the type holds.
TOUCHSTONE_HOST_DEVICE inline float round_minimum(float x, DType type) {
  if (type != DType::f16) return x;
  const bool negative = x < 0;
  const float magnitude =
      static_cast<float>(F16::from_bits(f16_magnitude(negative ? -x : x, negative)));
  return negative ? -magnitude : magnitude;
}

// Scale and minimum of one group, exactly as stored. Symmetric formats have no minimum.
struct GroupScale {
  float scale = 0;
  float minimum = 0;
};

// The largest magnitude of a code: what a scale is a fraction of.
TOUCHSTONE_HOST_DEVICE inline float top_code(const QuantFormat& format) {
  if (format.dtype == DType::i8) return format.asymmetric ? 255.0F : 127.0F;
  if (format.dtype == DType::i4) return format.asymmetric ? 15.0F : 7.0F;
  return kLargestFp8;
}

// The statistics of a group that encoding needs. Maxima and minima do not depend on the order of a
// reduction, so every kernel may reduce in its own.
struct GroupExtremes {
  std::uint32_t magnitude_bits = 0;  // largest |x|, as bits: a NaN or infinity is above all numbers
  float least = 0;                   // used by asymmetric formats only
  float most = 0;
};

TOUCHSTONE_HOST_DEVICE inline GroupExtremes extremes_of(const float* x, std::int64_t count) {
  GroupExtremes result{0, x[0], x[0]};
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffffU;
    if (bits > result.magnitude_bits) result.magnitude_bits = bits;
    if (x[i] < result.least) result.least = x[i];
    if (x[i] > result.most) result.most = x[i];
  }
  return result;
}

TOUCHSTONE_HOST_DEVICE inline GroupScale scale_of(const QuantFormat& format,
                                                  const GroupExtremes& of) {
  if (of.magnitude_bits >= kInfinityBits) {
    const float nan = std::bit_cast<float>(kNanBits);
    return {nan, format.asymmetric ? nan : 0.0F};
  }
  GroupScale result;
  float range = clamped(std::bit_cast<float>(of.magnitude_bits), 0, kLargestMagnitude);
  if (format.asymmetric) {
    const float least = clamped(of.least, -kLargestMagnitude, kLargestMagnitude);
    result.minimum = round_minimum(least + 0.0F, format.scale_dtype);  // -0 becomes 0
    range = clamped(of.most, -kLargestMagnitude, kLargestMagnitude) - result.minimum;
  }
  if (range > 0) result.scale = round_scale(range / top_code(format), format.scale_dtype);
  return result;
}

// Values of a group that share a scale.
TOUCHSTONE_HOST_DEVICE inline std::int64_t group_length(const QuantFormat& format,
                                                        std::int64_t dim) {
  return format.group_size == 0 ? dim : format.group_size;
}

// The f16 bits of a value that f16 holds, or of the NaN of scale_of.
TOUCHSTONE_HOST_DEVICE inline std::uint16_t exact_f16_bits(float x) {
  if (x != x) return 0x7e00;
  const std::uint16_t magnitude = f16_magnitude(x < 0 ? -x : x, false);
  return static_cast<std::uint16_t>(magnitude | (x < 0 ? 0x8000U : 0U));
}

// `scales` is where the scales of a vector begin.
TOUCHSTONE_HOST_DEVICE inline void store_scale(const QuantFormat& format, std::byte* scales,
                                               std::int64_t group, GroupScale scale) {
  const std::int64_t at = format.asymmetric ? 2 * group : group;
  if (format.scale_dtype == DType::f16) {
    auto* to = reinterpret_cast<std::uint16_t*>(scales) + at;
    to[0] = exact_f16_bits(scale.scale);
    if (format.asymmetric) to[1] = exact_f16_bits(scale.minimum);
  } else {
    auto* to = reinterpret_cast<float*>(scales) + at;
    to[0] = scale.scale;
    if (format.asymmetric) to[1] = scale.minimum;
  }
}

TOUCHSTONE_HOST_DEVICE inline GroupScale load_scale(const QuantFormat& format,
                                                    const std::byte* scales, std::int64_t group) {
  const std::int64_t at = format.asymmetric ? 2 * group : group;
  GroupScale result;
  if (format.scale_dtype == DType::f16) {
    const auto* from = reinterpret_cast<const std::uint16_t*>(scales) + at;
    result.scale = static_cast<float>(F16::from_bits(from[0]));
    if (format.asymmetric) result.minimum = static_cast<float>(F16::from_bits(from[1]));
  } else {
    const auto* from = reinterpret_cast<const float*>(scales) + at;
    result.scale = from[0];
    if (format.asymmetric) result.minimum = from[1];
  }
  return result;
}

// ---- single values -----------------------------------------------------------------------------

// A group's scale ready to encode with.
struct Quantizer {
  float reciprocal = 0;  // 0 where every code is zero
  float minimum = 0;
};

TOUCHSTONE_HOST_DEVICE inline Quantizer quantizer_of(GroupScale scale) {
  // False for NaN too: such a group is all zeros.
  return scale.scale > 0 ? Quantizer{1.0F / scale.scale, scale.minimum} : Quantizer{};
}

// The code of one value, in the low bits: 8 of them, or 4 for int4.
TOUCHSTONE_HOST_DEVICE inline std::uint8_t encode_value(const QuantFormat& format, Quantizer with,
                                                        float x) {
  float scaled = 0;
  if (with.reciprocal > 0) scaled = (x - with.minimum) * with.reciprocal;
  if (format.dtype == DType::f8_e4m3) return encode_fp8_e4m3(scaled);
  const float top = top_code(format);
  const std::int32_t code = nearest(clamped(scaled, format.asymmetric ? 0 : -top, top));
  const bool offset = format.dtype == DType::i4 && !format.asymmetric;
  return static_cast<std::uint8_t>(offset ? code + 8 : code);
}

TOUCHSTONE_HOST_DEVICE inline float decode_value(const QuantFormat& format, GroupScale with,
                                                 std::uint8_t code) {
  if (format.dtype == DType::f8_e4m3) return decode_fp8_e4m3(code) * with.scale;
  if (format.asymmetric) return with.minimum + static_cast<float>(code) * with.scale;
  const std::int32_t q = format.dtype == DType::i4 ? code - 8 : static_cast<std::int8_t>(code);
  return static_cast<float>(q) * with.scale;
}

// The code of value i of a vector.
TOUCHSTONE_HOST_DEVICE inline std::uint8_t load_code(const QuantFormat& format,
                                                     const std::byte* values, std::int64_t i) {
  if (format.dtype != DType::i4) return static_cast<std::uint8_t>(values[i]);
  return static_cast<std::uint8_t>((static_cast<unsigned>(values[i / 2]) >> (i % 2 * 4)) & 0xfU);
}

// ---- vectors -----------------------------------------------------------------------------------

// Stores `dim` values: value_bytes(format, dim) bytes at `values`, scale_bytes(format, dim) at
// `scales`, both aligned to their element.
TOUCHSTONE_HOST_DEVICE inline void encode(const QuantFormat& format, std::int64_t dim,
                                          const float* x, std::byte* values, std::byte* scales) {
  if (!is_quantized(format.dtype)) {
    for (std::int64_t i = 0; i < dim; ++i) {
      const float value = with_quiet_nan(x[i]);
      if (format.dtype == DType::f32) reinterpret_cast<float*>(values)[i] = value;
      if (format.dtype == DType::bf16) reinterpret_cast<Bf16*>(values)[i] = Bf16(value);
      if (format.dtype == DType::f16) reinterpret_cast<F16*>(values)[i] = F16(value);
    }
    return;
  }
  const std::int64_t length = group_length(format, dim);
  for (std::int64_t group = 0; group < dim / length; ++group) {
    const std::int64_t first = group * length;
    const GroupScale scale = scale_of(format, extremes_of(x + first, length));
    store_scale(format, scales, group, scale);
    const Quantizer with = quantizer_of(scale);
    for (std::int64_t i = first; i < first + length; ++i) {
      const std::uint8_t code = encode_value(format, with, x[i]);
      if (format.dtype != DType::i4) {
        values[i] = std::byte{code};
      } else if (i % 2 == 0) {
        values[i / 2] = std::byte{code};
      } else {
        values[i / 2] |= std::byte{code} << 4;
      }
    }
  }
}

// The inverse, as far as the format allows.
TOUCHSTONE_HOST_DEVICE inline void decode(const QuantFormat& format, std::int64_t dim,
                                          const std::byte* values, const std::byte* scales,
                                          float* x) {
  if (!is_quantized(format.dtype)) {
    for (std::int64_t i = 0; i < dim; ++i) {
      if (format.dtype == DType::f32) x[i] = reinterpret_cast<const float*>(values)[i];
      if (format.dtype == DType::bf16) {
        x[i] = static_cast<float>(reinterpret_cast<const Bf16*>(values)[i]);
      }
      if (format.dtype == DType::f16) {
        x[i] = static_cast<float>(reinterpret_cast<const F16*>(values)[i]);
      }
    }
    return;
  }
  const std::int64_t length = group_length(format, dim);
  for (std::int64_t i = 0; i < dim; ++i) {
    x[i] =
        decode_value(format, load_scale(format, scales, i / length), load_code(format, values, i));
  }
}

}  // namespace touchstone::inline v0::cache
