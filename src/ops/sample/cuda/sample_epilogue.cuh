// Epilogue of sample on the GPU: the controls of a row before its selection, the draw and the
// outputs after it.
#pragma once

#include "ops/sample/cuda/sample_draw_block.cuh"
#include "ops/sample/cuda/sample_launch.h"
#include "ops/sample/cuda/sample_penalties.cuh"
#include "ops/selection/candidates.cuh"
#include "touchstone/core/random.h"
#include "touchstone/ops/row_status.h"

namespace touchstone::sampling {

// The temperature of log-probabilities: a greedy row uses 1.
__device__ inline double log_prob_temperature(const RowControls& controls) {
  return controls.greedy() ? 1 : static_cast<double>(controls.temperature);
}

__device__ inline int wanted_slots(const SampleProblem& p, const RowControls& controls,
                                   const SlotLimits& slots) {
  std::int64_t wanted = max(p.top_count, std::int64_t{1});
  if (!controls.greedy() && controls.cuts(p.vocabulary)) {
    wanted =
        max(wanted, controls.top_k <= slots.max ? controls.top_k
                                                : static_cast<std::int64_t>(slots.default_slots));
  }
  return static_cast<int>(min(wanted, p.vocabulary));
}

// Whether a row is legal and 64 sorted tokens may suffice: with a larger top_k not even the mass
// would be known.
__device__ inline bool fits_warp_draw(const SampleProblem& p, const RowControls& controls) {
  return controls.legal &&
         (controls.greedy() || controls.top_k <= kWarpTokens || controls.top_k >= p.vocabulary);
}

// The Philox key and counter of a row.
struct RowSeed {
  std::int64_t seed = 0;
  std::int64_t position = 0;
};
// In the last of kThreads threads only.
template <int kThreads>
__device__ RowSeed row_seed(const SampleProblem& p, std::int64_t row) {
  return threadIdx.x == kThreads - 1 ? RowSeed{p.seed[row], p.position[row]} : RowSeed{};
}

// State for the epilogue, published by the barriers of the main loop. By the last of kThreads
// threads, after its first loads are issued.
template <int kThreads>
__device__ void store_state(const RowSeed& seed, const RowControls& controls, double inverse,
                            RowState& state) {
  if (threadIdx.x != kThreads - 1) return;
  state.controls = controls;
  state.inverse = inverse;
  state.uniform = random_uniform(seed.seed, seed.position);
}
template <int kThreads>
__device__ void store_state(const SampleProblem& p, std::int64_t row, const RowControls& controls,
                            double inverse, RowState& state) {
  store_state<kThreads>(row_seed<kThreads>(p, row), controls, inverse, state);
}

// Without bias and mask.
template <class T>
__device__ selection::RowValues<T> raw_values(const SampleProblem& p, std::int64_t row) {
  return {static_cast<const T*>(p.logits) + row * p.logits_stride, nullptr, nullptr};
}
template <class T>
__device__ selection::RowValues<T> unpenalized_values(const SampleProblem& p, std::int64_t row) {
  return selection::values_of<T>(p, row);
}

__device__ inline AnyValues any_values(const SampleProblem& p, std::int64_t row,
                                       HistoryTable* table) {
  const selection::RowValues<float> unpenalized = unpenalized_values<float>(p, row);
  return {static_cast<const unsigned char*>(p.logits) +
              row * p.logits_stride * (p.dtype == DType::f32 ? 4 : 2),
          p.dtype, unpenalized.bias, unpenalized.token_mask, table};
}

// ---- outputs ----------------------------------------------------------------------------------

__device__ inline void store_token(void* tokens, DType dtype, std::int64_t at, std::int64_t token) {
  if (dtype == DType::i32) {
    static_cast<std::int32_t*>(tokens)[at] = static_cast<std::int32_t>(token);
  } else {
    static_cast<std::int64_t*>(tokens)[at] = token;
  }
}

// Leaves a row to the deferred launch.
__device__ inline void defer_row(const SampleProblem& p, std::int64_t row) {
  if (threadIdx.x == 0) store_token(p.token, p.token_dtype, row, kDeferred);
}
__device__ inline bool is_deferred(const SampleProblem& p, std::int64_t row) {
  return p.token_dtype == DType::i32 ? static_cast<const std::int32_t*>(p.token)[row] == kDeferred
                                     : static_cast<const std::int64_t*>(p.token)[row] == kDeferred;
}

// All outputs of a row without a distribution.
__device__ inline void store_invalid_row(const SampleProblem& p, std::int64_t row,
                                         RowStatus status) {
  for (std::int64_t j = threadIdx.x; j < p.top_count; j += blockDim.x) {
    const std::int64_t at = row * p.top_count + j;
    store_token(p.top_tokens, p.top_token_dtype, at, -1);
    p.top_log_probabilities[at] = selection::not_a_number();
  }
  if (threadIdx.x != 0) return;
  store_token(p.token, p.token_dtype, row, -1);
  if (p.log_probability != nullptr) p.log_probability[row] = selection::not_a_number();
  if (p.status != nullptr) p.status[row] = to_int(status);
}

__device__ inline float log_probability(const Weights& weights, float value) {
  return weights.log_probability(value, weights.row.sum);
}

// This thread stores the slots first, first + step, ..
__device__ inline void store_top(const SampleProblem& p, std::int64_t row, const Key* sorted,
                                 const Weights& weights, std::int64_t first, std::int64_t step) {
  for (std::int64_t j = first; j < p.top_count; j += step) {
    const std::int64_t at = row * p.top_count + j;
    store_token(p.top_tokens, p.top_token_dtype, at, selection::token_of(sorted[j]));
    p.top_log_probabilities[at] = log_probability(weights, selection::value_of(sorted[j]));
  }
}

// The drawn token, by one thread.
__device__ inline void store_drawn(const SampleProblem& p, std::int64_t row, Key drawn,
                                   const Weights& weights, RowStatus status) {
  store_token(p.token, p.token_dtype, row, selection::token_of(drawn));
  if (p.log_probability != nullptr) {
    p.log_probability[row] = log_probability(weights, selection::value_of(drawn));
  }
  if (p.status != nullptr) p.status[row] = to_int(status);
}

// The draw by the whole block, for rows that one warp cannot draw. Rare and long, hence
// __noinline__.
template <class Smem>
__device__ __noinline__ void draw_by_block(const SampleProblem& p,
                                           const typename Smem::Params& params, std::int64_t row,
                                           int k, int above, int segment_tokens, RowStatus status,
                                           Smem& smem, RowState& state, HistoryTable* table) {
  const AnyValues values = any_values(p, row, table);
  bool read_again = false;
  const Key drawn =
      RowDraw<Smem>(params, k, smem, values, segment_tokens, state.controls, state.weights, above)
          .run(state.uniform, read_again);
  if (threadIdx.x != 0) return;
  store_drawn(p, row, drawn, state.weights,
              status | (read_again ? RowStatus::two_pass : RowStatus::ok));
}

// The same for finite rows without a cut.
template <class Smem>
__device__ __noinline__ void draw_by_token(const SampleProblem& p,
                                           const typename Smem::Params& params, std::int64_t row,
                                           int segment_tokens, Smem& smem, RowState& state) {
  const AnyValues values = any_values(p, row, nullptr);
  const Key drawn =
      RowDraw<Smem>(params, 1, smem, values, segment_tokens, state.controls, state.weights, 1)
          .by_token(state.uniform);
  if (threadIdx.x == 0) store_drawn(p, row, drawn, state.weights, RowStatus::ok);
}

// Draws from the first k sorted tokens, `above` of which are above -inf, and stores the outputs.
// `status` has the bits that are known already.
template <class Smem>
__device__ void draw_and_store(const SampleProblem& p, const typename Smem::Params& params,
                               std::int64_t row, int k, int above, int segment_tokens,
                               RowStatus status, const Weights& weights, Smem& smem,
                               RowState& state, HistoryTable* table) {
  if (above < p.top_count) status |= RowStatus::fewer_than_k;
  if (weights.masked()) return store_invalid_row(p, row, status | RowStatus::all_masked);
  if (weights.infinite()) status |= RowStatus::has_infinity;
  if (weights.huge || (smem.flags & selection::kFlagTwoPass) != 0) status |= RowStatus::two_pass;
  const Key* const sorted = smem.sorted();
  if (threadIdx.x < 32) {
    const Key drawn =
        draw_by_warp(sorted, k, above, params.vocabulary, state.controls, weights, state.uniform);
    if (threadIdx.x == 0) {
      state.drawn = drawn != 0 ? 1 : 0;
      if (drawn != 0) {
        store_drawn(p, row, drawn, weights, status);
      } else {
        state.weights = weights;
      }
    }
  }
  store_top(p, row, sorted, weights, threadIdx.x, blockDim.x);
  __syncthreads();
  if (state.drawn != 0) return;
  draw_by_block(p, params, row, k, above, segment_tokens, status, smem, state, table);
}

}  // namespace touchstone::sampling
