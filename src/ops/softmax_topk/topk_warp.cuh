// What single warps do with the maxima, keys and sums of a row, so that a block need not meet.
#pragma once

#include "ops/softmax_topk/topk_finish.cuh"

namespace touchstone::topk {

// A word that at least `wanted` of a warp's words reach, and at most two more unless they are
// equal: by halving. 0 when fewer reach `least`, which is above that of -inf. In every lane.
template <int kEach>
__device__ std::uint32_t warp_word_reached_by(int wanted, const std::uint32_t (&words)[kEach],
                                              std::uint32_t least = kAboveNothing) {
  const auto reaching = [&](std::uint32_t bound) {
    int count = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) count += words[i] >= bound ? 1 : 0;
    return static_cast<int>(__reduce_add_sync(~0U, static_cast<unsigned>(count)));
  };
  std::uint32_t low = words[0];
  std::uint32_t high = words[0];
#pragma unroll
  for (int i = 1; i < kEach; ++i) {
    low = min(low, words[i]);
    high = max(high, words[i]);
  }
  low = max(least, __reduce_min_sync(~0U, low));
  high = __reduce_max_sync(~0U, high);
  if (low > high || reaching(low) < wanted) return 0;
#pragma unroll 1
  while (low < high) {
    const std::uint32_t middle = low + (high - low + 1) / 2;
    const int count = reaching(middle);
    if (count < wanted) {
      high = middle - 1;
      continue;
    }
    low = middle;
    if (count <= wanted + 2) break;
  }
  return low;
}

// The sum of a row as row_weights() gives it, from those of its segments.
__device__ inline RowSum warp_row_sum(const float2* sums, int segments) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float reference = -infinity();
  for (int i = lane; i < segments; i += 32) reference = fmaxf(reference, sums[i].x);
  reference = warp_max(reference);
  float total = 0;
#pragma unroll 1
  for (int first = lane; first < min(segments + lane, kSumLeaves); first += 32) {
    float value = 0;
    for (int i = first; i < segments; i += kSumLeaves) {
      value += sums[i].y * exp2_fast(sums[i].x - reference);
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0U, value, offset);
    total += value;
  }
  return {reference, total};
}

// The outputs of a row without anything unusual, by whole warps. `first` is the first place of this
// thread, `step` how far its places are apart.
__device__ inline void put_usual_row(const Topk& p, std::int64_t row, const Key* sorted,
                                     const Weights& weights, int first, int step) {
  float total = weights.row.sum;
  const auto k = static_cast<int>(p.k);
  if (p.renormalize) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    total = 0;
    for (int j = lane; j < k + lane; j += 32) {
      float value = j < k ? weights.weight(value_of(sorted[j])) : 0;
#pragma unroll
      for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0U, value, offset);
      total += value;
    }
  }
  for (int j = first; j < k; j += step) put_place(p, row, j, sorted[j], weights, total);
  if (first != 0) return;
  if (p.log_sum_exp != nullptr) p.log_sum_exp[row] = weights.log_sum_exp();
  if (p.status != nullptr) p.status[row] = 0;
}

}  // namespace touchstone::topk
