// Selection for any content of a row, by one CTA in two or more reads: NaN, infinities, masked
// rows, ties at the threshold. The fast kernels fall back to it; it is never chosen by itself.
#pragma once

#include "ops/selection/candidates.cuh"
#include "ops/selection/row_values.cuh"
#include "ops/selection/two_phase.cuh"

namespace touchstone::selection {

// What select_slow_path() found; the keys are at smem.sorted().
struct SlowPathResult {
  bool nan;          // the row has NaN: nothing else is valid
  int above_masked;  // keys above -inf, at most k
  Weights weights;
};

// Selects the k largest tokens of raw logits whose temperature is valid.
template <class T, bool kAligned16, int kThreads>
__device__ SlowPathResult select_slow_path(const TwoPhaseParams& params, const RowValues<T>& values,
                                           int k, double inverse_temperature,
                                           TwoPhaseSmem<kThreads>& smem) {
  using Select = TwoPhaseSelect<T, kAligned16, kThreads, 1>;
  Select select(params, smem, values.logits);
  select.start();
  select.read(exponent_scale(inverse_temperature));
  SlowPathResult result{};
  result.nan = (smem.flags & kFlagNan) != 0;
  if (result.nan) return result;
  __syncthreads();  // all threads have read the flags
  if (threadIdx.x == 0) smem.flags |= kFlagOverflow;
  __syncthreads();
  result.above_masked = sort_candidates<typename Select::Held>(params, k, smem, values);
  result.weights = row_weights(params, smem, values, inverse_temperature);
  return result;
}

}  // namespace touchstone::selection
