// The draw of a row by one warp, from its first tokens in order: what almost every row takes.
#pragma once

#include "ops/sample/sample_block.cuh"

namespace touchstone::sampling {

// The sum of a scan is right to a few roundings of f32, and to one of the scale of its exponents.
// Where a cut is closer than this, the sum is made again of masses.
inline constexpr double kSumError = 2e-6;

// What the tokens in order, k of them and so many above -inf, are to the cuts of a row.
struct CutFacts {
  int limit;    // those that top_k leaves
  bool whole;   // they are all that it leaves: their mass is the one that top_p is of
  bool beyond;  // top_p is of a mass that neither they nor the scan give
};

__device__ inline CutFacts cut_facts(const RowControls& controls, int k, int above,
                                     std::int64_t vocabulary) {
  const bool complete = above < k || k == vocabulary;
  const bool whole = complete || controls.top_k <= k;
  return {static_cast<int>(min(controls.top_k, static_cast<std::int64_t>(above))), whole,
          !whole && controls.top_k < vocabulary && controls.top_p < 1};
}

// What the row weighs against its largest value, from the scan's sum.
__device__ inline float scanned_weight(const Weights& weights) {
  if (weights.huge) return weights.row.sum;
  return weights.row.sum * exp2f(fmaf(-weights.largest, weights.scale, weights.row.reference));
}

// The draw from up to 64 sorted tokens in f32, by a warp: no barriers, and none of the latencies of
// f64. `row` is the weight that top_p is of, or 0 where it is of these tokens. The key of the
// token, or 0 where the cut is not among them, or anything is too close to call.
//
// How close that is: an exponent x has three roundings, which is 1.3e-7 |x| of its weight, and the
// mean of |x| over 64 weights of which the largest is 1 is less than 3.5; 2.4e-7 are of the
// exponential, 5e-7 of the sum. So sums are right to 1.2e-6 of that of all, and are held against
// a sum that is as good, or against a row's, which is right to kSumError.
inline constexpr int kWarpTokens = 64;
inline constexpr float kWarpError = 4e-6F;

__device__ inline Key draw_by_warp(const Key* sorted, int limit, float row,
                                   const RowControls& controls, const Weights& weights, double u) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float weight[2];  // of two neighbors
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float value =
        2 * lane + i < limit ? topk::value_of(sorted[2 * lane + i]) : -topk::infinity();
    weight[i] = topk::exp2_fast((value - weights.largest) * weights.scale);
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
  // How many tokens stay: all before the first that ends the set.
  int kept = row > 0 ? limit + 1 : limit;
  bool close = false;
#pragma unroll
  for (int i = 1; i >= 0; --i) {
    const int place = 2 * lane + i;
    if (place >= limit) continue;
    if (controls.top_p < 1) {
      if (sums[i] >= needed) kept = min(kept, place + 1);
      close = close || fabsf(sums[i] - needed) <= error;
    }
    if (controls.min_p > 0) {
      if (weight[i] < controls.min_p) kept = min(kept, place);
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
    const int place = 2 * lane + i;
    if (place >= kept - 1) continue;
    if (sums[i] > target) drawn = min(drawn, place);
    close = close || fabsf(sums[i] - target) <= error;
  }
  if (__any_sync(~0U, close)) return 0;
  return sorted[__reduce_min_sync(~0U, drawn)];
}

// The same in whole numbers, for what f32 cannot tell: 0 only where the cut is not among these
// tokens, or too close to the share of a row whose weight is not known better. Out of line: rare.
__device__ __noinline__ inline Key draw_by_warp_exactly(const Key* sorted, int limit, float row,
                                                        float top_p, float min_p,
                                                        Distribution distribution, double u) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  double weight[2];  // of two neighbors
  Mass sums[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int place = 2 * lane + i;
    const double own =
        place < limit ? distribution.weight_at_once(topk::value_of(sorted[place])) : 0;
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
    const int place = 2 * lane + i;
    if (place >= limit) continue;
    if (min_p > 0 && weight[i] < static_cast<double>(min_p)) {
      kept = min(kept, place);
    } else if (top_p < 1) {
      if (sums[i] >= needed) kept = min(kept, place + 1);
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

// The token of a row that a warp can draw, in all lanes; 0 where it cannot. k and `above` as in
// cut_facts().
__device__ inline Key draw_quickly(const Key* sorted, int k, int above, std::int64_t vocabulary,
                                   const RowControls& controls, const Weights& weights, double u) {
  if (controls.greedy()) return sorted[0];
  if (!controls.cuts(vocabulary)) return 0;
  const CutFacts facts = cut_facts(controls, k, above, vocabulary);
  if (facts.beyond || facts.limit > kWarpTokens) return 0;
  const float row = facts.whole ? 0.0F : scanned_weight(weights);
  if (!weights.huge) {
    const Key key = draw_by_warp(sorted, facts.limit, row, controls, weights, u);
    if (key != 0) return key;
  }
  return draw_by_warp_exactly(sorted, facts.limit, row, controls.top_p, controls.min_p,
                              {weights.largest, weights.inverse}, u);
}

}  // namespace touchstone::sampling
