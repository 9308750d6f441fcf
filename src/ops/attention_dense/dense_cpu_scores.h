// Masks and score modifications of the queries of a task. No #pragma once: included once per
// target.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "cpu/exp2.h"
#include "ops/attention_common/cpu_softmax_finish.h"
#include "ops/attention_dense/dense_cpu_matmul.h"

#if defined(TOUCHSTONE_DENSE_CPU_SCORES_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TOUCHSTONE_DENSE_CPU_SCORES_H_
#undef TOUCHSTONE_DENSE_CPU_SCORES_H_
#else
#define TOUCHSTONE_DENSE_CPU_SCORES_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace touchstone::dense_attention::HWY_NAMESPACE {

using attention_common::HWY_NAMESPACE::exp2_scalar;
using attention_common::HWY_NAMESPACE::finish_softmax;
using attention_common::HWY_NAMESPACE::Finished;
using attention_common::HWY_NAMESPACE::kInfinity;
using attention_common::HWY_NAMESPACE::kLog2e;

constexpr std::int64_t kFar = std::int64_t{1} << 62;

// Factor of what is packed: then scores are logarithms to base 2, or what the soft cap is taken of.
HWY_INLINE float score_factor(const DenseProblem& p) {
  const auto scale = static_cast<float>(p.scale);
  return p.soft_cap > 0 ? static_cast<float>(p.scale / p.soft_cap) : scale * kLog2e;
}

// Whether anything but the mask changes scores after the product.
HWY_INLINE bool has_score_mod(const DenseProblem& p) {
  return p.soft_cap != 0 || p.alibi_slopes != nullptr || p.bias != nullptr;
}

// Calls body<T>() with the type of the problem's numbers, which are not f64.
template <class Body>
HWY_INLINE void visit_type(const DenseProblem& p, Body&& body) {
  if (p.dtype == DType::f32) {
    body.template operator()<float>();
  } else if (p.dtype == DType::bf16) {
    body.template operator()<Bf16>();
  } else {
    body.template operator()<F16>();
  }
}

// The visible range of one query, [kFar, 0) if it is fully masked.
HWY_INLINE VisibleRange normalized_range(const DenseProblem& p, const SequenceSpan& span,
                                         std::int64_t query) {
  VisibleRange visible = visible_range(p, span, query);
  if (visible.begin >= visible.end && visible.sinks == 0) {
    visible.begin = kFar;
    visible.end = 0;
  }
  return visible;
}

HWY_INLINE float clamped(std::int64_t x, std::size_t most) {
  return static_cast<float>(std::clamp<std::int64_t>(x, 0, static_cast<std::int64_t>(most)));
}

// Lanes of a score vector that are not masked: x in [begin, end) or below sinks.
HWY_INLINE hn::Mask<D> seen_lanes(V x, V begin, V end, V sinks) {
  return hn::Or(hn::And(hn::Ge(x, begin), hn::Lt(x, end)), hn::Lt(x, sinks));
}

// A run of keys that some of the own queries attend to.
struct KeyTile {
  std::int64_t first = 0;
  std::size_t count = 0;
  bool whole = false;  // no query masks a key of it
};

// The own queries of a task, one per lane.
struct OwnQueries {
  std::size_t count = 0;
  std::size_t vectors = 0;
  VisibleRange visible[kOwn];
  std::int64_t positions[kOwn];
  alignas(64) float slopes[kOwn];  // to base 2
  const float* bias[kOwn];         // of key 0
  // Relative to the tile at hand.
  alignas(64) float begin[kOwn];
  alignas(64) float end[kOwn];
  alignas(64) float sinks[kOwn];
  alignas(64) float distance[kOwn];  // from the first key of the tile
  // Over all of them.
  std::int64_t least_begin = kFar;
  std::int64_t most_begin = 0;
  std::int64_t least_end = kFar;
  std::int64_t most_end = 0;
  std::int64_t least_sinks = kFar;
  std::int64_t most_sinks = 0;

  OwnQueries(const DenseProblem& p, const QueryBlock& block) {
    const SequenceSpan span = span_of(p, block.sequence);
    count = block.vectors();
    vectors = in_vectors(count);
    std::fill(slopes, slopes + kOwn, 0.0F);
    std::fill(positions, positions + kOwn, 0);
    for (std::size_t v = 0; v < count; ++v) {
      const std::int64_t query = query_of(block, v);
      const std::int64_t head = head_of(block, v);
      visible[v] = normalized_range(p, span, query);
      positions[v] = query + span.keys - span.queries;
      if (p.alibi_slopes != nullptr) {
        slopes[v] = static_cast<const float*>(p.alibi_slopes)[head] * kLog2e;
      }
      bias[v] = nullptr;
      if (p.bias != nullptr) {
        bias[v] = static_cast<const float*>(p.bias) + block.sequence * p.bias_batch_stride +
                  head * p.bias_head_stride + query * p.bias_query_stride;
      }
    }
  }

  static std::int64_t query_of(const QueryBlock& block, std::size_t v) {
    return block.first_query + static_cast<std::int64_t>(v) % block.queries;
  }
  static std::int64_t head_of(const QueryBlock& block, std::size_t v) {
    return block.first_head + static_cast<std::int64_t>(v) / block.queries;
  }

  void mask_fully(std::size_t v) {
    visible[v].sinks = 0;
    visible[v].begin = kFar;
    visible[v].end = 0;
  }

  void find_extent() {
    for (std::size_t v = 0; v < count; ++v) {
      least_begin = std::min(least_begin, visible[v].begin);
      most_begin = std::max(most_begin, visible[v].begin);
      least_end = std::min(least_end, visible[v].end);
      most_end = std::max(most_end, visible[v].end);
      least_sinks = std::min(least_sinks, visible[v].sinks);
      most_sinks = std::max(most_sinks, visible[v].sinks);
    }
  }

  // Calls body(tile) for every tile of `tokens` keys that is not fully masked, in order.
  template <class Body>
  HWY_INLINE void for_each_tile(std::size_t tokens, Body&& body) const {
    const auto step = static_cast<std::int64_t>(tokens);
    for (std::int64_t at = 0; at < std::max(most_end, most_sinks);) {
      if (at >= most_sinks && at + step <= least_begin) {
        at = least_begin / step * step;
        continue;
      }
      const std::int64_t sink_end = std::min(at + step, most_sinks);
      const std::int64_t window_begin = std::max(at, least_begin);
      const std::int64_t window_end = std::min(at + step, most_end);
      const bool in_sinks = at < sink_end;
      const bool in_window = window_begin < window_end;
      if (in_sinks || in_window) {
        KeyTile tile;
        tile.first = in_sinks ? at : window_begin;
        const std::int64_t last = in_window ? window_end : sink_end;
        tile.count = static_cast<std::size_t>(last - tile.first);
        tile.whole = (most_begin <= tile.first && least_end >= last) || least_sinks >= last;
        body(tile);
      }
      at += step;
    }
  }

  // Makes begin, end, sinks and distance relative to a tile.
  void face(const KeyTile& tile) {
    for (std::size_t v = 0; v < count; ++v) {
      begin[v] = clamped(visible[v].begin - tile.first, tile.count);
      end[v] = clamped(visible[v].end - tile.first, tile.count);
      sinks[v] = clamped(visible[v].sinks - tile.first, tile.count);
      distance[v] = static_cast<float>(positions[v] - tile.first);
    }
    for (std::size_t v = count; v < kOwn; ++v) begin[v] = end[v] = sinks[v] = distance[v] = 0;
  }

  bool attends_key(std::size_t v, std::size_t key) const {
    const auto k = static_cast<float>(key);
    return (k >= begin[v] && k < end[v]) || k < sinks[v];
  }

  // The terms beside the product of vector `v` of the scores of key `key` of the tile.
  HWY_INLINE V added(const DenseProblem& p, const KeyTile& tile, std::size_t v,
                     std::size_t key) const {
    const D d;
    V sum = hn::Zero(d);
    if (p.alibi_slopes != nullptr) {
      const V far =
          hn::Abs(hn::Sub(hn::Load(d, distance + v * kLanes), hn::Set(d, static_cast<float>(key))));
      sum = hn::NegMulAdd(hn::Load(d, slopes + v * kLanes), far, sum);
    }
    if (p.bias != nullptr) {
      alignas(64) float from[kLanes];
      const std::int64_t at = (tile.first + static_cast<std::int64_t>(key)) * p.bias_key_stride;
      for (std::size_t i = 0; i < kLanes; ++i) {
        const std::size_t lane = v * kLanes + i;
        from[i] = lane < count ? bias[lane][at] : 0.0F;
      }
      sum = hn::MulAdd(hn::Load(d, from), hn::Set(d, kLog2e), sum);
    }
    return sum;
  }
};

}  // namespace touchstone::dense_attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
