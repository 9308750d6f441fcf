// Keys of short rows and the networks that sort eight of them in registers.
#pragma once

#include <cstdint>
#include <type_traits>

#include "ops/selection/row_values.cuh"

namespace touchstone::selection {

inline constexpr int kListSize = 8;  // tokens that are selected, for any k
inline constexpr int kChunk = 8;     // consecutive tokens of one lane
inline constexpr int kGroup = 4;     // tokens per group maximum

// Two kinds of keys: `Key`, and for 16-bit values the 16 ordered bits above the complement of a
// 16-bit id, which is that of a token or of a group.
using NarrowKey = std::uint32_t;
__device__ inline std::uint32_t id_of(NarrowKey key) { return ~key & 0xffffU; }
__device__ inline std::uint32_t id_of(Key key) { return token_of(key); }

__device__ inline NarrowKey max_key(NarrowKey a, NarrowKey b) { return max(a, b); }
__device__ inline Key max_key(Key a, Key b) { return a > b ? a : b; }

template <class K>
__device__ K select_one(bool the_larger, K a, K b) {
  return (a > b) == the_larger ? a : b;
}
__device__ inline NarrowKey select_one(bool the_larger, NarrowKey a, NarrowKey b) {
  return the_larger ? max(a, b) : min(a, b);
}

__device__ inline void order(NarrowKey& a, NarrowKey& b) {
  const NarrowKey first = max(a, b);
  b = min(a, b);
  a = first;
}
__device__ inline void order(Key& a, Key& b) {
  const bool ordered = a > b;
  const Key first = ordered ? a : b;
  b = ordered ? b : a;
  a = first;
}

// Batcher's network with 19 comparators.
template <class K>
__device__ void sort_eight(K (&k)[kListSize]) {
#pragma unroll
  for (int i = 0; i < 8; i += 2) order(k[i], k[i + 1]);
#pragma unroll
  for (int i = 0; i < 8; i += 4) {
    order(k[i], k[i + 2]);
    order(k[i + 1], k[i + 3]);
    order(k[i + 1], k[i + 2]);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) order(k[i], k[i + 4]);
  order(k[2], k[4]);
  order(k[3], k[5]);
#pragma unroll
  for (int i = 1; i < 7; i += 2) order(k[i], k[i + 1]);
}

template <class K>
__device__ void sort_bitonic_four(K (&k)[4]) {
  order(k[0], k[2]);
  order(k[1], k[3]);
  order(k[0], k[1]);
  order(k[2], k[3]);
}

// The largest eight of two sorted lists, sorted.
template <class K>
__device__ void keep_best(K (&list)[kListSize], const K (&more)[kListSize]) {
#pragma unroll
  for (int i = 0; i < kListSize; ++i) list[i] = max_key(list[i], more[kListSize - 1 - i]);
#pragma unroll
  for (int half = 4; half >= 1; half /= 2) {
#pragma unroll
    for (int i = 0; i < kListSize; ++i) {
      if ((i & half) == 0) order(list[i], list[i + half]);
    }
  }
}

// Element-wise maximum of two packed pairs.
template <class T>
__device__ std::uint32_t larger_halves(std::uint32_t a, std::uint32_t b) {
  std::uint32_t y;
  if constexpr (std::is_same_v<T, Bf16>) {
    asm("max.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  } else {
    asm("max.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  }
  return y;
}

// Order-preserving map of a packed pair; as in ordered(), -0 is +0.
template <class T>
__device__ std::uint32_t ordered_halves(std::uint32_t pair) {
  std::uint32_t x;
  if constexpr (std::is_same_v<T, Bf16>) {  // x * 1 + 0
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(x) : "r"(pair), "r"(0x3f803f80U), "r"(0U));
  } else {
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(x) : "r"(pair), "r"(0x3c003c00U), "r"(0U));
  }
  std::uint32_t negative;  // sign of each half in all its bits
  asm("prmt.b32 %0, %1, 0, 0xbb99;" : "=r"(negative) : "r"(x));
  return x ^ (negative | 0x80008000U);
}
// The lower halves of the keys with ids `id` and `id + 1`.
__device__ inline std::uint32_t pair_of_ids(std::uint32_t id) {
  return (0xffffU - id) * 0x10001U - 0x10000U;
}
__device__ inline NarrowKey key_of_low_half(std::uint32_t halves, std::uint32_t ids) {
  return __byte_perm(halves, ids, 0x1054);
}
__device__ inline NarrowKey key_of_high_half(std::uint32_t halves, std::uint32_t ids) {
  return __byte_perm(halves, ids, 0x3276);
}

}  // namespace touchstone::selection
