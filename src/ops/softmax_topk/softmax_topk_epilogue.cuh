// Epilogue of softmax_topk on the GPU: from the sorted keys and the sum of a row to its outputs.
#pragma once

#include "ops/selection/row_sum.cuh"
#include "ops/selection/slow_path.cuh"
#include "ops/softmax_topk/softmax_topk_problem.h"
#include "touchstone/ops/row_status.h"

namespace touchstone::topk {

using selection::exp2_fast;
using selection::exponent_scale;
using selection::infinity;
using selection::Key;
using selection::kSumLeaves;
using selection::not_a_number;
using selection::RowSum;
using selection::RowValues;
using selection::token_of;
using selection::TwoPhaseParams;
using selection::TwoPhaseSmem;
using selection::value_of;
using selection::values_of;
using selection::Weights;

// 1 / T of a row, or 0 if its temperature is invalid.
__device__ inline double inverse_temperature(const SoftmaxTopkProblem& p, std::int64_t row) {
  double temperature = p.temperature_scale;
  if (p.temperature != nullptr) {
    const float own = p.temperature[row];
    temperature *= static_cast<double>(own);
    if (!(own > 0 && own < infinity())) return 0;
  }
  return 1 / fmin(fmax(temperature, kMinTemperatureProduct), kMaxTemperatureProduct);
}

__device__ inline void store_index(const SoftmaxTopkProblem& p, std::int64_t at,
                                   std::int64_t token) {
  if (p.wide_indices) {
    static_cast<std::int64_t*>(p.indices)[at] = token;
  } else {
    static_cast<std::int32_t*>(p.indices)[at] = static_cast<std::int32_t>(token);
  }
}

// Slot j of a row without a result.
__device__ inline void store_invalid_slot(const SoftmaxTopkProblem& p, std::int64_t row,
                                          std::int64_t j) {
  const std::int64_t at = row * p.k + j;
  store_index(p, at, -1);
  p.probabilities[at] = not_a_number();
  if (p.log_probabilities != nullptr) p.log_probabilities[at] = not_a_number();
}

// Slot j of a row; `total` is the denominator.
__device__ inline void store_slot(const SoftmaxTopkProblem& p, std::int64_t row, std::int64_t j,
                                  float value, std::uint32_t token, const Weights& weights,
                                  float total) {
  const std::int64_t at = row * p.k + j;
  store_index(p, at, token);
  p.probabilities[at] = weights.masked() ? 0.0F : weights.weight(value) / total;
  if (p.log_probabilities != nullptr) {
    p.log_probabilities[at] = weights.log_probability(value, total);
  }
}
__device__ inline void store_slot(const SoftmaxTopkProblem& p, std::int64_t row, std::int64_t j,
                                  Key key, const Weights& weights, float total) {
  store_slot(p, row, j, value_of(key), token_of(key), weights, total);
}

// All outputs of a row from its sorted keys, by the whole block.
template <class Smem>
__device__ void store_row(const SoftmaxTopkProblem& p, std::int64_t row, Smem& smem,
                          int above_masked, const Weights& weights) {
  const Key* const sorted = smem.sorted();
  float total = weights.row.sum;
  if (p.renormalize && !weights.masked()) {
    const auto leaf = [&](int first) {
      float kept = 0;
      for (int j = first; j < p.k; j += kSumLeaves) kept += weights.weight(value_of(sorted[j]));
      return kept;
    };
    total = selection::sum_of_leaves<Smem::kThreads>(leaf, smem.reduction);
  }
  for (int j = static_cast<int>(threadIdx.x); j < p.k; j += Smem::kThreads) {
    store_slot(p, row, j, sorted[j], weights, total);
  }
  if (threadIdx.x != 0) return;
  if (p.log_sum_exp != nullptr) p.log_sum_exp[row] = weights.log_sum_exp();
  if (p.status == nullptr) return;
  RowStatus status =
      (smem.flags & selection::kFlagTwoPass) != 0 ? RowStatus::two_pass : RowStatus::ok;
  if (weights.infinite()) status |= RowStatus::has_infinity;
  if (weights.masked()) status |= RowStatus::all_masked;
  if (above_masked < p.k) status |= RowStatus::fewer_than_k;
  p.status[row] = to_int(status);
}

template <int kThreads>
__device__ void store_invalid_row(const SoftmaxTopkProblem& p, std::int64_t row, RowStatus status) {
  for (int j = static_cast<int>(threadIdx.x); j < p.k; j += kThreads) store_invalid_slot(p, row, j);
  if (threadIdx.x != 0) return;
  if (p.log_sum_exp != nullptr) p.log_sum_exp[row] = not_a_number();
  if (p.status != nullptr) p.status[row] = to_int(status);
}

// The same for a row of finite values, by whole warps and without barriers. This thread stores the
// slots first, first + step, ..
__device__ inline void store_row_by_warps(const SoftmaxTopkProblem& p, std::int64_t row,
                                          const Key* sorted, const Weights& weights, int first,
                                          int step) {
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
  for (int j = first; j < k; j += step) store_slot(p, row, j, sorted[j], weights, total);
  if (first != 0) return;
  if (p.log_sum_exp != nullptr) p.log_sum_exp[row] = weights.log_sum_exp();
  if (p.status != nullptr) p.status[row] = 0;
}

// A row with any content, by kThreads threads. Rare, hence __noinline__.
template <class T, bool kAligned16, int kThreads>
__device__ __noinline__ void process_row_slow_path(const SoftmaxTopkProblem& p,
                                                   const TwoPhaseParams& params, std::int64_t row,
                                                   TwoPhaseSmem<kThreads>& smem) {
  __syncthreads();  // the shared memory is reused
  const double inverse = inverse_temperature(p, row);
  if (inverse == 0) return store_invalid_row<kThreads>(p, row, RowStatus::bad_parameter);
  const selection::SlowPathResult result = selection::select_slow_path<T, kAligned16, kThreads>(
      params, values_of<T>(p, row), static_cast<int>(p.k), inverse, smem);
  if (result.nan) return store_invalid_row<kThreads>(p, row, RowStatus::has_nan);
  store_row(p, row, smem, result.above_masked, result.weights);
}

}  // namespace touchstone::topk
