// The definition of touchstone::convert, declared in dtype.h.
#pragma once

#include <cmath>
#include <limits>
#include <type_traits>

#include "touchstone/core/half.h"

namespace touchstone::inline v0 {

template <class T>
inline constexpr bool is_half = std::is_same_v<T, F16> || std::is_same_v<T, Bf16>;

template <class To, class From>
To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (is_half<From>) {
    return convert<To>(static_cast<float>(value));
  } else if constexpr (is_half<To>) {
    if constexpr (std::is_integral_v<From> && sizeof(From) == 8) {
      // int64 -> double may round; going through a 53-bit odd-rounded double keeps one rounding.
      const auto wide = static_cast<double>(value);
      const auto back = static_cast<long double>(wide) - static_cast<long double>(value);
      auto bits = std::bit_cast<std::uint64_t>(wide);
      if (back != 0 && (bits & 1) == 0) {
        // Round to odd: step toward the exact value, so that a tie is never mistaken for exact.
        const bool too_large = (back > 0) == (wide > 0);
        bits = too_large ? bits - 1 : bits + 1;
      }
      return To(std::bit_cast<double>(bits));
    } else if constexpr (std::is_integral_v<From>) {
      return To(static_cast<double>(value));
    } else {
      return To(value);
    }
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    if (std::isnan(value)) return 0;
    // 2^digits is a power of two, so the comparison is exact even where max() is not a float.
    const From end = std::ldexp(From{1}, std::numeric_limits<To>::digits);
    if (value >= end) return std::numeric_limits<To>::max();
    if (value < static_cast<From>(std::numeric_limits<To>::min())) {
      return std::numeric_limits<To>::min();
    }
    return static_cast<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

}  // namespace touchstone::inline v0
