// The draw of a row by one warp from at most 64 sorted tokens: the path of almost every row.
#pragma once

#include "ops/sample/cuda/sample_block.cuh"
#include "ops/sample/sample_tuning.h"

namespace touchstone::sampling {

// Relative error of a row sum: a few roundings of f32 and one of the exponent scale. Where a cut is
// closer than this, the sum is recomputed from integer masses.
inline constexpr double kSumError = 2e-6;

// How the first k sorted tokens, `above` of which are above -inf, relate to the cuts of a row.
struct CutBounds {
  int limit;    // tokens that top_k keeps
  bool whole;   // they are all that top_k keeps: top_p is relative to their mass
  bool beyond;  // top_p is relative to a mass that is not known yet
};

__device__ inline CutBounds cut_bounds(const RowControls& controls, int k, int above,
                                       std::int64_t vocabulary) {
  const bool complete = above < k || k == vocabulary;
  const bool whole = complete || controls.top_k <= k;
  return {static_cast<int>(min(controls.top_k, static_cast<std::int64_t>(above))), whole,
          !whole && controls.top_k < vocabulary && controls.top_p < 1};
}

// The weight of the row relative to its largest value, from the row sum.
__device__ inline float scanned_weight(const Weights& weights) {
  if (weights.huge) return weights.row.sum;
  return weights.row.sum * exp2f(fmaf(-weights.largest, weights.scale, weights.row.reference));
}

// The draw from up to 64 sorted tokens in f32: no barriers and no f64 latency. `row` is the weight
// that top_p is relative to, or 0 if that is the weight of these tokens. Returns the key of the
// token, or 0 if the cut is not among them or a comparison is too close to call.
//
// Error bound: an exponent x has three roundings, 1.3e-7 |x| of its weight, and the mean of |x|
// over 64 weights with maximum 1 is below 3.5; the exponential adds 2.4e-7, the sum 5e-7. Sums are
// thus right to 1.2e-6 of the total and are compared with a sum of the same quality, or with a row
// sum that is right to kSumError.
inline constexpr float kWarpError = 4e-6F;

__device__ inline Key draw_by_warp_f32(const Key* sorted, int limit, float row,
                                       const RowControls& controls, const Weights& weights,
                                       double u) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float weight[2];  // of two consecutive tokens
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float value =
        2 * lane + i < limit ? selection::value_of(sorted[2 * lane + i]) : -selection::infinity();
    weight[i] = selection::exp2_fast((value - weights.largest) * weights.scale);
  }
  float sum = weight[0] + weight[1];
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const float before = __shfl_up_sync(~0U, sum, step);
    if (lane >= step) sum += before;
  }
  float first = __shfl_up_sync(~0U, sum, 1);
  first = (lane > 0 ? first : 0) + weight[0];
  const float sums[2] = {first, sum};
  const float all = __shfl_sync(~0U, sum, 31);
  const float base = row > 0 ? row : all;
  const float error = kWarpError * fmaxf(base, all);
  const float needed = controls.top_p * base;
  // Kept tokens: all before the first that ends the set.
  int kept = row > 0 ? limit + 1 : limit;
  bool close = false;
#pragma unroll
  for (int i = 1; i >= 0; --i) {
    const int slot = 2 * lane + i;
    if (slot >= limit) continue;
    if (controls.top_p < 1) {
      if (sums[i] >= needed) kept = min(kept, slot + 1);
      close = close || fabsf(sums[i] - needed) <= error;
    }
    if (controls.min_p > 0) {
      if (weight[i] < controls.min_p) kept = min(kept, slot);
      close = close || fabsf(weight[i] - controls.min_p) <= kWarpError;
    }
  }
  kept = __reduce_min_sync(~0U, kept);
  if (kept > limit || kept < 1) return 0;
  const float odd = __shfl_sync(~0U, sums[0], (kept - 1) / 2);
  const float even = __shfl_sync(~0U, sums[1], (kept - 1) / 2);
  const float target = static_cast<float>(u) * (kept % 2 == 0 ? even : odd);
  int drawn = kept - 1;
#pragma unroll
  for (int i = 1; i >= 0; --i) {
    const int slot = 2 * lane + i;
    if (slot >= kept - 1) continue;
    if (sums[i] > target) drawn = min(drawn, slot);
    close = close || fabsf(sums[i] - target) <= error;
  }
  if (__any_sync(~0U, close)) return 0;
  return sorted[__reduce_min_sync(~0U, drawn)];
}

// The same in integer masses, for comparisons that f32 cannot decide: returns 0 only if the cut is
// not among these tokens, or too close given the accuracy of `row`. Rare, hence __noinline__.
__device__ __noinline__ inline Key draw_by_warp_exactly(const Key* sorted, int limit, float row,
                                                        float top_p, float min_p,
                                                        Distribution distribution, double u) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  double weight[2];  // of two consecutive tokens
  Mass sums[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int slot = 2 * lane + i;
    const double own =
        slot < limit ? distribution.weight_at_once(selection::value_of(sorted[slot])) : 0;
    weight[i] = own;
    sums[i] = mass_of(own);
  }
  Mass sum = sums[0] + sums[1];
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const Mass before = __shfl_up_sync(~0U, sum, step);
    if (lane >= step) sum += before;
  }
  sums[0] = sum - sums[1];
  sums[1] = sum;
  const Mass all = __shfl_sync(~0U, sum, 31);
  const Mass needed =
      row > 0
          ? static_cast<Mass>(static_cast<double>(top_p) * static_cast<double>(row) * kMassOfOne)
          : needed_mass(top_p, all);
  int kept = limit + 1;
  bool close = false;
#pragma unroll
  for (int i = 1; i >= 0; --i) {
    const int slot = 2 * lane + i;
    if (slot >= limit) continue;
    if (min_p > 0 && weight[i] < static_cast<double>(min_p)) {
      kept = min(kept, slot);
    } else if (top_p < 1) {
      if (sums[i] >= needed) kept = min(kept, slot + 1);
      const double distance = static_cast<double>(sums[i]) - static_cast<double>(needed);
      close = close || fabs(distance) <= kSumError * static_cast<double>(needed);
    }
  }
  kept = __reduce_min_sync(~0U, kept);
  if (row > 0 && (__any_sync(~0U, close) || kept > limit)) return 0;
  kept = min(kept, limit);
  const Mass odd = __shfl_sync(~0U, sums[0], (kept - 1) / 2);
  const Mass even = __shfl_sync(~0U, sums[1], (kept - 1) / 2);
  const Mass target = drawn_mass(u, kept % 2 == 0 ? even : odd);
  int drawn = kept - 1;
#pragma unroll
  for (int i = 1; i >= 0; --i) {
    if (sums[i] > target) drawn = min(drawn, 2 * lane + i);
  }
  return sorted[__reduce_min_sync(~0U, drawn)];
}

// The drawn key in all lanes, or 0 if the warp cannot draw this row. k and `above` as in
// cut_bounds().
__device__ inline Key draw_by_warp(const Key* sorted, int k, int above, std::int64_t vocabulary,
                                   const RowControls& controls, const Weights& weights, double u) {
  if (controls.greedy()) return sorted[0];
  if (!controls.cuts(vocabulary)) return 0;
  const CutBounds bounds = cut_bounds(controls, k, above, vocabulary);
  if (bounds.beyond || bounds.limit > kWarpTokens) return 0;
  const float row = bounds.whole ? 0.0F : scanned_weight(weights);
  if (!weights.huge) {
    const Key key = draw_by_warp_f32(sorted, bounds.limit, row, controls, weights, u);
    if (key != 0) return key;
  }
  return draw_by_warp_exactly(sorted, bounds.limit, row, controls.top_p, controls.min_p,
                              {weights.largest, weights.inverse}, u);
}

}  // namespace touchstone::sampling
