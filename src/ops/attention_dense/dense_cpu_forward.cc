// The forward kernel of dense attention, for every SIMD target. See dense_cpu.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/attention_dense/dense_cpu_forward.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which must come first.
#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/exp2.h"
#include "cpu/simd.h"
#include "ops/attention_dense/dense_cpu.h"
#include "ops/attention_dense/dense_cpu_matmul.h"
#include "ops/attention_dense/dense_cpu_scores.h"

HWY_BEFORE_NAMESPACE();
namespace touchstone::dense_attention::HWY_NAMESPACE {

// The scratch memory of a task.
struct ForwardScratch {
  float* q;        // [k_dim, kOwn]
  float* scores;   // [tile, kOwn]
  float* output;   // [kOwn, v_dim]
  float* keys;     // [tile, k_dim]
  float* values;   // [tile, v_dim]
  float* largest;  // [kOwn]: the largest score so far
  float* sums;     // [kOwn]: of weights, relative to it
  float* factors;  // [kOwn]: of what was summed before the tile at hand
  std::size_t floats;

  ForwardScratch(const DenseProblem& p, float* memory) {
    Parts parts(memory);
    const std::size_t tile = tile_tokens(p);
    q = parts.take(static_cast<std::size_t>(p.k_dim) * kOwn);
    scores = parts.take(tile * kOwn);
    output = parts.take(kOwn * whole_lines(p.v_dim));
    keys = parts.take(tile * whole_lines(p.k_dim));
    values = parts.take(tile * whole_lines(p.v_dim));
    largest = parts.take(kOwn);
    sums = parts.take(kOwn);
    factors = parts.take(kOwn);
    floats = parts.taken();
  }
};

// Soft cap, ALiBi, bias and mask: the scores as the softmax takes them.
HWY_NOINLINE void finish_scores(const DenseProblem& p, const OwnQueries& own, const KeyTile& tile,
                                float* scores) {
  const D d;
  const V cap = hn::Set(d, static_cast<float>(p.soft_cap) * kLog2e);
  const bool added = p.alibi_slopes != nullptr || p.bias != nullptr;
  for (std::size_t key = 0; key < tile.count; ++key) {
    const V x = hn::Set(d, static_cast<float>(key));
    for (std::size_t v = 0; v < own.vectors; ++v) {
      float* const at = scores + key * kOwn + v * kLanes;
      V s = hn::Load(d, at);
      if (p.soft_cap > 0) s = hn::Mul(cap, sd::tanh(d, s));
      if (added) s = hn::Add(s, own.added(p, tile, v, key));
      if (!tile.whole) {
        const auto seen =
            seen_lanes(x, hn::Load(d, own.begin + v * kLanes), hn::Load(d, own.end + v * kLanes),
                       hn::Load(d, own.sinks + v * kLanes));
        s = hn::IfThenElse(seen, s, hn::Set(d, -kInfinity));
      }
      hn::Store(s, d, at);
    }
  }
}

// Turns scores into weights relative to the largest score so far, kVectors vectors of queries.
template <std::size_t kVectors>
HWY_INLINE void softmax_vectors(std::size_t keys, float* scores, const ForwardScratch& s,
                                std::size_t first) {
  const D d;
  V most[kVectors];
  V before[kVectors];
  for (std::size_t v = 0; v < kVectors; ++v) {
    before[v] = most[v] = hn::Load(d, s.largest + first + v * kLanes);
  }
  for (std::size_t key = 0; key < keys; ++key) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      most[v] = hn::Max(most[v], hn::Load(d, scores + key * kOwn + first + v * kLanes));
    }
  }
  V base[kVectors];
  V sums[kVectors];
  for (std::size_t v = 0; v < kVectors; ++v) {
    // Fully masked so far: -inf - (-inf) would be NaN, and every weight is 0 relative to 0 as well.
    const auto nothing = hn::Eq(most[v], hn::Set(d, -kInfinity));
    base[v] = hn::IfThenZeroElse(nothing, most[v]);
    sums[v] = hn::Zero(d);
    hn::Store(most[v], d, s.largest + first + v * kLanes);
  }
  for (std::size_t key = 0; key < keys; ++key) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      float* const at = scores + key * kOwn + first + v * kLanes;
      const V weight = sd::exp2_not_positive(d, hn::Sub(hn::Load(d, at), base[v]));
      hn::Store(weight, d, at);
      sums[v] = hn::Add(sums[v], weight);
    }
  }
  for (std::size_t v = 0; v < kVectors; ++v) {
    const std::size_t at = first + v * kLanes;
    const V factor = sd::exp2_not_positive(d, hn::Sub(before[v], base[v]));
    hn::Store(factor, d, s.factors + at);
    hn::Store(hn::MulAdd(factor, hn::Load(d, s.sums + at), sums[v]), d, s.sums + at);
  }
}

HWY_NOINLINE void softmax_tile(const OwnQueries& own, std::size_t keys, const ForwardScratch& s) {
  std::size_t v = 0;
  for (; v + 4 <= own.vectors; v += 4) softmax_vectors<4>(keys, s.scores, s, v * kLanes);
  for (; v < own.vectors; ++v) softmax_vectors<1>(keys, s.scores, s, v * kLanes);
}

template <class T>
HWY_INLINE void meet_tile(const ForwardProblem& p, const QueryBlock& block, OwnQueries& own,
                          const KeyTile& tile, const ForwardScratch& s) {
  const SequenceSpan span = span_of(p, block.sequence);
  const std::int64_t kv_head = block.first_head / p.heads_per_kv;
  const std::int64_t first = span.first_key + tile.first;
  const Rows k = rows_of<T>(p.k, block.sequence, kv_head, first, tile.count, p.k_dim, s.keys);
  const Rows v = rows_of<T>(p.v, block.sequence, kv_head, first, tile.count, p.v_dim, s.values);
  product<false>({.depth = static_cast<std::size_t>(p.k_dim),
                  .rows = tile.count,
                  .vectors = own.vectors,
                  .a = k.data,
                  .a_row = k.stride,
                  .a_step = 1,
                  .b = s.q,
                  .b_row = kOwn,
                  .c = s.scores,
                  .c_row = kOwn});
  if (!tile.whole || has_score_mod(p)) {
    own.face(tile);
    finish_scores(p, own, tile, s.scores);
  }
  softmax_tile(own, tile.count, s);
  const Product values{.depth = tile.count,
                       .rows = own.count,
                       .vectors = in_vectors(p.v_dim),
                       .a = s.scores,
                       .a_row = 1,
                       .a_step = kOwn,
                       .b = v.data,
                       .b_row = v.stride,
                       .c = s.output,
                       .c_row = whole_lines(p.v_dim),
                       .factors = s.factors};
  if (tile.whole || all_finite(v, tile.count, values.vectors)) {
    product<true>(values);
  } else {
    careful_product(values,
                    [&](std::size_t key, std::size_t i) { return own.attends_key(i, key); });
  }
}

// ---- overflow ---------------------------------------------------------------------------------

// The largest magnitude of a vector; NaN or infinity if there is one.
template <class T>
HWY_INLINE float largest_magnitude(const T* from, std::int64_t dim) {
  float largest = 0;
  for (std::int64_t i = 0; i < dim; ++i) {
    const float x = std::fabs(convert<float>(from[i]));
    if (!(x <= largest)) largest = x;
    if (!(x < kInfinity)) return x;
  }
  return largest;
}

// Whether f32 sums of this query overflowed although all its numbers are finite: then the result is
// not finite, or all scores are -inf that the exact ones are not. The cost of looking is that of
// the sums at most, and ordinary results are not looked at.
template <class T>
HWY_NOINLINE bool has_overflowed(const ForwardProblem& p, const QueryBlock& block,
                                 const VisibleRange& visible, std::int64_t head, std::int64_t query,
                                 bool masked) {
  const SequenceSpan span = span_of(p, block.sequence);
  const std::int64_t kv_head = head / p.heads_per_kv;
  const float q =
      largest_magnitude(token_of<T>(p.q, block.sequence, head, span.first_query + query), p.k_dim);
  float k = 0;
  for (std::int64_t t = 0; t < visible.end; ++t) {
    if (!attends(visible, t)) continue;
    const std::int64_t token = span.first_key + t;
    const float key = largest_magnitude(token_of<T>(p.k, block.sequence, kv_head, token), p.k_dim);
    const float value =
        largest_magnitude(token_of<T>(p.v, block.sequence, kv_head, token), p.v_dim);
    if (!(key < kInfinity && value < kInfinity)) return false;
    k = std::max(k, key);
    if (p.bias == nullptr) continue;
    const float bias = static_cast<const float*>(
        p.bias)[block.sequence * p.bias_batch_stride + head * p.bias_head_stride +
                query * p.bias_query_stride + t * p.bias_key_stride];
    if (!(bias < kInfinity)) return false;
  }
  if (!(q < kInfinity)) return false;
  // Half of the largest float: what is added to a score is not counted.
  const double score = std::fabs(p.scale) * 1.45 * static_cast<double>(p.k_dim) *
                       static_cast<double>(q) * static_cast<double>(k);
  return !masked || score >= 0.5 * static_cast<double>(std::numeric_limits<float>::max());
}

// ---- end --------------------------------------------------------------------------------------

HWY_INLINE bool is_finite(const float* row, std::int64_t dim, float factor) {
  const D d;
  const auto n = static_cast<std::size_t>(dim);
  V sum = hn::Zero(d);
  for (std::size_t i = 0; i < n; i += kLanes) {
    const V x = hn::Mul(sd::load_some(d, row + i, std::min(kLanes, n - i)), hn::Set(d, factor));
    sum = hn::MulAdd(hn::Zero(d), x, sum);
  }
  return sd::sum_lanes(d, sum) == 0;  // 0 * x is NaN for infinity and for NaN
}

// Adds the sink, divides by the sum and stores.
template <class T>
HWY_INLINE void finish_queries(const ForwardProblem& p, const QueryBlock& block,
                               const OwnQueries& own, const ForwardScratch& s) {
  const SequenceSpan span = span_of(p, block.sequence);
  const auto* const sinks = static_cast<const float*>(p.sink_logits);
  for (std::size_t i = 0; i < block.vectors(); ++i) {
    const std::int64_t query = OwnQueries::query_of(block, i);
    const std::int64_t head = OwnQueries::head_of(block, i);
    const float sink = sinks == nullptr ? -kInfinity : sinks[head] * kLog2e;
    const Finished finished = finish_softmax(s.largest[i], s.sums[i], sink);
    const float* const row = s.output + i * whole_lines(p.v_dim);
    const VisibleRange& visible = own.visible[i];
    const bool masked = s.largest[i] == -kInfinity;
    if ((masked && visible.end > 0) || !(finished.log_sum_exp < kInfinity) ||
        !is_finite(row, p.v_dim, finished.factor)) {
      if (has_overflowed<T>(p, block, visible, head, query, masked)) {
        attention_plain_query(p, block.sequence, head, query);
        continue;
      }
    }
    if (p.log_sum_exp.data != nullptr) {
      *token_of<float>(p.log_sum_exp, block.sequence, head, span.first_query + query) =
          finished.log_sum_exp;
    }
    store_row(row, p.v_dim, finished.factor,
              token_of<T>(p.output, block.sequence, head, span.first_query + query));
  }
}

template <class T>
HWY_INLINE void forward_block(const ForwardProblem& p, const QueryBlock& block, float* memory) {
  const ForwardScratch s(p, memory);
  const SequenceSpan span = span_of(p, block.sequence);
  OwnQueries own(p, block);
  own.find_extent();
  std::fill(s.q, s.q + static_cast<std::size_t>(p.k_dim) * kOwn, 0.0F);
  for (std::size_t i = 0; i < own.count; ++i) {
    pack_column(token_of<T>(p.q, block.sequence, OwnQueries::head_of(block, i),
                            span.first_query + OwnQueries::query_of(block, i)),
                p.k_dim, score_factor(p), s.q, i);
  }
  std::fill(s.output, s.output + own.count * whole_lines(p.v_dim), 0.0F);
  std::fill(s.largest, s.largest + kOwn, -kInfinity);
  std::fill(s.sums, s.sums + kOwn, 0.0F);
  own.for_each_tile(tile_tokens(p),
                    [&](const KeyTile& tile) { meet_tile<T>(p, block, own, tile, s); });
  finish_queries<T>(p, block, own, s);
}

void run_forward(const ForwardProblem& p, const QueryBlock& block, float* scratch) {
  visit_type(p, [&]<class T>() { forward_block<T>(p, block, scratch); });
}

std::size_t forward_size(const DenseProblem& p) { return ForwardScratch(p, nullptr).floats; }

}  // namespace touchstone::dense_attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace touchstone::dense_attention {

HWY_EXPORT(run_forward);
HWY_EXPORT(forward_size);

std::size_t forward_floats(const DenseProblem& p) { return HWY_DYNAMIC_DISPATCH(forward_size)(p); }
void run_forward_block(const ForwardProblem& p, const QueryBlock& block, float* scratch) {
  HWY_DYNAMIC_DISPATCH(run_forward)(p, block, scratch);
}

}  // namespace touchstone::dense_attention
#endif  // HWY_ONCE
