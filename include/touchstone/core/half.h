// The two 16-bit floating point types. Conversions are exact: widening loses nothing, narrowing
// rounds once, to nearest even, from float and from double alike. NaN stays NaN (quiet, its sign
// and the payload bits that fit are kept), overflow becomes infinity, subnormals are honored.
#pragma once

#include <bit>
#include <cstdint>

#include "touchstone/core/language.h"  // IWYU pragma: keep: before everything that needs C++20

namespace touchstone::inline v0 {

namespace detail {

// Rounds a double to a binary format of 1 sign bit, `exponent_bits` and `mantissa_bits`, in one
// step. Working from the 53-bit significand avoids the double rounding of double -> float -> half.
constexpr std::uint16_t narrow(double value, int exponent_bits, int mantissa_bits) {
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 63) << 15);
  const int biased = static_cast<int>((bits >> 52) & 0x7ff);
  const std::uint64_t fraction = bits & 0xfffffffffffffULL;
  const int max_exponent = (1 << exponent_bits) - 1;
  const auto infinity = static_cast<std::uint16_t>(max_exponent << mantissa_bits);
  if (biased == 0x7ff) {
    if (fraction == 0) return static_cast<std::uint16_t>(sign | infinity);
    const auto quiet = static_cast<std::uint16_t>(1U << (mantissa_bits - 1));
    const auto payload = static_cast<std::uint16_t>(fraction >> (52 - mantissa_bits));
    return static_cast<std::uint16_t>(sign | infinity | quiet | payload);
  }
  // The doubles this drops are below 2^-1022: zero in either format.
  if (biased == 0) return sign;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  int exponent = biased - 1023 + bias;
  std::uint64_t significand = fraction | (1ULL << 52);
  int shift = 52 - mantissa_bits;
  if (exponent <= 0) {  // lands among the subnormals: the leading one becomes an ordinary bit
    shift += 1 - exponent;
    exponent = 0;
    if (shift > 54) return sign;
  } else {
    significand &= ~(1ULL << 52);
  }
  std::uint64_t rounded = significand >> shift;
  const std::uint64_t rest = significand & ((1ULL << shift) - 1);
  const std::uint64_t half = 1ULL << (shift - 1);
  if (rest > half || (rest == half && (rounded & 1) != 0)) ++rounded;
  // A carry out of the mantissa moves into the exponent, which is exactly what rounding up means.
  const std::uint64_t magnitude = (static_cast<std::uint64_t>(exponent) << mantissa_bits) + rounded;
  if (magnitude >= infinity) return static_cast<std::uint16_t>(sign | infinity);
  return static_cast<std::uint16_t>(sign | magnitude);
}

}  // namespace detail

// IEEE binary16: 5 exponent bits, 10 mantissa bits.
struct F16 {
  std::uint16_t bits = 0;

  F16() = default;
  constexpr explicit F16(double value) : bits(detail::narrow(value, 5, 10)) {}
  constexpr explicit F16(float value) : F16(static_cast<double>(value)) {}

  static constexpr F16 from_bits(std::uint16_t bits) {
    F16 result{};
    result.bits = bits;
    return result;
  }

  constexpr explicit operator float() const {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits >> 15) << 31;
    const std::uint32_t exponent = (bits >> 10) & 0x1f;
    const std::uint32_t fraction = bits & 0x3ff;
    if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000U | (fraction << 13));
    if (exponent != 0) {
      return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
    }
    // Subnormal: fraction * 2^-24 is exact in float.
    const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
    return sign != 0 ? -magnitude : magnitude;
  }
  constexpr explicit operator double() const {
    return static_cast<double>(static_cast<float>(*this));
  }
};

// bfloat16: the upper half of a float. 8 exponent bits, 7 mantissa bits.
struct Bf16 {
  std::uint16_t bits = 0;

  Bf16() = default;
  constexpr explicit Bf16(double value) : bits(narrow_double(value)) {}
  constexpr explicit Bf16(float value) : bits(narrow_float(value)) {}

  static constexpr Bf16 from_bits(std::uint16_t bits) {
    Bf16 result{};
    result.bits = bits;
    return result;
  }

  constexpr explicit operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
  constexpr explicit operator double() const {
    return static_cast<double>(static_cast<float>(*this));
  }

 private:
  static constexpr std::uint16_t narrow_float(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    if ((word & 0x7fffffffU) > 0x7f800000U) {  // NaN: set the quiet bit so it cannot become inf
      return static_cast<std::uint16_t>((word >> 16) | 0x40U);
    }
    return static_cast<std::uint16_t>((word + 0x7fffU + ((word >> 16) & 1U)) >> 16);
  }
  static constexpr std::uint16_t narrow_double(double value) { return detail::narrow(value, 8, 7); }
};

static_assert(sizeof(F16) == 2 && sizeof(Bf16) == 2);

}  // namespace touchstone::inline v0
