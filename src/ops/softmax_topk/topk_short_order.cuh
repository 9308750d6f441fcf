// The keys by which short rows are put in order, and networks that sort them in registers.
#pragma once

#include <cstdint>
#include <type_traits>

#include "ops/softmax_topk/topk_cuda.cuh"

namespace touchstone::topk {

inline constexpr int kList = 8;   // places that are found, whatever k is
inline constexpr int kChunk = 8;  // neighboring tokens of one lane
inline constexpr int kGroup = 4;  // tokens that are ranked together first

// Two kinds of keys: `Key`, and 16 ordered bits of a value above 16 bits that fall with the token,
// where the values have no more. The id is that of a token or of a group.
using NarrowKey = std::uint32_t;
__device__ inline std::uint32_t id_of(NarrowKey key) { return ~key & 0xffffU; }
__device__ inline std::uint32_t id_of(Key key) { return token_of(key); }

__device__ inline NarrowKey larger(NarrowKey a, NarrowKey b) { return max(a, b); }
__device__ inline Key larger(Key a, Key b) { return a > b ? a : b; }

template <class K>
__device__ K one_of(bool the_larger, K a, K b) {
  return (a > b) == the_larger ? a : b;
}
__device__ inline NarrowKey one_of(bool the_larger, NarrowKey a, NarrowKey b) {
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

// Batcher's network of 19 comparisons.
template <class K>
__device__ void sort_eight(K (&k)[kList]) {
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

// The best eight of two sorted lists, sorted.
template <class K>
__device__ void keep_best(K (&list)[kList], const K (&more)[kList]) {
#pragma unroll
  for (int i = 0; i < kList; ++i) list[i] = larger(list[i], more[kList - 1 - i]);
#pragma unroll
  for (int half = 4; half >= 1; half /= 2) {
#pragma unroll
    for (int i = 0; i < kList; ++i) {
      if ((i & half) == 0) order(list[i], list[i + half]);
    }
  }
}

// The larger of two pairs of values, each half by itself.
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

// Two values in words of 16 bits that grow with them; as in ordered(), -0 is +0.
template <class T>
__device__ std::uint32_t ordered_halves(std::uint32_t pair) {
  std::uint32_t x;
  if constexpr (std::is_same_v<T, Bf16>) {  // x * 1 + 0
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(x) : "r"(pair), "r"(0x3f803f80U), "r"(0U));
  } else {
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(x) : "r"(pair), "r"(0x3c003c00U), "r"(0U));
  }
  std::uint32_t negative;  // all bits of a half, from its sign
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

}  // namespace touchstone::topk
