// A sampled row around its scan, whichever scan that is: what it asks for, and how it ends.
#pragma once

#include "ops/sample/sample_draw.cuh"
#include "ops/sample/sample_values.cuh"
#include "ops/softmax_topk/topk_maxima.cuh"

namespace touchstone::sampling {

// A greedy row has log-probabilities too.
__device__ inline double weighing_temperature(const RowControls& controls) {
  return controls.greedy() ? 1 : static_cast<double>(controls.temperature);
}

// How many tokens of a row are put in order. A kernel can do that for `most`, and does it for
// `unasked` where the row cuts without saying how many it wants: more would slow down every such
// row, fewer would send more of them to a search.
struct Places {
  int most = 0;
  int unasked = 0;
};

__device__ inline int wanted_places(const Sampling& p, const RowControls& controls,
                                    const Places& places) {
  std::int64_t wanted = max(p.top_count, std::int64_t{1});
  if (!controls.greedy() && controls.cuts(p.vocabulary)) {
    wanted = max(wanted, controls.top_k <= places.most ? controls.top_k
                                                       : static_cast<std::int64_t>(places.unasked));
  }
  return static_cast<int>(min(wanted, p.vocabulary));
}

// For what comes after the scan, whose barriers make it known to all. By the last thread, which has
// its first loads on their way.
__device__ inline void keep_state(const Sampling& p, std::int64_t row, const RowControls& controls,
                                  double inverse, RowState& state) {
  if (threadIdx.x != blockDim.x - 1) return;
  state.controls = controls;
  state.inverse = inverse;
  state.uniform = uniform_of(p.seed[row], p.position[row]);
}

template <class T>
__device__ topk::RowValues<T> unpenalised_values(const Sampling& p, std::int64_t row) {
  return {static_cast<const T*>(p.logits) + row * p.logits_stride,
          p.bias == nullptr ? nullptr : p.bias + row * p.bias_stride,
          p.allowed == nullptr
              ? nullptr
              : reinterpret_cast<const std::uint32_t*>(p.allowed) + row * p.allowed_stride};
}

__device__ inline AnyValues any_values(const Sampling& p, std::int64_t row, HistoryTable* table) {
  const topk::RowValues<float> unpenalised = unpenalised_values<float>(p, row);
  return {static_cast<const unsigned char*>(p.logits) +
              row * p.logits_stride * (p.dtype == DType::f32 ? 4 : 2),
          p.dtype, unpenalised.bias, unpenalised.allowed, table};
}

// ---- outputs ----------------------------------------------------------------------------------

__device__ inline void put_token(void* tokens, DType dtype, std::int64_t at, std::int64_t token) {
  if (dtype == DType::i32) {
    static_cast<std::int32_t*>(tokens)[at] = static_cast<std::int32_t>(token);
  } else {
    static_cast<std::int64_t*>(tokens)[at] = token;
  }
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

__device__ inline void put_top(const Sampling& p, std::int64_t row, const Key* sorted,
                               const Weights& weights) {
  for (std::int64_t j = threadIdx.x; j < p.top_count; j += blockDim.x) {
    const std::int64_t at = row * p.top_count + j;
    put_token(p.top_tokens, p.top_token_dtype, at, topk::token_of(sorted[j]));
    p.top_log_probabilities[at] = log_probability(weights, topk::value_of(sorted[j]));
  }
}

// What is left of a segment when the scan is over.
struct SegmentFacts {
  int tokens;
  int equal_bits;

  template <class Held>
  __device__ static SegmentFacts of() {
    return {Held::kTokens, Held::kEqualBits};
  }
};

// What follows the order of a row's first k tokens, of which so many are above -inf.
template <class Memory>
__device__ void put_draw(const Sampling& p, const typename Memory::Shape& shape, std::int64_t row,
                         int k, int above, const SegmentFacts& facts, const Weights& weights,
                         Memory& shared, const RowState& state, const AnyValues& values) {
  const RowControls& controls = state.controls;
  std::int32_t status = above < p.top_count ? kRowFewerThanK : 0;
  if (weights.masked()) return refuse_row(p, row, status | kRowAllMasked);
  if (weights.infinite()) status |= kRowHasInfinity;
  const Key* const sorted = shared.sorted();
  put_top(p, row, sorted, weights);
  bool read_again = weights.huge || (shared.flags & Memory::kReadTwice) != 0;
  Key drawn = sorted[0];
  if (!controls.greedy()) {
    drawn = RowDraw<Memory>(shape, k, shared, values, facts.tokens, controls, weights, above)
                .run(state.uniform, read_again);
  }
  if (threadIdx.x != 0) return;
  put_token(p.token, p.token_dtype, row, topk::token_of(drawn));
  if (p.log_probability != nullptr) {
    p.log_probability[row] = log_probability(weights, topk::value_of(drawn));
  }
  if (p.status != nullptr) p.status[row] = status | (read_again ? kRowReadTwice : 0);
}

// All that follows a scan for k places, or for the `usual` sum of a row whose tokens are in order
// already. Out of line and for any dtype: one code for all kernels that share a layout of memory.
template <class Memory>
__device__ __noinline__ void finish_row(const Sampling& p, const typename Memory::Shape& shape,
                                        std::int64_t row, int k, const SegmentFacts& facts,
                                        const topk::RowSum* usual, Memory& shared,
                                        const RowState& state, HistoryTable* table) {
  if ((shared.flags & Memory::kNan) != 0) return refuse_row(p, row, kRowHasNan);
  const AnyValues values = any_values(p, row, table);
  int above = k;
  Weights weights{};
  if (usual != nullptr) {
    weights = {state.inverse, topk::exponent_scale(state.inverse),
               topk::value_of(shared.sorted()[0]), *usual, false};
  } else {
    above = topk::sort_candidates(shape, k, facts.equal_bits, shared, values);
    weights = topk::row_weights(shape, shared, values, state.inverse);
  }
  put_draw(p, shape, row, k, above, facts, weights, shared, state, values);
}

// The end of a row that was read by maxima.
template <class Scan, class Memory>
__device__ void finish_maxima(const Sampling& p, const topk::MaximaShape& shape, std::int64_t row,
                              int k, Scan& scan, Memory& shared, const RowState& state) {
  topk::RowSum sum;
  const bool usual = k <= Memory::kMostUsual / 2 && scan.answer_usual(k, sum);
  if (!usual) {  // as in topk::answer_rare_row: the candidates are not there
    __syncthreads();
    if (threadIdx.x == 0) shared.flags |= Memory::kOverflow;
    __syncthreads();
  }
  finish_row(p, shape, row, k, SegmentFacts::of<typename Scan::Held>(), usual ? &sum : nullptr,
             shared, state, nullptr);
}

}  // namespace touchstone::sampling
