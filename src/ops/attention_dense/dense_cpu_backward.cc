// The backward kernels of dense attention, for every SIMD target. See dense_cpu.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/attention_dense/dense_cpu_backward.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which must come first.
#include <algorithm>
#include <cmath>

#include "cpu/exp2.h"
#include "cpu/simd.h"
#include "ops/attention_dense/dense_cpu.h"
#include "ops/attention_dense/dense_cpu_matmul.h"
#include "ops/attention_dense/dense_cpu_scores.h"

HWY_BEFORE_NAMESPACE();
namespace touchstone::dense_attention::HWY_NAMESPACE {

// The scratch memory of a task of either sweep. "Own" rows are packed, "other" rows come in tiles;
// *_k are the factors of the scores (q or k), *_v those of dP (dO or v).
struct BackwardScratch {
  float* own_k;        // [k_dim, kOwn]
  float* own_v;        // [v_dim, kOwn]
  float* weights;      // [tile, kOwn]: scores, then P
  float* dlogits;      // [tile, kOwn]: dP, then dS
  float* other_k;      // [tile, k_dim]
  float* other_v;      // [tile, v_dim]
  float* sum_k;        // [kOwn, k_dim]
  float* sum_v;        // [kOwn, v_dim]
  float* own_rows;     // [kOwn, k_dim]: own keys as they lie in memory
  float* log_sum_exp;  // [tile or kOwn], of the queries, to base 2
  float* delta;        // likewise
  std::size_t floats;

  BackwardScratch(const DenseProblem& p, float* memory) {
    Parts parts(memory);
    const std::size_t tile = tile_tokens(p);
    const std::size_t k_dim = whole_lines(p.k_dim);
    const std::size_t v_dim = whole_lines(p.v_dim);
    own_k = parts.take(k_dim * kOwn);
    own_v = parts.take(v_dim * kOwn);
    weights = parts.take(tile * kOwn);
    dlogits = parts.take(tile * kOwn);
    other_k = parts.take(tile * k_dim);
    other_v = parts.take(tile * v_dim);
    sum_k = parts.take(kOwn * k_dim);
    sum_v = parts.take(kOwn * v_dim);
    own_rows = parts.take(kOwn * k_dim);
    log_sum_exp = parts.take(whole_lines(static_cast<std::int64_t>(std::max(tile, kOwn))));
    delta = parts.take(whole_lines(static_cast<std::int64_t>(std::max(tile, kOwn))));
    floats = parts.taken();
  }
};

// Scores or dP of a tile: the others are A, the own tokens are B.
HWY_INLINE void score_product(std::int64_t dim, const Rows& others, std::size_t count,
                              std::size_t vectors, const float* own, float* to) {
  product<false>({.depth = static_cast<std::size_t>(dim),
                  .rows = count,
                  .vectors = vectors,
                  .a = others.data,
                  .a_row = others.stride,
                  .a_step = 1,
                  .b = own,
                  .b_row = kOwn,
                  .c = to,
                  .c_row = kOwn});
}

HWY_INLINE void score_products(const BackwardProblem& p, const Rows& k, const Rows& v,
                               std::size_t count, std::size_t vectors, const BackwardScratch& s) {
  score_product(p.k_dim, k, count, vectors, s.own_k, s.weights);
  score_product(p.v_dim, v, count, vectors, s.own_v, s.dlogits);
}

// sum[own] += pairs^T others. Where `others` is not finite and the tile not `whole`, only the pairs
// that are not masked.
template <class Seen>
HWY_INLINE void add_others(const float* pairs, const Rows& others, std::size_t count,
                           std::size_t own, std::int64_t dim, float* sum, bool whole,
                           const Seen& seen) {
  const Product product_of{.depth = count,
                           .rows = own,
                           .vectors = in_vectors(dim),
                           .a = pairs,
                           .a_row = 1,
                           .a_step = kOwn,
                           .b = others.data,
                           .b_row = others.stride,
                           .c = sum,
                           .c_row = whole_lines(dim)};
  if (whole || all_finite(others, count, product_of.vectors)) {
    product<true>(product_of);
  } else {
    careful_product(product_of, seen);
  }
}

// P of a score times `factor`, to base 2. Bounded for every log-sum-exp that a caller may pass.
HWY_INLINE V weight_of(V score, V factor, V log_sum_exp) {
  const D d;
  const V exponent = hn::MulSub(score, factor, log_sum_exp);
  return sd::exp2_not_positive(d, hn::Min(hn::Set(d, 127.0F), exponent));
}

// What soft cap, ALiBi and bias make of a product.
struct Shaped {
  V score;
  V factor;  // still to be multiplied with
  V slope;   // of the soft cap
};

HWY_INLINE Shaped shaped(const DenseProblem& p, V product, V added) {
  const D d;
  const V one = hn::Set(d, 1.0F);
  const V factor = hn::Set(d, score_factor(p));
  // With the bits of those tiles that are used as the product leaves them.
  if (!has_score_mod(p)) return {product, factor, one};
  Shaped result{hn::Mul(product, factor), one, one};
  if (p.soft_cap > 0) {
    const V tanh = sd::tanh(d, result.score);
    result.slope = hn::NegMulAdd(tanh, tanh, one);
    result.score = hn::Mul(hn::Set(d, static_cast<float>(p.soft_cap) * kLog2e), tanh);
  }
  result.score = hn::Add(result.score, added);
  return result;
}

// A row's log-sum-exp to base 2; +inf for a fully masked query, so that its weights are 0.
HWY_INLINE float base2_log_sum_exp(const BackwardProblem& p, std::int64_t sequence,
                                   std::int64_t head, std::int64_t token) {
  const float value = *token_of<float>(p.log_sum_exp, sequence, head, token);
  return value == -kInfinity ? kInfinity : value * kLog2e;
}

// ---- dq ---------------------------------------------------------------------------------------

HWY_NOINLINE void plain_query_pairs(const OwnQueries& own, std::size_t keys, float factor,
                                    const BackwardScratch& s) {
  const D d;
  const V f = hn::Set(d, factor);
  for (std::size_t v = 0; v < own.vectors; ++v) {
    const V log_sum_exp = hn::Load(d, s.log_sum_exp + v * kLanes);
    const V delta = hn::Load(d, s.delta + v * kLanes);
    for (std::size_t key = 0; key < keys; ++key) {
      const std::size_t at = key * kOwn + v * kLanes;
      const V weight = weight_of(hn::Load(d, s.weights + at), f, log_sum_exp);
      hn::Store(hn::Mul(weight, hn::Sub(hn::Load(d, s.dlogits + at), delta)), d, s.dlogits + at);
    }
  }
}

// With soft cap, ALiBi, bias and mask; adds to dbias, [keys] per query.
HWY_NOINLINE void query_pairs(const BackwardProblem& p, const OwnQueries& own, const KeyTile& tile,
                              float* const* dbias, const BackwardScratch& s) {
  const D d;
  for (std::size_t key = 0; key < tile.count; ++key) {
    const V x = hn::Set(d, static_cast<float>(key));
    for (std::size_t v = 0; v < own.vectors; ++v) {
      const std::size_t at = key * kOwn + v * kLanes;
      const Shaped shape = shaped(p, hn::Load(d, s.weights + at), own.added(p, tile, v, key));
      const auto seen =
          seen_lanes(x, hn::Load(d, own.begin + v * kLanes), hn::Load(d, own.end + v * kLanes),
                     hn::Load(d, own.sinks + v * kLanes));
      const V weight =
          weight_of(shape.score, shape.factor, hn::Load(d, s.log_sum_exp + v * kLanes));
      const V difference = hn::Sub(hn::Load(d, s.dlogits + at), hn::Load(d, s.delta + v * kLanes));
      const V dlogit = hn::IfThenElseZero(seen, hn::Mul(weight, difference));
      hn::Store(dlogit, d, s.dlogits + at);
      if (p.dbias != nullptr) {
        for (std::size_t i = v * kLanes; i < std::min(own.count, (v + 1) * kLanes); ++i) {
          dbias[i][tile.first + static_cast<std::int64_t>(key)] += s.dlogits[key * kOwn + i];
        }
      }
      if (p.soft_cap > 0) hn::Store(hn::Mul(dlogit, shape.slope), d, s.dlogits + at);
    }
  }
}

template <class T>
HWY_INLINE void query_tile(const BackwardProblem& p, const QueryBlock& block, OwnQueries& own,
                           const KeyTile& tile, float* const* dbias, const BackwardScratch& s) {
  const SequenceSpan span = span_of(p, block.sequence);
  const std::int64_t kv_head = block.first_head / p.heads_per_kv;
  const std::int64_t first = span.first_key + tile.first;
  const Rows k = rows_of<T>(p.k, block.sequence, kv_head, first, tile.count, p.k_dim, s.other_k);
  const Rows v = rows_of<T>(p.v, block.sequence, kv_head, first, tile.count, p.v_dim, s.other_v);
  score_products(p, k, v, tile.count, own.vectors, s);
  if (tile.whole && !has_score_mod(p)) {
    plain_query_pairs(own, tile.count, score_factor(p), s);
  } else {
    own.face(tile);
    query_pairs(p, own, tile, dbias, s);
  }
  add_others(s.dlogits, k, tile.count, own.count, p.k_dim, s.sum_k, tile.whole,
             [&](std::size_t key, std::size_t i) { return own.attends_key(i, key); });
}

template <class T>
HWY_INLINE void query_block(const BackwardProblem& p, const QueryBlock& block, const float* delta,
                            float* memory) {
  const BackwardScratch s(p, memory);
  const SequenceSpan span = span_of(p, block.sequence);
  OwnQueries own(p, block);
  std::fill(s.own_k, s.own_k + whole_lines(p.k_dim) * kOwn, 0.0F);
  std::fill(s.own_v, s.own_v + whole_lines(p.v_dim) * kOwn, 0.0F);
  std::fill(s.sum_k, s.sum_k + own.count * whole_lines(p.k_dim), 0.0F);
  std::fill(s.log_sum_exp, s.log_sum_exp + kOwn, 0.0F);
  std::fill(s.delta, s.delta + kOwn, 0.0F);
  float* dbias[kOwn] = {};
  for (std::size_t i = 0; i < own.count; ++i) {
    const std::int64_t query = OwnQueries::query_of(block, i);
    const std::int64_t head = OwnQueries::head_of(block, i);
    const std::int64_t token = span.first_query + query;
    const std::int64_t row = row_index(p, span, block.sequence, head, query);
    s.log_sum_exp[i] = base2_log_sum_exp(p, block.sequence, head, token);
    s.delta[i] = delta[row];
    if (s.log_sum_exp[i] == kInfinity) own.mask_fully(i);
    pack_column(token_of<T>(p.q, block.sequence, head, token), p.k_dim, 1.0F, s.own_k, i);
    pack_column(token_of<T>(p.doutput, block.sequence, head, token), p.v_dim, 1.0F, s.own_v, i);
    if (p.dbias != nullptr) {
      const std::int64_t b = p.dbias_batch == 1 ? 0 : block.sequence;
      const std::int64_t h = p.dbias_heads == 1 ? 0 : head;
      dbias[i] =
          static_cast<float*>(p.dbias) + ((b * p.dbias_heads + h) * p.queries + query) * p.keys;
    }
  }
  own.find_extent();
  own.for_each_tile(backward_key_tile(p),
                    [&](const KeyTile& tile) { query_tile<T>(p, block, own, tile, dbias, s); });
  for (std::size_t i = 0; i < own.count; ++i) {
    store_row(s.sum_k + i * whole_lines(p.k_dim), p.k_dim, static_cast<float>(p.scale),
              token_of<T>(p.dq, block.sequence, OwnQueries::head_of(block, i),
                          span.first_query + OwnQueries::query_of(block, i)));
  }
}

// ---- dk, dv -----------------------------------------------------------------------------------

// A run of queries of one head, and which own keys each attends to, in lanes.
struct QueryTile {
  std::int64_t first = 0;
  std::size_t count = 0;
  bool whole = true;
  float begin[kMaxKeyTile];
  float end[kMaxKeyTile];
  float sinks[kMaxKeyTile];

  bool attends_key(std::size_t query, std::size_t key) const {
    const auto k = static_cast<float>(key);
    return (k >= begin[query] && k < end[query]) || k < sinks[query];
  }
};

// Of queries [first, end) those from the first to the last that attends to an own key.
template <class Empty>
HWY_INLINE void find_queries(const BackwardProblem& p, const SequenceSpan& span,
                             const KeyBlock& block, std::int64_t first, std::int64_t end,
                             const Empty& is_fully_masked, QueryTile& tile) {
  const auto keys = static_cast<std::size_t>(block.keys);
  tile.first = first;
  tile.count = 0;
  tile.whole = true;
  std::size_t used = 0;
  for (std::int64_t query = first; query < end; ++query) {
    const VisibleRange visible = visible_range(p, span, query);
    const bool empty = is_fully_masked(query);
    const std::size_t at = tile.count;
    tile.begin[at] = empty ? 0 : clamped(visible.begin - block.first_key, keys);
    tile.end[at] = empty ? 0 : clamped(visible.end - block.first_key, keys);
    tile.sinks[at] = empty ? 0 : clamped(visible.sinks - block.first_key, keys);
    const bool some = tile.begin[at] < tile.end[at] || tile.sinks[at] > 0;
    if (!some && used == 0) {
      ++tile.first;
      continue;
    }
    ++tile.count;
    if (some) used = tile.count;
  }
  tile.count = used;
  for (std::size_t i = 0; i < used; ++i) {
    const bool all = (tile.begin[i] == 0 && tile.end[i] == static_cast<float>(keys)) ||
                     tile.sinks[i] == static_cast<float>(keys);
    tile.whole = tile.whole && all;
  }
}

HWY_NOINLINE void plain_key_pairs(const QueryTile& tile, std::size_t vectors, float factor,
                                  const BackwardScratch& s) {
  const D d;
  const V f = hn::Set(d, factor);
  for (std::size_t query = 0; query < tile.count; ++query) {
    const V log_sum_exp = hn::Set(d, s.log_sum_exp[query]);
    const V delta = hn::Set(d, s.delta[query]);
    for (std::size_t v = 0; v < vectors; ++v) {
      const std::size_t at = query * kOwn + v * kLanes;
      const V weight = weight_of(hn::Load(d, s.weights + at), f, log_sum_exp);
      hn::Store(weight, d, s.weights + at);
      hn::Store(hn::Mul(weight, hn::Sub(hn::Load(d, s.dlogits + at), delta)), d, s.dlogits + at);
    }
  }
}

// With soft cap, ALiBi, bias and mask. dS here is that of the product, with the slope of the cap.
HWY_NOINLINE void key_pairs(const BackwardProblem& p, const SequenceSpan& span,
                            const KeyBlock& block, std::int64_t head, const QueryTile& tile,
                            std::size_t vectors, const BackwardScratch& s) {
  const D d;
  const float alibi =
      p.alibi_slopes == nullptr ? 0 : static_cast<const float*>(p.alibi_slopes)[head] * kLog2e;
  for (std::size_t query = 0; query < tile.count; ++query) {
    const std::int64_t index = tile.first + static_cast<std::int64_t>(query);
    const std::int64_t position = index + span.keys - span.queries;
    const V distance = hn::Set(d, static_cast<float>(position - block.first_key));
    const float* const bias =
        p.bias == nullptr ? nullptr
                          : static_cast<const float*>(p.bias) +
                                block.sequence * p.bias_batch_stride + head * p.bias_head_stride +
                                index * p.bias_query_stride + block.first_key * p.bias_key_stride;
    for (std::size_t v = 0; v < vectors; ++v) {
      const std::size_t at = query * kOwn + v * kLanes;
      const V key = hn::Iota(d, static_cast<float>(v * kLanes));
      V added = hn::Zero(d);
      if (p.alibi_slopes != nullptr) {
        added = hn::NegMulAdd(hn::Set(d, alibi), hn::Abs(hn::Sub(distance, key)), added);
      }
      if (bias != nullptr) {
        alignas(64) float from[kLanes];
        for (std::size_t i = 0; i < kLanes; ++i) {
          const auto lane = static_cast<std::int64_t>(v * kLanes + i);
          from[i] = lane < block.keys ? bias[lane * p.bias_key_stride] : 0.0F;
        }
        added = hn::MulAdd(hn::Load(d, from), hn::Set(d, kLog2e), added);
      }
      const Shaped shape = shaped(p, hn::Load(d, s.weights + at), added);
      const auto seen = seen_lanes(key, hn::Set(d, tile.begin[query]), hn::Set(d, tile.end[query]),
                                   hn::Set(d, tile.sinks[query]));
      const V weight = hn::IfThenElseZero(
          seen, weight_of(shape.score, shape.factor, hn::Set(d, s.log_sum_exp[query])));
      const V difference = hn::Sub(hn::Load(d, s.dlogits + at), hn::Set(d, s.delta[query]));
      hn::Store(weight, d, s.weights + at);
      hn::Store(hn::IfThenElseZero(seen, hn::Mul(hn::Mul(weight, difference), shape.slope)), d,
                s.dlogits + at);
    }
  }
}

// The own keys as they lie in memory.
struct OwnKeys {
  std::size_t count = 0;
  Rows rows{};
  bool finite = true;
};

// dQ[i] += dS K of the own keys, for queries [begin, end) of a tile.
HWY_INLINE void add_own_keys(const BackwardProblem& p, const QueryTile& tile, std::size_t begin,
                             std::size_t end, const OwnKeys& own, float* dq,
                             const BackwardScratch& s) {
  const std::size_t row = whole_lines(p.k_dim);
  const Product queries{.depth = own.count,
                        .rows = end - begin,
                        .vectors = in_vectors(p.k_dim),
                        .a = s.dlogits + begin * kOwn,
                        .a_row = kOwn,
                        .a_step = 1,
                        .b = own.rows.data,
                        .b_row = own.rows.stride,
                        .c = dq + (static_cast<std::size_t>(tile.first) + begin) * row,
                        .c_row = row};
  if (tile.whole || own.finite) {
    product<true>(queries);
  } else {
    careful_product(queries, [&](std::size_t key, std::size_t query) {
      return tile.attends_key(begin + query, key);
    });
  }
}

template <class T>
HWY_INLINE void store_queries(const BackwardProblem& p, const QueryBlock& block, const float* dq) {
  const SequenceSpan span = span_of(p, block.sequence);
  for (std::size_t v = 0; v < block.vectors(); ++v) {
    const std::int64_t query = OwnQueries::query_of(block, v);
    const std::int64_t head = OwnQueries::head_of(block, v);
    const std::int64_t row = head % p.heads_per_kv * span.queries + query;
    store_row(dq + static_cast<std::size_t>(row) * whole_lines(p.k_dim), p.k_dim,
              static_cast<float>(p.scale),
              token_of<T>(p.dq, block.sequence, head, span.first_query + query));
  }
}

// The same for all of the tile, queries [first, end) of a head, when it is the block's turn. The
// last block they attend to stores the sums.
template <class T>
HWY_INLINE void add_in_turns(const BackwardProblem& p, const KeyBlock& block, std::int64_t member,
                             const QueryTile& tile, std::int64_t first, std::int64_t end,
                             const OwnKeys& own, const FusedQueries& fused,
                             const BackwardScratch& s) {
  const SequenceSpan span = span_of(p, block.sequence);
  const std::int64_t number = block.first_key / static_cast<std::int64_t>(kOwn);
  const bool is_last = number + 1 == key_blocks_of(p, span, first, end).end;
  float* const dq =
      fused.dq + static_cast<std::size_t>(member * span.queries) * whole_lines(p.k_dim);
  std::atomic<std::int64_t>* turns =
      fused.turns + member * turns_of(p, span.queries) + turns_of(p, first);
  const auto place = [&](std::int64_t query) {
    return static_cast<std::size_t>(
        std::clamp<std::int64_t>(query - tile.first, 0, static_cast<std::int64_t>(tile.count)));
  };
  for (std::int64_t at = first; at < end; at += kTurnQueries, ++turns) {
    const std::int64_t queries = std::min(kTurnQueries, end - at);
    const std::size_t from = place(at);
    const std::size_t to = place(at + queries);
    wait_for_turn(*turns, number);
    if (from < to) add_own_keys(p, tile, from, to, own, dq, s);
    if (is_last) {
      const std::int64_t head = block.kv_head * p.heads_per_kv + member;
      store_queries<T>(p, {block.sequence, head, 1, at, queries}, fused.dq);
    }
    turns->store(number + 1, std::memory_order_release);
  }
}

// What the queries of a tile do to the own keys; leaves dS behind.
template <class T>
HWY_INLINE void key_tile(const BackwardProblem& p, const KeyBlock& block, std::int64_t head,
                         const float* delta, const QueryTile& tile, const BackwardScratch& s) {
  const SequenceSpan span = span_of(p, block.sequence);
  const auto own = static_cast<std::size_t>(block.keys);
  const std::size_t vectors = in_vectors(own);
  const std::int64_t first = span.first_query + tile.first;
  const Rows q = rows_of<T>(p.q, block.sequence, head, first, tile.count, p.k_dim, s.other_k);
  const Rows doutput =
      rows_of<T>(p.doutput, block.sequence, head, first, tile.count, p.v_dim, s.other_v);
  const std::int64_t first_row = row_index(p, span, block.sequence, head, tile.first);
  for (std::size_t i = 0; i < tile.count; ++i) {
    const auto at = static_cast<std::int64_t>(i);
    s.log_sum_exp[i] = base2_log_sum_exp(p, block.sequence, head, first + at);
    s.delta[i] = delta[first_row + at];
  }
  score_products(p, q, doutput, tile.count, vectors, s);
  if (tile.whole && !has_score_mod(p)) {
    plain_key_pairs(tile, vectors, score_factor(p), s);
  } else {
    key_pairs(p, span, block, head, tile, vectors, s);
  }
  const auto seen = [&](std::size_t query, std::size_t key) {
    return tile.attends_key(query, key);
  };
  add_others(s.weights, doutput, tile.count, own, p.v_dim, s.sum_v, tile.whole, seen);
  add_others(s.dlogits, q, tile.count, own, p.k_dim, s.sum_k, tile.whole, seen);
}

// All that one query head does to the own keys, and, where `fused` has a dq, they to it. From the
// last tile of queries to the first: what is causal then begins where all blocks of keys have work,
// and none waits for its turn.
template <class T>
HWY_INLINE void key_block_head(const BackwardProblem& p, const KeyBlock& block, std::int64_t member,
                               const float* delta, const FusedQueries& fused, QueryTile& tile,
                               const BackwardScratch& s) {
  const SequenceSpan span = span_of(p, block.sequence);
  const auto step = static_cast<std::int64_t>(tile_tokens(p));
  const std::int64_t head = block.kv_head * p.heads_per_kv + member;
  const std::int64_t number = block.first_key / static_cast<std::int64_t>(kOwn);
  OwnKeys own{.count = static_cast<std::size_t>(block.keys)};
  float* dq = nullptr;
  if (fused.dq != nullptr) {
    dq = fused.dq + static_cast<std::size_t>(member * span.queries) * whole_lines(p.k_dim);
    own.rows = rows_of<T>(p.k, block.sequence, block.kv_head, span.first_key + block.first_key,
                          own.count, p.k_dim, s.own_rows);
    own.finite = all_finite(own.rows, own.count, in_vectors(p.k_dim));
  }
  for (std::int64_t n = ceil_div(span.queries, step); n-- > 0;) {
    const std::int64_t first = n * step;
    const std::int64_t end = std::min(span.queries, first + step);
    if (!key_blocks_of(p, span, first, end).has(number)) continue;
    find_queries(
        p, span, block, first, end,
        [&](std::int64_t query) {
          return *token_of<float>(p.log_sum_exp, block.sequence, head, span.first_query + query) ==
                 -kInfinity;
        },
        tile);
    if (tile.count > 0) key_tile<T>(p, block, head, delta, tile, s);
    if (fused.turns != nullptr) {
      add_in_turns<T>(p, block, member, tile, first, end, own, fused, s);
    } else if (dq != nullptr) {
      add_own_keys(p, tile, 0, tile.count, own, dq, s);
    }
  }
}

template <class T>
HWY_INLINE void key_block(const BackwardProblem& p, const KeyBlock& block, const float* delta,
                          const FusedQueries& fused, float* memory) {
  const BackwardScratch s(p, memory);
  const SequenceSpan span = span_of(p, block.sequence);
  const auto own = static_cast<std::size_t>(block.keys);
  std::fill(s.own_k, s.own_k + whole_lines(p.k_dim) * kOwn, 0.0F);
  std::fill(s.own_v, s.own_v + whole_lines(p.v_dim) * kOwn, 0.0F);
  std::fill(s.sum_k, s.sum_k + own * whole_lines(p.k_dim), 0.0F);
  std::fill(s.sum_v, s.sum_v + own * whole_lines(p.v_dim), 0.0F);
  for (std::size_t i = 0; i < own; ++i) {
    const std::int64_t token = span.first_key + block.first_key + static_cast<std::int64_t>(i);
    pack_column(token_of<T>(p.k, block.sequence, block.kv_head, token), p.k_dim, 1.0F, s.own_k, i);
    pack_column(token_of<T>(p.v, block.sequence, block.kv_head, token), p.v_dim, 1.0F, s.own_v, i);
  }
  QueryTile tile;
  for (std::int64_t member = 0; member < p.heads_per_kv; ++member) {
    key_block_head<T>(p, block, member, delta, fused, tile, s);
  }
  for (std::size_t i = 0; i < own; ++i) {
    const std::int64_t token = span.first_key + block.first_key + static_cast<std::int64_t>(i);
    store_row(s.sum_k + i * whole_lines(p.k_dim), p.k_dim, static_cast<float>(p.scale),
              token_of<T>(p.dk, block.sequence, block.kv_head, token));
    store_row(s.sum_v + i * whole_lines(p.v_dim), p.v_dim, 1.0F,
              token_of<T>(p.dv, block.sequence, block.kv_head, token));
  }
}

// ---- delta ------------------------------------------------------------------------------------

template <class T>
HWY_INLINE float dot(const T* a, const T* b, std::int64_t dim) {
  const D d;
  const auto n = static_cast<std::size_t>(dim);
  V sum = hn::Zero(d);
  for (std::size_t i = 0; i < n; i += kLanes) {
    const std::size_t some = std::min(kLanes, n - i);
    sum = hn::MulAdd(sd::load_some(d, a + i, some), sd::load_some(d, b + i, some), sum);
  }
  return sd::sum_lanes(d, sum);
}

template <class T>
HWY_INLINE void delta_block(const BackwardProblem& p, const QueryBlock& block, float* delta) {
  const SequenceSpan span = span_of(p, block.sequence);
  for (std::size_t i = 0; i < block.vectors(); ++i) {
    const std::int64_t query = OwnQueries::query_of(block, i);
    const std::int64_t head = OwnQueries::head_of(block, i);
    const std::int64_t token = span.first_query + query;
    const std::int64_t row = row_index(p, span, block.sequence, head, query);
    delta[row] = dot(token_of<T>(p.doutput, block.sequence, head, token),
                     token_of<T>(p.output, block.sequence, head, token), p.v_dim);
    if (p.dlog_sum_exp.data != nullptr) {
      delta[row] -= *token_of<float>(p.dlog_sum_exp, block.sequence, head, token);
    }
  }
}

void run_queries(const BackwardProblem& p, const QueryBlock& block, const float* delta,
                 float* scratch) {
  visit_type(p, [&]<class T>() { query_block<T>(p, block, delta, scratch); });
}
void run_keys(const BackwardProblem& p, const KeyBlock& block, const float* delta,
              const FusedQueries& fused, float* scratch) {
  visit_type(p, [&]<class T>() { key_block<T>(p, block, delta, fused, scratch); });
}
void run_store(const BackwardProblem& p, const QueryBlock& block, const float* dq) {
  visit_type(p, [&]<class T>() { store_queries<T>(p, block, dq); });
}
void run_delta(const BackwardProblem& p, const QueryBlock& block, float* delta) {
  visit_type(p, [&]<class T>() { delta_block<T>(p, block, delta); });
}
std::size_t backward_size(const DenseProblem& p) { return BackwardScratch(p, nullptr).floats; }

}  // namespace touchstone::dense_attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace touchstone::dense_attention {

HWY_EXPORT(run_queries);
HWY_EXPORT(run_keys);
HWY_EXPORT(run_delta);
HWY_EXPORT(run_store);
HWY_EXPORT(backward_size);

std::size_t backward_floats(const DenseProblem& p) {
  return HWY_DYNAMIC_DISPATCH(backward_size)(p);
}
void run_query_block(const BackwardProblem& p, const QueryBlock& block, const float* delta,
                     float* scratch) {
  HWY_DYNAMIC_DISPATCH(run_queries)(p, block, delta, scratch);
}
void run_key_block(const BackwardProblem& p, const KeyBlock& block, const float* delta,
                   const FusedQueries& fused, float* scratch) {
  HWY_DYNAMIC_DISPATCH(run_keys)(p, block, delta, fused, scratch);
}
void store_fused_queries(const BackwardProblem& p, const QueryBlock& block, const float* dq) {
  HWY_DYNAMIC_DISPATCH(run_store)(p, block, dq);
}
std::size_t fused_row_floats(const DenseProblem& p) {
  return (static_cast<std::size_t>(p.k_dim) + 15) / 16 * 16;
}
void run_delta_block(const BackwardProblem& p, const QueryBlock& block, float* delta) {
  HWY_DYNAMIC_DISPATCH(run_delta)(p, block, delta);
}

}  // namespace touchstone::dense_attention
#endif  // HWY_ONCE
