// Size arithmetic in 64 bits that refuses to wrap.
#pragma once

#include <cstdint>
#include <string>

#include "touchstone/core/error.h"

namespace touchstone::inline v0 {

// a * b, or InvalidArgument naming `what` when the product does not fit in int64.
inline std::int64_t checked_mul(std::int64_t a, std::int64_t b, const char* what = "size") {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) {
    throw InvalidArgument(std::string(what) + ": " + std::to_string(a) + " * " + std::to_string(b) +
                          " does not fit in 64 bits");
  }
  return product;
}

// a + b, or InvalidArgument naming `what` when the sum does not fit in int64.
inline std::int64_t checked_add(std::int64_t a, std::int64_t b, const char* what = "size") {
  std::int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) {
    throw InvalidArgument(std::string(what) + ": " + std::to_string(a) + " + " + std::to_string(b) +
                          " does not fit in 64 bits");
  }
  return sum;
}

// How many pieces of size `step` cover n. step > 0, n >= 0.
constexpr std::int64_t ceil_div(std::int64_t n, std::int64_t step) {
  return n / step + (n % step != 0 ? 1 : 0);
}

}  // namespace touchstone::inline v0
