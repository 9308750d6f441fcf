// A sampled row around its scan, whichever scan that is: what it asks for, and how it ends.
#pragma once

#include "ops/sample/philox.h"
#include "ops/sample/sample_draw.cuh"
#include "ops/sample/sample_kernels.h"
#include "ops/sample/sample_values.cuh"
#include "ops/softmax_topk/topk_finish.cuh"

namespace touchstone::sampling {

// A greedy row has log-probabilities too.
__device__ inline double weighing_temperature(const RowControls& controls) {
  return controls.greedy() ? 1 : static_cast<double>(controls.temperature);
}

__device__ inline int wanted_places(const Sampling& p, const RowControls& controls,
                                    const Places& places) {
  std::int64_t wanted = max(p.top_count, std::int64_t{1});
  if (!controls.greedy() && controls.cuts(p.vocabulary)) {
    wanted = max(wanted, controls.top_k <= places.most ? controls.top_k
                                                       : static_cast<std::int64_t>(places.unasked));
  }
  return static_cast<int>(min(wanted, p.vocabulary));
}

// Whether a row is legal and 64 tokens in order may do for it: of more that top_k leaves not even
// the mass would be known.
__device__ inline bool wants_few(const Sampling& p, const RowControls& controls) {
  return controls.legal &&
         (controls.greedy() || controls.top_k <= kWarpTokens || controls.top_k >= p.vocabulary);
}

// What the uniform of a row is made of.
struct RowSeed {
  std::int64_t seed = 0;
  std::int64_t position = 0;
};
// For the last of so many threads; others have nothing.
template <int kThreads>
__device__ RowSeed row_seed(const Sampling& p, std::int64_t row) {
  return threadIdx.x == kThreads - 1 ? RowSeed{p.seed[row], p.position[row]} : RowSeed{};
}

// For what comes after the scan, whose barriers make it known to all. By the last of so many
// threads, which has its first loads on their way.
template <int kThreads>
__device__ void keep_state(const RowSeed& seed, const RowControls& controls, double inverse,
                           RowState& state) {
  if (threadIdx.x != kThreads - 1) return;
  state.controls = controls;
  state.inverse = inverse;
  state.uniform = uniform_of(seed.seed, seed.position);
}
template <int kThreads>
__device__ void keep_state(const Sampling& p, std::int64_t row, const RowControls& controls,
                           double inverse, RowState& state) {
  keep_state<kThreads>(row_seed<kThreads>(p, row), controls, inverse, state);
}

// Of a row that has neither bias nor mask.
template <class T>
__device__ topk::RowValues<T> plain_values(const Sampling& p, std::int64_t row) {
  return {static_cast<const T*>(p.logits) + row * p.logits_stride, nullptr, nullptr};
}
template <class T>
__device__ topk::RowValues<T> unpenalized_values(const Sampling& p, std::int64_t row) {
  return {static_cast<const T*>(p.logits) + row * p.logits_stride,
          p.bias == nullptr ? nullptr : p.bias + row * p.bias_stride,
          p.allowed == nullptr
              ? nullptr
              : reinterpret_cast<const std::uint32_t*>(p.allowed) + row * p.allowed_stride};
}

__device__ inline AnyValues any_values(const Sampling& p, std::int64_t row, HistoryTable* table) {
  const topk::RowValues<float> unpenalized = unpenalized_values<float>(p, row);
  return {static_cast<const unsigned char*>(p.logits) +
              row * p.logits_stride * (p.dtype == DType::f32 ? 4 : 2),
          p.dtype, unpenalized.bias, unpenalized.allowed, table};
}

// ---- outputs ----------------------------------------------------------------------------------

__device__ inline void put_token(void* tokens, DType dtype, std::int64_t at, std::int64_t token) {
  if (dtype == DType::i32) {
    static_cast<std::int32_t*>(tokens)[at] = static_cast<std::int32_t>(token);
  } else {
    static_cast<std::int64_t*>(tokens)[at] = token;
  }
}

// For a kernel that takes any row.
__device__ inline void leave_row(const Sampling& p, std::int64_t row) {
  if (threadIdx.x == 0) put_token(p.token, p.token_dtype, row, kLeft);
}
__device__ inline bool is_left(const Sampling& p, std::int64_t row) {
  return p.token_dtype == DType::i32 ? static_cast<const std::int32_t*>(p.token)[row] == kLeft
                                     : static_cast<const std::int64_t*>(p.token)[row] == kLeft;
}

// A row without a distribution.
__device__ inline void refuse_row(const Sampling& p, std::int64_t row, std::int32_t status) {
  for (std::int64_t j = threadIdx.x; j < p.top_count; j += blockDim.x) {
    const std::int64_t at = row * p.top_count + j;
    put_token(p.top_tokens, p.top_token_dtype, at, -1);
    p.top_log_probabilities[at] = topk::not_a_number();
  }
  if (threadIdx.x != 0) return;
  put_token(p.token, p.token_dtype, row, -1);
  if (p.log_probability != nullptr) p.log_probability[row] = topk::not_a_number();
  if (p.status != nullptr) p.status[row] = status;
}

// The largest and the sum come by different roundings: no more than 0.
__device__ inline float log_probability(const Weights& weights, float value) {
  return fminf(weights.log_probability(value, weights.row.sum), 0.0F);
}

// By threads of which this has the place `first` and all others, each so many further.
__device__ inline void put_top(const Sampling& p, std::int64_t row, const Key* sorted,
                               const Weights& weights, std::int64_t first, std::int64_t step) {
  for (std::int64_t j = first; j < p.top_count; j += step) {
    const std::int64_t at = row * p.top_count + j;
    put_token(p.top_tokens, p.top_token_dtype, at, topk::token_of(sorted[j]));
    p.top_log_probabilities[at] = log_probability(weights, topk::value_of(sorted[j]));
  }
}

// The token that was drawn, by one thread.
__device__ inline void put_drawn(const Sampling& p, std::int64_t row, Key drawn,
                                 const Weights& weights, std::int32_t status) {
  put_token(p.token, p.token_dtype, row, topk::token_of(drawn));
  if (p.log_probability != nullptr) {
    p.log_probability[row] = log_probability(weights, topk::value_of(drawn));
  }
  if (p.status != nullptr) p.status[row] = status;
}

// The draw of a row that one warp cannot make, by the block. Out of line: it is rare, and long.
template <class Memory>
__device__ __noinline__ void draw_slowly(const Sampling& p, const typename Memory::Shape& shape,
                                         std::int64_t row, int k, int above, int segment_tokens,
                                         std::int32_t status, Memory& shared, RowState& state,
                                         HistoryTable* table) {
  const AnyValues values = any_values(p, row, table);
  bool read_again = false;
  const Key drawn = RowDraw<Memory>(shape, k, shared, values, segment_tokens, state.controls,
                                    state.weights, above)
                        .run(state.uniform, read_again);
  if (threadIdx.x != 0) return;
  put_drawn(p, row, drawn, state.weights, status | (read_again ? kRowTwoPass : 0));
}

// The same for rows that cut nothing, and have nothing unusual.
template <class Memory>
__device__ __noinline__ void draw_by_token(const Sampling& p, const typename Memory::Shape& shape,
                                           std::int64_t row, int segment_tokens, Memory& shared,
                                           RowState& state) {
  const AnyValues values = any_values(p, row, nullptr);
  const Key drawn =
      RowDraw<Memory>(shape, 1, shared, values, segment_tokens, state.controls, state.weights, 1)
          .by_token(state.uniform);
  if (threadIdx.x == 0) put_drawn(p, row, drawn, state.weights, 0);
}

// What follows the order of a row's first k tokens, of which so many are above -inf. `status` has
// what is known already.
template <class Memory>
__device__ void put_draw(const Sampling& p, const typename Memory::Shape& shape, std::int64_t row,
                         int k, int above, int segment_tokens, std::int32_t status,
                         const Weights& weights, Memory& shared, RowState& state,
                         HistoryTable* table) {
  if (above < p.top_count) status |= kRowFewerThanK;
  if (weights.masked()) return refuse_row(p, row, status | kRowAllMasked);
  if (weights.infinite()) status |= kRowHasInfinity;
  if (weights.huge || (shared.flags & Memory::kReadTwice) != 0) status |= kRowTwoPass;
  const Key* const sorted = shared.sorted();
  if (threadIdx.x < 32) {
    const Key drawn =
        draw_quickly(sorted, k, above, shape.vocabulary, state.controls, weights, state.uniform);
    if (threadIdx.x == 0) {
      state.settled = drawn != 0 ? 1 : 0;
      if (drawn != 0) {
        put_drawn(p, row, drawn, weights, status);
      } else {
        state.weights = weights;
      }
    }
  }
  put_top(p, row, sorted, weights, threadIdx.x, blockDim.x);
  __syncthreads();
  if (state.settled != 0) return;
  draw_slowly(p, shape, row, k, above, segment_tokens, status, shared, state, table);
}

}  // namespace touchstone::sampling
