// The scan of a CPU selection, for every SIMD target: sums of exponentials and group maxima.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "ops/selection/cpu/cpu_select.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/selection/cpu/cpu_scan.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h, as Highway requires.
#include "cpu/simd.h"
#include "ops/selection/cpu/cpu_exp2.h"
#include "ops/selection/cpu/cpu_values.h"

HWY_BEFORE_NAMESPACE();
namespace touchstone::selection::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace sd = touchstone::simd::HWY_NAMESPACE;

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

// Result of a pass over a segment.
struct Passed {
  float largest;
  double sum;
};

// Prefetch distances in bytes, to L1 and to L2; at the end of a row, the next row. 512 x 128256 on
// 16 cores of a Xeon, 2026-11-16: L1 alone is 5 to 10 % slower, neither 35 %.
constexpr std::size_t kToL1 = 4096;
constexpr std::size_t kToL2 = 65536;

// Group maxima and the sum of exp2_of over a segment, in one pass. NaN propagates to the sum, not
// necessarily to the maxima. `filler` pads the last vector; its weight is negligible. Prefetches
// `ahead` elements ahead.
template <class T, class Exp2>
HWY_INLINE Passed pass_over(const T* x, std::size_t n, float filler, const Exp2& exp2_of,
                            std::size_t ahead, float* fine, float* coarse) {
  const Tag d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t block = kBlockVectors * lanes;
  constexpr std::size_t kLine = 64 / sizeof(T);
  const auto lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  Vector largest = lowest;
  Vector group = lowest;
  // The blocks of a coarse group alternate between two sums of 4 terms; a segment has 4 groups.
  Vector even = hn::Zero(d);
  Vector odd = even;
  Vector sum = even;
  const auto end_group = [&](std::size_t g) HWY_ATTR {
    hn::StoreU(group, d, coarse + g * lanes);
    largest = hn::Max(group, largest);
    sum = hn::Add(sum, hn::Add(even, odd));
    group = lowest;
    even = hn::Zero(d);
    odd = even;
  };
  const auto end_block = [&](std::size_t b, Vector maximum, Vector block_sum) HWY_ATTR {
    hn::StoreU(maximum, d, fine + b * lanes);
    group = hn::Max(maximum, group);
    const auto older = even;
    even = odd;
    odd = hn::Add(older, block_sum);
  };
  std::size_t b = 0;
  for (; (b + 1) * block <= n; ++b) {
    const T* const p = x + b * block;
    GroupMaxima<T> maxima;
    Vector partial[2];
    HWY_UNROLL(4)
    for (std::size_t j = 0; j < kBlockVectors; j += 2) {
      Vector two[2];
      load_two(p + j * lanes, two);
      maxima.add(j, two);
      for (std::size_t i = 0; i < 2; ++i) {
        const Factors<Tag> e = exp2_of(two[i]);
        if (j == 0) {
          partial[i] = hn::Mul(e.near, e.grid);
        } else {
          partial[i] = hn::MulAdd(e.near, e.grid, partial[i]);
        }
      }
    }
    for (std::size_t i = 0; i < block; i += kLine) {
      __builtin_prefetch(p + i + kToL1 / sizeof(T), 0, 3);
      __builtin_prefetch(p + i + ahead, 0, 2);
    }
    end_block(b, maxima.maxima(), hn::Add(partial[0], partial[1]));
    if ((b + 1) % kCoarseBlocks == 0) end_group(b / kCoarseBlocks);
  }
  if (b * block < n) {
    Vector maximum = lowest;
    Vector partial = hn::Zero(d);
    for (std::size_t i = b * block; i < n; i += lanes) {
      const auto v = load_or_lowest(d, x + i, n - i);
      maximum = hn::Max(v, maximum);
      const auto inside =
          n - i < lanes ? hn::IfThenElse(hn::FirstN(d, n - i), v, hn::Set(d, filler)) : v;
      const Factors<Tag> e = exp2_of(inside);
      partial = hn::MulAdd(e.near, e.grid, partial);
    }
    end_block(b, maximum, partial);
    ++b;
    if (b % kCoarseBlocks == 0) end_group((b - 1) / kCoarseBlocks);
  }
  if (b % kCoarseBlocks != 0) end_group(b / kCoarseBlocks);
  return {hn::GetLane(hn::MaxOfLanes(d, largest)), sum_lanes(sum)};
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

// The same for the method that `exponent` selects. Not inlined, one instantiation per method and
// type: these loops dominate the compile time.
template <class T>
HWY_NOINLINE Passed pass_over(const T* x, std::size_t n, const Exponent& exponent,
                              std::size_t ahead, float* fine, float* coarse) {
  const Exponent e = exponent;  // a local copy, which stores cannot alias
  const Tag d;
  if constexpr (kCanScale) {
    if (e.free) {
      const auto exp2_of = [&](Vector v) HWY_ATTR { return exp2_free(d, v, e); };
      return pass_over(x, n, e.lowest, exp2_of, ahead, fine, coarse);
    }
  }
  if constexpr (HWY_NATIVE_FMA != 0) {
    if (e.integral) {
      const auto exp2_of = [&](Vector v) HWY_ATTR { return exp2_exact(d, v, e); };
      return pass_over(x, n, e.lowest, exp2_of, ahead, fine, coarse);
    }
  }
  const auto exp2_of = [&](Vector v) HWY_ATTR { return exp2_distance(d, v, e); };
  return pass_over(x, n, -std::numeric_limits<float>::infinity(), exp2_of, ahead, fine, coarse);
}

template <class T>
HWY_INLINE float largest_of(const T* x, std::size_t n) {
  const Tag d;
  auto largest = hn::Set(d, -std::numeric_limits<float>::infinity());
  for (std::size_t i = 0; i < n; i += hn::Lanes(d)) {
    largest = hn::Max(load_or_lowest(d, x + i, n - i), largest);
  }
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

// `e` has an estimated reference for the row. A segment whose maximum is far from it gets its own
// reference, as does every segment if the distance to the reference would be rounded.
template <class T>
void scan_segment(const T* x, std::size_t n, const Exponent& e, std::size_t ahead, float* fine,
                  float* coarse, SegmentSum* out) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const Passed passed =
      e.integral ? pass_over(x, n, e, ahead, fine, coarse) : Passed{largest_of(x, n), 0};
  out->largest = passed.largest;
  out->reference = e.reference;
  out->sum = passed.sum;
  // The unclamped method turns -inf into NaN as well.
  if (e.integral && e.serves(passed.largest) && !(e.free && std::isnan(passed.sum))) return;
  if (!(passed.largest < kInfinity)) {
    out->sum = std::numeric_limits<double>::quiet_NaN();
    return;
  }
  if (passed.largest == -kInfinity) {
    if (!e.integral) pass_over(x, n, Exponent(0, e.s), 0, fine, coarse);  // for the maxima
    out->reference = 0;
    out->sum = any_nan(x, n) ? std::numeric_limits<double>::quiet_NaN() : 0;
    return;
  }
  const Exponent own(passed.largest, e.s);
  out->reference = own.reference;
  out->sum = pass_over(x, n, own, 0, fine, coarse).sum;
}

// Estimates the reference from the first tokens of a row, so that all tasks use the same one.
template <class T>
HWY_INLINE Exponent guess_exponent(const LogitRows& p, std::int64_t row, float scale,
                                   float* values) {
  const Tag d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t n = kBlockVectors * lanes;
  // Too short for the estimate to pay.
  if (static_cast<std::size_t>(p.vocabulary) < kCoarseBlocks * n) {
    Exponent e(0, scale);
    if (p.token_mask == nullptr) e.set_free();
    return e;
  }
  const T* const x = static_cast<const T*>(p.logits) + row * p.logits_stride;
  const bool raw_logits = p.has_raw_logits();
  if (!raw_logits) load_values<T>(p, row, 0, n, values);
  auto largest = hn::Set(d, -std::numeric_limits<float>::infinity());
  auto smallest = hn::Zero(d);
  for (std::size_t i = 0; i < n; i += lanes) {
    const auto v = raw_logits ? sd::load(d, x + i) : hn::LoadU(d, values + i);
    largest = hn::Max(v, largest);
    smallest = hn::Min(v, smallest);
  }
  const float high = hn::GetLane(hn::MaxOfLanes(d, largest));
  const float low = hn::GetLane(hn::MinOfLanes(d, smallest));
  Exponent e(std::isfinite(high) ? high : 0, scale);
  // With a mask, -inf occurs in most segments.
  if (p.token_mask == nullptr && std::isfinite(low)) e.set_free();
  return e;
}

template <class T>
void scan_typed(const LogitRows& p, std::int64_t row, double temperature, std::size_t begin,
                std::size_t end, const RowScratch& scratch) {
  const std::size_t lanes = hn::Lanes(Tag());
  const std::size_t segment = kSegmentBlocks * kBlockVectors * lanes;
  const auto tokens = static_cast<std::size_t>(p.vocabulary);
  const auto scale = static_cast<float>(1.44269504088896340736 / temperature);
  const T* const x = static_cast<const T*>(p.logits) + row * p.logits_stride;
  const bool raw_logits = p.has_raw_logits();
  const Exponent e = guess_exponent<T>(p, row, scale, scratch.values);
  for (std::size_t g = begin; g < end; ++g) {
    const std::size_t first = g * segment;
    const std::size_t n = std::min(segment, tokens - first);
    float* const fine = scratch.fine + g * kSegmentBlocks * lanes;
    float* const coarse = scratch.coarse + g * (kSegmentBlocks / kCoarseBlocks) * lanes;
    if (raw_logits) {
      // Not past the last row.
      const bool more = row + 1 < p.rows || first + n + kToL2 / sizeof(T) <= tokens;
      scan_segment(x + first, n, e, more ? kToL2 / sizeof(T) : 0, fine, coarse,
                   scratch.segments + g);
    } else {
      load_values<T>(p, row, first, n, scratch.values);
      scan_segment(scratch.values, n, e, 0, fine, coarse, scratch.segments + g);
    }
  }
}

void scan_of(const LogitRows& p, std::int64_t row, double temperature, std::size_t begin,
             std::size_t end, const RowScratch& scratch) {
  visit_float_dtype(p.dtype, [&]<class T>() {
    if constexpr (!std::is_same_v<T, double>)
      scan_typed<T>(p, row, temperature, begin, end, scratch);
  });
}

void sizes_of(const LogitRows& p, ScratchSizes* s) {
  const auto tokens = static_cast<std::size_t>(p.vocabulary);
  s->lanes = hn::Lanes(Tag());
  const std::size_t block = kBlockVectors * s->lanes;
  s->segment_tokens = kSegmentBlocks * block;
  s->blocks = (tokens + block - 1) / block;
  s->coarse = (s->blocks + kCoarseBlocks - 1) / kCoarseBlocks;
  s->segments = (s->blocks + kSegmentBlocks - 1) / kSegmentBlocks;
}

}  // namespace touchstone::selection::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace touchstone::selection {
namespace {

HWY_EXPORT(scan_of);
HWY_EXPORT(sizes_of);

}  // namespace

void scan_segments(const LogitRows& rows, std::int64_t row, double temperature, std::size_t begin,
                   std::size_t end, const RowScratch& scratch) {
  HWY_DYNAMIC_DISPATCH(scan_of)(rows, row, temperature, begin, end, scratch);
}

ScratchSizes scratch_sizes(const LogitRows& rows, std::int64_t k) {
  ScratchSizes s;
  HWY_DYNAMIC_DISPATCH(sizes_of)(rows, &s);
  // Groups that reach the bound times their elements.
  const Level level = bound_level(s, k);
  const std::size_t group = level == Level::coarse ? kBlockVectors * kCoarseBlocks : kBlockVectors;
  const auto tokens = static_cast<std::size_t>(rows.vocabulary);
  s.maxima = (level == Level::coarse ? s.coarse : level == Level::fine ? s.blocks : 0) * s.lanes;
  s.candidates = level == Level::all ? tokens : std::min(tokens, enough_maxima(k) * group);
  s.slots = static_cast<std::size_t>(k);
  return s;
}

ScratchSizes scratch_sizes_up_to(const LogitRows& rows, std::int64_t max_k) {
  // Within a level the sizes grow with k: the largest k of each level covers them all.
  ScratchSizes s = scratch_sizes(rows, max_k);
  const auto groups = {s.coarse * s.lanes / 4, s.blocks * s.lanes};
  for (const std::size_t largest : groups) {
    const auto k = std::min(max_k, static_cast<std::int64_t>(largest));
    if (k < 1) continue;
    const ScratchSizes at = scratch_sizes(rows, k);
    s.maxima = std::max(s.maxima, at.maxima);
    s.candidates = std::max(s.candidates, at.candidates);
  }
  return s;
}

}  // namespace touchstone::selection
#endif  // HWY_ONCE
