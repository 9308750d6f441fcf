// The scan of the SIMD implementation, for every target: sums of exponentials and group maxima.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "ops/softmax_topk/topk_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/softmax_topk/topk_cpu_scan.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h, as Highway asks.
#include "cpu/simd.h"
#include "ops/softmax_topk/topk_cpu_exp2.h"
#include "ops/softmax_topk/topk_cpu_values.h"

HWY_BEFORE_NAMESPACE();
namespace touchstone::topk::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace sd = touchstone::simd::HWY_NAMESPACE;

using Tag = hn::ScalableTag<float>;
using Vector = hn::Vec<Tag>;

// The next two vectors of elements, for bf16 the even and the odd ones: no shuffle is needed to
// widen them so, and neither maxima nor sums ask for an order, as long as it is always the same.
template <class T>
HWY_INLINE void load_two(const T* p, Vector* two) {
  const Tag d;
  sd::load_pack(d, p, two);
  if constexpr (sd::kPack<T> == 1) sd::load_pack(d, p + hn::Lanes(d), two + 1);
}

// Folds a segment's values into group maxima and returns the largest. NaN is passed over; it will
// show in the sum.
template <class T>
HWY_INLINE float group_maxima(const T* x, std::size_t n, float* fine, float* coarse) {
  const Tag d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t block = kBlockVectors * lanes;
  const auto lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  Vector largest = lowest;
  Vector group = lowest;
  std::size_t b = 0;
  for (; (b + 1) * block <= n; ++b) {
    const T* const p = x + b * block;
    Vector m0 = lowest;
    Vector m1 = lowest;
    HWY_UNROLL(4)
    for (std::size_t j = 0; j < kBlockVectors; j += 2) {
      Vector two[2];
      load_two(p + j * lanes, two);
      m0 = hn::Max(two[0], m0);
      m1 = hn::Max(two[1], m1);
    }
    m0 = hn::Max(m0, m1);
    hn::StoreU(m0, d, fine + b * lanes);
    group = hn::Max(m0, group);
    if ((b + 1) % kCoarseBlocks == 0) {
      hn::StoreU(group, d, coarse + b / kCoarseBlocks * lanes);
      largest = hn::Max(group, largest);
      group = lowest;
    }
  }
  const bool rest = b * block < n;
  if (rest) {
    Vector m = lowest;
    for (std::size_t i = b * block; i < n; i += lanes) {
      m = hn::Max(load_or_lowest(d, x + i, n - i), m);
    }
    hn::StoreU(m, d, fine + b * lanes);
    group = hn::Max(m, group);
    ++b;
  }
  if (rest || b % kCoarseBlocks != 0) {
    hn::StoreU(group, d, coarse + (b - 1) / kCoarseBlocks * lanes);
    largest = hn::Max(group, largest);
  }
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

// Sum over lanes in f64, as a tree.
HWY_INLINE double sum_lanes(Vector v) {
  const Tag d;
  constexpr std::size_t kLanes = hn::MaxLanes(Tag());
  alignas(64) float lane[kLanes];
  hn::Store(v, d, lane);
  double sum[kLanes];
  for (std::size_t i = 0; i < kLanes; ++i) sum[i] = static_cast<double>(lane[i]);
  for (std::size_t width = kLanes / 2; width > 0; width /= 2) {
    for (std::size_t i = 0; i < width; ++i) sum[i] += sum[i + width];
  }
  return sum[0];
}

// a + b of a pair of powers.
HWY_INLINE Vector sum_pair(const Factors<Tag>& a, const Factors<Tag>& b) {
  return hn::MulAdd(b.near, b.grid, hn::Mul(a.near, a.grid));
}

// What will be scanned after a segment: the next one, and the one after that. Fetched while the
// exponentials are computed, which leaves memory idle: into L1, and into L2 so that it is on its
// way in time. 16-bit types have twice the arithmetic per byte and do without the latter.
template <class T>
struct Ahead {
  const T* next;
  const T* second;

  HWY_INLINE void fetch(std::size_t i) const {
    __builtin_prefetch(next + i, 0, 3);
    if constexpr (sizeof(T) == 4) __builtin_prefetch(second + i, 0, 2);
  }
};

// Sum of exp2_of over a segment.
template <class T, class Exp2>
HWY_INLINE double sum_exponentials(const T* x, std::size_t n, const Ahead<T>& ahead,
                                   const Exp2& exp2_of) {
  const Tag d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t block = kBlockVectors * lanes;
  constexpr std::size_t kLine = 64 / sizeof(T);
  // Four running sums take turns: 8 terms each in a whole segment.
  Vector s0 = hn::Zero(d);
  Vector s1 = s0;
  Vector s2 = s0;
  Vector s3 = s0;
  const auto add = [&](Vector sum) HWY_ATTR {
    const auto oldest = s0;
    s0 = s1;
    s1 = s2;
    s2 = s3;
    s3 = hn::Add(oldest, sum);
  };
  std::size_t i = 0;
  for (; i + block <= n; i += block) {
    Vector pair[kBlockVectors / 2];
    HWY_UNROLL(4)
    for (std::size_t j = 0; j < kBlockVectors; j += 2) {
      Vector two[2];
      load_two(x + i + j * lanes, two);
      pair[j / 2] = sum_pair(exp2_of(two[0]), exp2_of(two[1]));
    }
    for (std::size_t j = 0; j < block; j += kLine) ahead.fetch(i + j);
    add(hn::Add(hn::Add(pair[0], pair[1]), hn::Add(pair[2], pair[3])));
  }
  for (; i < n; i += lanes) {
    // Lanes past the end hold 2^-120 rather than 0, too little to count.
    const Factors<Tag> e = exp2_of(load_or_lowest(d, x + i, n - i));
    add(hn::Mul(e.near, e.grid));
  }
  return sum_lanes(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)));
}

template <class T>
HWY_INLINE bool any_nan(const T* x, std::size_t n) {
  const Tag d;
  bool found = false;
  for (std::size_t i = 0; i < n; i += hn::Lanes(d)) {
    found = found || !hn::AllFalse(d, hn::IsNaN(load_or_lowest(d, x + i, n - i)));
  }
  return found;
}

template <class T>
HWY_INLINE void scan_segment(const T* x, std::size_t n, const Ahead<T>& ahead, float scale,
                             float* fine, float* coarse, SegmentSum* out) {
  const Tag d;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  out->largest = group_maxima(x, n, fine, coarse);
  if (!(out->largest < kInfinity)) {
    out->sum = std::numeric_limits<double>::quiet_NaN();
    return;
  }
  if (out->largest == -kInfinity) {
    out->reference = 0;
    out->sum = any_nan(x, n) ? std::numeric_limits<double>::quiet_NaN() : 0;
    return;
  }
  const Exponent e(out->largest, scale);
  out->reference = e.reference;
  if (e.integral) {
    out->sum =
        sum_exponentials(x, n, ahead, [&](Vector v) HWY_ATTR { return exp2_exact(d, v, e); });
  } else {
    out->sum =
        sum_exponentials(x, n, ahead, [&](Vector v) HWY_ATTR { return exp2_distance(d, v, e); });
  }
}

template <class T>
void scan_typed(const Topk& p, std::int64_t row, std::size_t begin, std::size_t end,
                const RowScratch& scratch) {
  const std::size_t lanes = hn::Lanes(Tag());
  const std::size_t segment = kSegmentBlocks * kBlockVectors * lanes;
  const auto tokens = static_cast<std::size_t>(p.vocabulary);
  const auto scale = static_cast<float>(1.44269504088896340736 / row_temperature(p, row));
  const T* const x = static_cast<const T*>(p.logits) + row * p.logits_stride;
  const bool plain = p.bias == nullptr && p.allowed == nullptr;
  // What lies behind the row is the next one, mostly.
  const std::size_t readable =
      p.logits_stride == p.vocabulary ? static_cast<std::size_t>(p.rows - row) * tokens : tokens;
  for (std::size_t g = begin; g < end; ++g) {
    const std::size_t first = g * segment;
    const std::size_t n = std::min(segment, tokens - first);
    float* const fine = scratch.fine + g * kSegmentBlocks * lanes;
    float* const coarse = scratch.coarse + g * (kSegmentBlocks / kCoarseBlocks) * lanes;
    if (plain) {
      const T* const here = x + first;
      const T* const next = first + n + segment <= readable ? here + n : here;
      const T* const second = first + n + 2 * segment <= readable ? here + n + segment : here;
      scan_segment(here, n, {next, second}, scale, fine, coarse, scratch.segments + g);
    } else {
      load_values<T>(p, row, first, n, scratch.values);
      const float* const here = scratch.values;
      scan_segment(here, n, {here, here}, scale, fine, coarse, scratch.segments + g);
    }
  }
}

void scan_of(const Topk& p, std::int64_t row, std::size_t begin, std::size_t end,
             const RowScratch& scratch) {
  if (std::isnan(row_temperature(p, row))) return;
  visit_float_dtype(p.dtype, [&]<class T>() {
    if constexpr (!std::is_same_v<T, double>) scan_typed<T>(p, row, begin, end, scratch);
  });
}

void sizes_of(const Topk& p, ScratchSizes* s) {
  const auto tokens = static_cast<std::size_t>(p.vocabulary);
  s->lanes = hn::Lanes(Tag());
  const std::size_t block = kBlockVectors * s->lanes;
  s->segment_tokens = kSegmentBlocks * block;
  s->blocks = (tokens + block - 1) / block;
  s->coarse = (s->blocks + kCoarseBlocks - 1) / kCoarseBlocks;
  s->segments = (s->blocks + kSegmentBlocks - 1) / kSegmentBlocks;
}

}  // namespace touchstone::topk::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace touchstone::topk {
namespace {

HWY_EXPORT(scan_of);
HWY_EXPORT(sizes_of);

}  // namespace

void scan_segments(const Topk& p, std::int64_t row, std::size_t begin, std::size_t end,
                   const RowScratch& scratch) {
  HWY_DYNAMIC_DISPATCH(scan_of)(p, row, begin, end, scratch);
}

ScratchSizes scratch_sizes(const Topk& p) {
  ScratchSizes s;
  HWY_DYNAMIC_DISPATCH(sizes_of)(p, &s);
  // Groups that reach the floor times their elements.
  const Level level = floor_level(s, p.k);
  const std::size_t group = level == Level::coarse ? kBlockVectors * kCoarseBlocks : kBlockVectors;
  const auto tokens = static_cast<std::size_t>(p.vocabulary);
  s.maxima = (level == Level::coarse ? s.coarse : level == Level::fine ? s.blocks : 0) * s.lanes;
  s.candidates = level == Level::all ? tokens : std::min(tokens, enough_maxima(p.k) * group);
  return s;
}

}  // namespace touchstone::topk
#endif  // HWY_ONCE
