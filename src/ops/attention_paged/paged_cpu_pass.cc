// The kernels of cached_attention, for every SIMD target: one pass over the tokens of a split, and
// what comes before and after. See paged_cpu.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/attention_paged/paged_cpu_pass.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which must come first.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "cache/rotation.h"
#include "cpu/exp2.h"
#include "cpu/simd.h"
#include "ops/attention_common/cpu_softmax_finish.h"
#include "ops/attention_paged/paged_cpu.h"
#include "ops/attention_paged/paged_cpu_int8_vnni.h"
#include "ops/attention_paged/paged_cpu_tile.h"

HWY_BEFORE_NAMESPACE();
namespace touchstone::paged_attention::HWY_NAMESPACE {

using attention_common::HWY_NAMESPACE::exp2_scalar;
using attention_common::HWY_NAMESPACE::finish_softmax;
using attention_common::HWY_NAMESPACE::Finished;
using attention_common::HWY_NAMESPACE::kInfinity;
using attention_common::HWY_NAMESPACE::kLog2e;

// Query vectors that a kernel works on at a time: registers hold their sums. A block of fewer is
// filled up, a single one has a kernel of its own.
constexpr std::size_t kBlock = std::min<std::size_t>(4, kLanes);
// Tokens of a tile at most, which is read for all query vectors before the next; fewer where its
// tokens are decoded beforehand. Long ones have fewer beginnings, where keys are transposed and
// nothing is multiplied; on short vectors their scales would take too much of the stack.
constexpr std::size_t kTile = kLanes == 16 ? 128 : 64;
constexpr std::size_t kDecodedTile = 16;
// Tokens whose scales are assumed to lie in one cache line when it is prefetched.
constexpr std::size_t kScalesFetch = 8;
// Before the numbers of a partial result: the largest score, the sum of weights.
constexpr std::size_t kPartialHead = 16;

std::size_t padded(std::int64_t dim) {
  return (static_cast<std::size_t>(dim) + kLanes - 1) / kLanes * kLanes;
}
std::size_t query_size(const PagedAttentionProblem& p) {
  const std::size_t dim = padded(p.layers.k_dim);
  return dim + (uses_limbs(p.layers.k, p.layers.k_dim) ? limbs_floats(dim) : 0);
}
std::size_t partial_size(const PagedAttentionProblem& p) {
  return kPartialHead + (padded(p.layers.v_dim) + 15) / 16 * 16;
}

// ---- softmax ----------------------------------------------------------------------------------

// Turns the scores of one query into weights; fills in the head of its partial result.
HWY_INLINE void softmax(const PagedAttentionProblem& p, std::size_t tokens, float* scores,
                        float* partial) {
  const D d;
  if (tokens % kLanes != 0) {
    std::fill(scores + tokens, scores + (tokens + kLanes - 1) / kLanes * kLanes, -kInfinity);
  }
  if (p.soft_cap > 0) {
    const V cap = hn::Set(d, p.soft_cap * kLog2e);
    for (std::size_t t = 0; t < tokens; t += kLanes) {
      const V s = hn::LoadU(d, scores + t);
      hn::StoreU(hn::Mul(cap, sd::tanh(d, s)), d, scores + t);
    }
    for (std::size_t t = tokens; t % kLanes != 0; ++t) scores[t] = -kInfinity;
  }
  V most = hn::Set(d, -kInfinity);
  for (std::size_t t = 0; t < tokens; t += kLanes) most = hn::Max(most, hn::LoadU(d, scores + t));
  partial[0] = hn::GetLane(hn::MaxOfLanes(d, most));
  partial[1] = 0;
  if (partial[0] == -kInfinity) {
    // Nothing but -inf, or NaN that the maximum has ignored.
    const bool nan = std::any_of(scores, scores + tokens, [](float s) { return std::isnan(s); });
    if (nan) partial[0] = std::numeric_limits<float>::quiet_NaN();
    if (!nan) return;
  }
  const V largest = hn::Set(d, partial[0]);
  V sum = hn::Zero(d);
  for (std::size_t t = 0; t < tokens; t += kLanes) {
    const V weight = sd::exp2_not_positive(d, hn::Sub(hn::LoadU(d, scores + t), largest));
    hn::StoreU(weight, d, scores + t);
    sum = hn::Add(sum, weight);
  }
  partial[1] = sd::sum_lanes(d, sum);
}

// ---- a pass -----------------------------------------------------------------------------------

// Keys or values of the tokens of a pass.
struct Stream {
  const QuantFormat& format;
  std::int64_t dim;
  const TokenAddresses& addresses;

  bool direct() const { return reads_directly(format, dim); }
  std::size_t tile() const { return direct() ? kTile : kDecodedTile; }
};

// What a tile needs beside the pages: decoded tokens, or the scales of a tile, two for each vector
// at most (and whole vectors are written).
struct TileScratch {
  alignas(64) float numbers[std::max<std::size_t>(kDecodedTile * kMaxDim,
                                                  kTile* kMaxDim * 2 / kLanes + kLanes)];
  const std::byte* decoded[kDecodedTile];
};

// Makes a tile of tokens [first, ..) of one KV head. Not inlined: it is the same for every format,
// and would be most of the code of each.
HWY_NOINLINE Tile make_tile(const Stream& stream, std::size_t head, std::size_t first,
                            std::size_t tokens, TileScratch& scratch) {
  const auto h = static_cast<std::int64_t>(head);
  const TokenAddresses& addresses = stream.addresses;
  const QuantFormat& format = stream.format;
  Tile tile{.tokens = std::min(stream.tile(), tokens - first),
            .values = addresses.values.data() + first,
            .offset = h * addresses.next_values,
            .scales = scratch.numbers,
            .dim = padded(stream.dim)};
  tile.group = tile.dim;
  const std::int64_t to_scales = h * addresses.next_scales;
  if (!stream.direct()) {
    for (std::size_t t = 0; t < tile.tokens; ++t) {
      float* const to = scratch.numbers + t * tile.dim;
      cache::decode(format, stream.dim, tile.values[t] + tile.offset,
                    addresses.scales[first + t] + to_scales, to);
      std::fill(to + stream.dim, to + tile.dim, 0.0F);
      scratch.decoded[t] = reinterpret_cast<const std::byte*>(to);
    }
    tile.values = scratch.decoded;
    tile.offset = 0;
  } else if (is_quantized(format.dtype)) {
    tile.group = static_cast<std::size_t>(cache::group_length(format, stream.dim));
    tile.scale_stride = tile.dim / tile.group * (format.asymmetric ? 2 : 1);
    const auto decode = [&]<class T>() {
      decode_scales<T>(addresses, first, to_scales, tile.tokens, tile.scale_stride,
                       scratch.numbers);
    };
    if (format.scale_dtype == DType::f16) {
      decode.template operator()<F16>();
    } else {
      decode.template operator()<float>();
    }
  }
  return tile;
}

// Prefetches the scales of tokens [begin, begin + tokens) of a KV head.
HWY_INLINE void fetch_scales(const Stream& stream, std::size_t begin, std::size_t tokens,
                             std::int64_t head) {
  if (!is_quantized(stream.format.dtype)) return;
  for (std::size_t t = begin; t < begin + tokens; t += kScalesFetch) {
    sd::prefetch(stream.addresses.scales[t] + head * stream.addresses.next_scales);
  }
}

// Prefetches the first tile, which no earlier tile has prefetched.
HWY_INLINE void fetch_first(const Stream& stream, std::size_t tokens) {
  const std::size_t first = std::min(stream.tile(), tokens);
  const auto bytes = static_cast<std::size_t>(cache::value_bytes(stream.format, stream.dim));
  fetch_scales(stream, 0, first, 0);
  for (std::size_t t = 0; t < first; ++t) fetch(stream.addresses.values[t], bytes);
}

// Calls body(head, first token, tile) for all tiles and, for each, all KV heads: in the order in
// which they lie in a page. `after` is what will be read when this is done.
template <class Body>
HWY_INLINE void for_each_tile(const Pass& pass, const Stream& stream, const Stream* after,
                              Body&& body) {
  TileScratch scratch;
  const std::size_t step = stream.tile();
  for (std::size_t first = 0; first < pass.tokens; first += step) {
    for (std::size_t head = 0; head < pass.heads; ++head) {
      Tile tile = make_tile(stream, head, first, pass.tokens, scratch);
      // The next KV head of these tokens, or the next tokens, or what is read afterwards.
      const bool turn = head + 1 == pass.heads;
      const bool last = turn && first + step >= pass.tokens;
      const Stream* const next = last ? after : &stream;
      if (next != nullptr) {
        const std::size_t after_these = std::min(first + step, pass.tokens - tile.tokens);
        const std::size_t begin = last ? 0 : turn ? after_these : first;
        const auto h = static_cast<std::int64_t>(turn ? 0 : head + 1);
        tile.next = {next->addresses.values.data() + begin, h * next->addresses.next_values,
                     static_cast<std::size_t>(cache::value_bytes(next->format, next->dim))};
        fetch_scales(*next, begin, tile.tokens, h);
      }
      body(head, first, tile);
    }
  }
}

// As score_all, in whole numbers; the queries that cannot be such as floats.
template <class Source>
HWY_INLINE void score_all_limbs(const Pass& pass, std::size_t head, std::size_t first,
                                const Tile& tile, float* scores) {
  const float* const* const queries = pass.queries.data() + head * pass.vectors;
  float* const rows = scores + head * pass.vectors * kScoreStride + first;
  score_limbs(tile, queries, pass.vectors, rows, kScoreStride);
  for (std::size_t v = 0; v < pass.vectors; ++v) {
    if (has_limbs(queries[v], tile.dim)) continue;
    Tile again = tile;
    again.next.bytes = 0;
    float* row = rows + v * kScoreStride;
    score_tile<Source, 1>(again, queries + v, &row);
  }
}

template <class Source>
HWY_INLINE void score_all(const Pass& pass, std::size_t head, std::size_t first, Tile tile,
                          float* scores) {
  if constexpr (Source::kCanUseLimbs) {
    const cache::LayerGroup& layers = pass.problem->layers;
    if (uses_limbs(layers.k, layers.k_dim)) {
      return score_all_limbs<Source>(pass, head, first, tile, scores);
    }
  }
  for (std::size_t v = 0; v < pass.vectors;) {
    const std::size_t count = std::min(kBlock, pass.vectors - v);
    const float* queries[kBlock];
    float* rows[kBlock];
    alignas(64) float unused[kTile + 16];
    for (std::size_t j = 0; j < kBlock; ++j) {
      queries[j] = pass.queries[head * pass.vectors + v + std::min(j, count - 1)];
      rows[j] = unused;
      if (j < count) rows[j] = scores + (head * pass.vectors + v + j) * kScoreStride + first;
    }
    if (count == 1) {
      score_tile<Source, 1>(tile, queries, rows);
    } else {
      score_tile<Source, kBlock>(tile, queries, rows);
    }
    v += count;
    tile.next.bytes = 0;  // prefetched already
  }
}

// Adds the values of a tile, each times its weight, to the partial results. The weights take the
// scales of the tokens, where there are such.
template <class Source>
HWY_INLINE void add_all(const Pass& pass, std::size_t head, std::size_t first, Tile tile,
                        float* scores) {
  const D d;
  for (std::size_t v = 0; v < pass.vectors;) {
    const std::size_t count = std::min(kBlock, pass.vectors - v);
    float* output[kBlock];
    alignas(64) float unused[kMaxDim];
    float* const weights = scores + (head * pass.vectors + v) * kScoreStride + first;
    for (std::size_t j = 0; j < kBlock; ++j) {
      output[j] = j < count ? pass.partials[head * pass.vectors + v + j] + kPartialHead : unused;
    }
    if constexpr (Source::kScaling == Scaling::per_token) {
      for (std::size_t t = 0; t < tile.tokens; t += kLanes) {
        const V scale = hn::LoadU(d, tile.scales + t);
        for (std::size_t j = 0; j < count; ++j) {
          float* const at = weights + j * kScoreStride + t;
          hn::StoreU(hn::Mul(hn::LoadU(d, at), scale), d, at);
        }
      }
    }
    if (count == 1) {
      add_tile<Source, 1>(tile, weights, output);
    } else {
      if (count < kBlock) std::fill(unused, unused + tile.dim, 0.0F);
      add_tile<Source, kBlock>(tile, weights, output);
    }
    v += count;
    tile.next.bytes = 0;
  }
}

void run_pass(const Pass& pass) {
  const PagedAttentionProblem& p = *pass.problem;
  const Stream keys{p.layers.k, p.layers.k_dim, *pass.keys};
  const Stream values{p.layers.k_is_v ? p.layers.k : p.layers.v, p.layers.v_dim, *pass.values};
  // Weights of query vectors that are not there are read, too, where a block is filled up.
  alignas(64) float scores[(kPassVectors + kBlock - 1) * kScoreStride];
  std::fill(scores + kPassVectors * kScoreStride, std::end(scores), 0.0F);
  fetch_first(keys, pass.tokens);
  visit_source(keys.format, keys.dim, [&]<class Source>() {
    for_each_tile(pass, keys, &values, [&](std::size_t head, std::size_t first, const Tile& tile) {
      score_all<Source>(pass, head, first, tile, scores);
    });
  });
  for (std::size_t v = 0; v < pass.heads * pass.vectors; ++v) {
    float* const partial = pass.partials[v];
    std::fill(partial + kPartialHead, partial + partial_size(p), 0.0F);
    softmax(p, pass.tokens, scores + v * kScoreStride, partial);
    // Scores of -inf only: no weights.
    if (partial[0] == -kInfinity) std::fill_n(scores + v * kScoreStride, pass.tokens, 0.0F);
  }
  visit_source(values.format, values.dim, [&]<class Source>() {
    for_each_tile(pass, values, nullptr,
                  [&](std::size_t head, std::size_t first, const Tile& tile) {
                    add_all<Source>(pass, head, first, tile, scores);
                  });
  });
}

// ---- before and after -------------------------------------------------------------------------

void prepare_query(const PagedAttentionProblem& p, std::int64_t query, std::int64_t head,
                   float* to) {
  const D d;
  const auto dim = static_cast<std::size_t>(p.layers.k_dim);
  std::fill(to + dim, to + padded(p.layers.k_dim), 0.0F);
  visit_float_dtype(p.q_dtype, [&]<class T>() {
    const T* const from = static_cast<const T*>(p.q.data) + p.q.offset(query, head);
    std::transform(from, from + dim, to, [](T x) { return convert<float>(x); });
  });
  if (p.layers.rotate_keys) cache::rotate(to, p.layers.k_dim);
  const float factor = p.soft_cap > 0 ? p.scale / p.soft_cap : p.scale * kLog2e;
  for (std::size_t i = 0; i < padded(p.layers.k_dim); i += kLanes) {
    hn::StoreU(hn::Mul(hn::LoadU(d, to + i), hn::Set(d, factor)), d, to + i);
  }
  if (in_pack_order(p.layers.k, p.layers.k_dim)) sd::to_pack_order<Bf16>(to, dim);
  if (uses_limbs(p.layers.k, p.layers.k_dim)) make_limbs(to, dim, to + dim);
}

void clear_partial(const PagedAttentionProblem& p, float* partial) {
  std::fill(partial, partial + partial_size(p), 0.0F);
  partial[0] = -kInfinity;
}

void merge_partial(const PagedAttentionProblem& p, float* total, const float* partial) {
  const D d;
  if (partial[0] == -kInfinity) return;
  const float most = partial[0] <= total[0] ? total[0] : partial[0];  // NaN, not -inf
  const float a = exp2_scalar(total[0] - most);
  const float b = exp2_scalar(partial[0] - most);
  total[0] = most;
  total[1] = total[1] * a + partial[1] * b;
  for (std::size_t i = kPartialHead; i < partial_size(p); i += kLanes) {
    const V scaled = hn::Mul(hn::LoadU(d, total + i), hn::Set(d, a));
    hn::StoreU(hn::MulAdd(hn::LoadU(d, partial + i), hn::Set(d, b), scaled), d, total + i);
  }
}

void finish_query(const PagedAttentionProblem& p, std::int64_t query, std::int64_t head,
                  const float* total) {
  const D d;
  const auto dim = static_cast<std::size_t>(p.layers.v_dim);
  const float sink = p.sink_logits != nullptr ? p.sink_logits[head] * kLog2e : -kInfinity;
  const Finished finished = finish_softmax(total[0], total[1], sink);
  if (p.log_sum_exp.data != nullptr) {
    p.log_sum_exp.data[p.log_sum_exp.offset(query, head)] = finished.log_sum_exp;
  }
  const float* from = total + kPartialHead;
  alignas(64) float ordered[kMaxDim];
  const QuantFormat& format = p.layers.k_is_v ? p.layers.k : p.layers.v;
  if (in_pack_order(format, p.layers.v_dim)) {
    sd::from_pack_order<Bf16>(from, dim, ordered);
    from = ordered;
  }
  const V factor = hn::Set(d, finished.factor);
  visit_float_dtype(p.output_dtype, [&]<class T>() {
    if constexpr (!std::is_same_v<T, double>) {
      T* const to = static_cast<T*>(p.output.data) + p.output.offset(query, head);
      for (std::size_t i = 0; i < dim; i += kLanes) {
        const std::size_t n = std::min(kLanes, dim - i);
        sd::store_some(hn::Mul(sd::load_some(d, from + i, n), factor), d, to + i, n);
      }
    }
  });
}

}  // namespace touchstone::paged_attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace touchstone::paged_attention {

HWY_EXPORT(query_size);
HWY_EXPORT(partial_size);
HWY_EXPORT(prepare_query);
HWY_EXPORT(run_pass);
HWY_EXPORT(clear_partial);
HWY_EXPORT(merge_partial);
HWY_EXPORT(finish_query);

std::size_t query_floats(const PagedAttentionProblem& p) {
  return HWY_DYNAMIC_DISPATCH(query_size)(p);
}
std::size_t partial_floats(const PagedAttentionProblem& p) {
  return HWY_DYNAMIC_DISPATCH(partial_size)(p);
}
void prepare_query(const PagedAttentionProblem& p, std::int64_t query, std::int64_t head,
                   float* to) {
  HWY_DYNAMIC_DISPATCH(prepare_query)(p, query, head, to);
}
void run_pass(const Pass& pass) { HWY_DYNAMIC_DISPATCH(run_pass)(pass); }
void clear_partial(const PagedAttentionProblem& p, float* partial) {
  HWY_DYNAMIC_DISPATCH(clear_partial)(p, partial);
}
void merge_partial(const PagedAttentionProblem& p, float* total, const float* partial) {
  HWY_DYNAMIC_DISPATCH(merge_partial)(p, total, partial);
}
void finish_query(const PagedAttentionProblem& p, std::int64_t query, std::int64_t head,
                  const float* total) {
  HWY_DYNAMIC_DISPATCH(finish_query)(p, query, head, total);
}

}  // namespace touchstone::paged_attention
#endif
