// The rotation of keys: a normalized Walsh-Hadamard transform of each block of the head, which
// spreads an outlier channel over its block. It is orthogonal and its own inverse, so a dot product
// stays what it was when query and key are both rotated.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace touchstone::inline v0::cache {

// The largest power of two that divides `dim`: the length of a block.
TOUCHSTONE_HOST_DEVICE constexpr std::int64_t rotation_block(std::int64_t dim) {
  return dim & -dim;
}

// 1 / sqrt(block), rounded to float once.
TOUCHSTONE_HOST_DEVICE constexpr float rotation_factor(std::int64_t block) {
  float factor = 1;
  for (; block >= 4; block /= 4) factor *= 0.5F;
  return block == 2 ? factor * 0.70710678F : factor;
}

// A product that is never merged with a sum that follows: the bits must not depend on who inlines.
TOUCHSTONE_HOST_DEVICE inline float rotation_scaled(float sum, float factor) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(sum, factor);
#else
  return sum * factor;
#endif
}

// In place. The order of the sums is part of the definition: partners at distance 1 first, then 2,
// 4, ..., each pair becoming (a + b, a - b), and one multiplication at the end.
TOUCHSTONE_HOST_DEVICE inline void rotate(float* x, std::int64_t dim) {
  const std::int64_t block = rotation_block(dim);
  if (block == 1) return;
  for (std::int64_t distance = 1; distance < block; distance *= 2) {
    for (std::int64_t i = 0; i < dim; ++i) {
      if ((i & distance) != 0) continue;  // blocks begin on multiples of their length
      const float a = x[i];
      const float b = x[i + distance];
      x[i] = a + b;
      x[i + distance] = a - b;
    }
  }
  const float factor = rotation_factor(block);
  for (std::int64_t i = 0; i < dim; ++i) x[i] = rotation_scaled(x[i], factor);
}

}  // namespace touchstone::inline v0::cache
