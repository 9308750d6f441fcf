// The k largest tokens of a scanned row, for every SIMD target: a floor that they reach, the tokens
// above it, and their order.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>

#include "ops/selection/cpu/cpu_select.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/selection/cpu/cpu_rank.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h, as Highway requires.
#include "cpu/simd.h"
#include "ops/selection/cpu/cpu_collect.h"
#include "ops/selection/cpu/cpu_sort.h"
#include "ops/selection/cpu/cpu_values.h"

HWY_BEFORE_NAMESPACE();
namespace touchstone::selection::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace sd = touchstone::simd::HWY_NAMESPACE;

// ---- the floor ---------------------------------------------------------------------------------

// The element of rank r in descending order, by comparing all pairs: for few. n is a multiple of
// the lanes.
HWY_INLINE float ranked(const float* a, std::size_t n, std::size_t r) {
  const Tag d;
  for (std::size_t i = 0;; ++i) {
    const auto v = hn::Set(d, a[i]);
    std::size_t above = 0;
    std::size_t at_least = 0;
    for (std::size_t j = 0; j < n; j += hn::Lanes(d)) {
      const auto other = hn::LoadU(d, a + j);
      above += hn::CountTrue(d, hn::Gt(other, v));
      at_least += hn::CountTrue(d, hn::Ge(other, v));
    }
    if (above <= r && r < at_least) return a[i];
  }
}

// Moves the elements above (or below) the pivot to the front, returns their number. n is a multiple
// of the lanes.
template <bool kAbove>
HWY_INLINE std::size_t keep_side(float* to, const float* from, std::size_t n, float pivot) {
  const Tag d;
  const auto p = hn::Set(d, pivot);
  std::size_t kept = 0;
  for (std::size_t i = 0; i < n; i += hn::Lanes(d)) {
    const auto v = hn::LoadU(d, from + i);
    const auto side = kAbove ? hn::Gt(v, p) : hn::Lt(v, p);
    // Not CompressStore: on some processors that instruction costs a hundred cycles. Never ahead of
    // the reading, since kept <= i.
    hn::StoreU(hn::Compress(v, side), d, to + kept);
    kept += hn::CountTrue(d, side);
  }
  return kept;
}

HWY_INLINE std::size_t count_at_least(const float* a, std::size_t n, float pivot) {
  const Tag d;
  const auto p = hn::Set(d, pivot);
  std::size_t count = 0;
  for (std::size_t i = 0; i < n; i += hn::Lanes(d)) {
    count += hn::CountTrue(d, hn::Ge(hn::LoadU(d, a + i), p));
  }
  return count;
}

// A sample spread over the n elements of `a`: rank r of n is near rank r * kSample / n of it.
constexpr std::size_t kSample = 32;

HWY_INLINE void take_sample(const float* a, std::size_t n, float* sample) {
  for (std::size_t i = 0; i < kSample; ++i) sample[i] = a[(2 * i + 1) * n / (2 * kSample)];
}

HWY_INLINE float guess_pivot(const float* a, std::size_t n, std::size_t k) {
  float sample[kSample];
  take_sample(a, n, sample);
  return ranked(sample, kSample, std::min(kSample - 1, k * kSample / n));
}

// The k-th largest of n by quickselect. `room` holds n elements and a vector more.
float select_exactly(const float* maxima, std::size_t n, std::size_t k, float* room) {
  const Tag d;
  const std::size_t lanes = hn::Lanes(d);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr int kRounds = 16;  // then std::nth_element
  constexpr std::size_t kFew = 64;
  const float* a = maxima;
  std::size_t above = 0;  // dropped elements that are larger than all that remain
  for (int round = 0; round < kRounds && n > kFew; ++round) {
    const float pivot = guess_pivot(a, n, k - above);
    const std::size_t at_least = above + count_at_least(a, n, pivot);
    std::size_t kept;
    if (at_least < k) {
      kept = keep_side<false>(room, a, n, pivot);
      above = at_least;
    } else {
      kept = keep_side<true>(room, a, n, pivot);
      if (above + kept < k) return pivot;
    }
    // Pads to whole vectors with -inf, which comes last in order.
    n = (kept + lanes - 1) / lanes * lanes;
    std::fill(room + kept, room + n, -kInfinity);
    a = room;
  }
  if (n <= kFew) return ranked(a, n, k - above - 1);
  if (a != room) std::copy_n(a, n, room);
  std::nth_element(room, room + (k - above - 1), room + n, std::greater<>());
  return room[k - above - 1];
}

// A number that at least k and, if possible, at most `enough` of the n maxima reach. Counting is
// cheaper than moving: guess, count, and interpolate between the counts that enclose k, linearly in
// their logarithms, since tails are nearly exponential.
float select_floor(const float* maxima, std::size_t n, std::size_t k, std::size_t enough,
                   float largest, float* room) {
  constexpr int kGuesses = 8;
  if (n <= 2 * kSample) return ranked(maxima, n, k - 1);
  float sample[kSample];
  take_sample(maxima, n, sample);
  std::size_t rank = std::min(kSample - 1, k * kSample / n);
  float pivot = ranked(sample, kSample, rank);
  float high = largest;
  float high_count = 0;  // logarithms
  float low = -std::numeric_limits<float>::infinity();
  float low_count = 0;
  const float target = std::log2(0.5F * static_cast<float>(k + enough));
  for (int guess = 0; guess < kGuesses; ++guess) {
    const std::size_t count = count_at_least(maxima, n, pivot);
    if (count >= k && count <= enough) return pivot;
    if (count < k) {
      high = pivot;
      high_count = std::log2(static_cast<float>(std::max<std::size_t>(count, 1)));
    } else {
      low = pivot;
      low_count = std::log2(static_cast<float>(count));
    }
    if (low_count == 0) {  // no lower end yet: further down the sample
      rank = std::min(kSample - 1, 2 * rank + 2);
      pivot = ranked(sample, kSample, rank);
    } else {
      pivot = high + (low - high) * ((target - high_count) / (low_count - high_count));
    }
    if (!(pivot > low && pivot < high)) break;  // also for non-finite numbers
  }
  return select_exactly(maxima, n, k, room);
}

// Estimates a floor that slightly more than k tokens exceed, from the coarse maxima: for randomly
// placed tokens, a group holds none of `wanted` with probability exp(-wanted / groups). -inf if the
// estimate is too coarse.
float guess_floor(const ScratchSizes& sizes, std::size_t k, float largest,
                  const RowScratch& scratch) {
  const std::size_t n = sizes.coarse * sizes.lanes;
  const auto groups = static_cast<float>(n);
  const auto wanted = static_cast<float>(k + k / 16 + 12);
  const auto rank = static_cast<std::size_t>(groups * (1 - std::exp(-wanted / groups)));
  if (rank < 1 || rank > n - n / 16) return -std::numeric_limits<float>::infinity();
  const float reached =
      select_floor(scratch.coarse, n, rank, rank + rank / 32, largest, scratch.maxima);
  // Many tokens may equal it.
  return std::nextafter(reached, -std::numeric_limits<float>::infinity());
}

// ---- the tokens above it -----------------------------------------------------------------------

// The tokens of a row above a floor and, if they are fewer than k, the first tokens at it.
template <class Row>
class TokenSelector {
 public:
  TokenSelector(const Row& row, const LogitRows& p, std::int64_t k, const ScratchSizes& sizes,
                const RowScratch& scratch)
      : row_(row),
        sizes_(sizes),
        scratch_(scratch),
        k_(static_cast<std::size_t>(k)),
        enough_(enough_maxima(k)),
        tokens_(static_cast<std::size_t>(p.vocabulary)) {}

  HWY_INLINE Found find(float largest) {
    const Level level = bound_level(sizes_, static_cast<std::int64_t>(k_));
    // Only where the list gives the number of groups; elsewhere they would have to be counted.
    if (kListsGroups && level == Level::fine &&
        take_guessed(guess_floor(sizes_, k_, largest, scratch_))) {
      return found_;
    }
    found_.floor = -std::numeric_limits<float>::infinity();
    if (k_ == 1) {
      found_.floor = largest;
    } else if (level != Level::all) {
      found_.floor = select_floor(level == Level::coarse ? scratch_.coarse : scratch_.fine,
                                  sizes_.maxima, k_, enough_, largest, scratch_.maxima);
    }
    list();
    take();
    if (found_.above < k_) {
      found_.equals = take_equals(row_, tokens_, listed_, hn::Set(Tag(), found_.floor),
                                  k_ - found_.above, scratch_);
    }
    return found_;
  }

 private:
  // Returns false if that floor is too high, or too low for the scratch.
  HWY_INLINE bool take_guessed(float floor) {
    if (!(floor > -std::numeric_limits<float>::infinity())) return false;
    found_.floor = floor;
    list();
    const std::size_t rest =
        whole_ < sizes_.blocks ? count_at_least(scratch_.fine + whole_ * kLanes, kLanes, floor) : 0;
    if (listed_ + rest > enough_) return false;
    take();
    return found_.above >= k_;
  }

  HWY_INLINE void list() {
    listed_ =
        list_hits<typename Row::Scanned>(sizes_, whole_, hn::Set(Tag(), found_.floor), scratch_);
  }
  HWY_INLINE void take() {
    const auto floor = hn::Set(Tag(), found_.floor);
    found_.above = take_listed(row_, listed_, floor, scratch_);
    found_.above = take_rest(row_, whole_ * kBlockTokens, tokens_, floor, found_.above, scratch_);
  }

  const Row& row_;
  const ScratchSizes& sizes_;
  const RowScratch& scratch_;
  std::size_t k_;
  std::size_t enough_;
  std::size_t tokens_;
  std::size_t whole_ = tokens_ / kBlockTokens;  // blocks
  std::size_t listed_ = 0;
  Found found_;
};

// ---- the k largest -----------------------------------------------------------------------------

// Values of the selected tokens; those that are not above the bound are at it.
HWY_INLINE void write_values(const Candidate* winners, std::size_t above, float floor,
                             std::size_t k, float* top) {
  const hn::ScalableTag<std::uint64_t> d;
  const hn::Rebind<std::uint32_t, decltype(d)> du;
  const hn::Rebind<float, decltype(d)> df;
  for (std::size_t j = 0; j < above; j += hn::Lanes(d)) {
    const auto key = hn::TruncateTo(du, hn::ShiftRight<32>(hn::LoadU(d, winners + j)));
    hn::StoreU(hn::BitCast(df, flip_positive(key)), df, top + j);
  }
  std::fill(top + above, top + k, floor);
}

template <class T>
void select_typed(const LogitRows& p, std::int64_t row, std::int64_t k, const ScratchSizes& sizes,
                  float largest, const RowScratch& scratch, SelectedTokens* out) {
  const RawRow<T> logits(p, row);
  const ProcessedRow<T> processed{p, row};
  const Found found = p.has_raw_logits()
                          ? TokenSelector(logits, p, k, sizes, scratch).find(largest)
                          : TokenSelector(processed, p, k, sizes, scratch).find(largest);
  const auto slots = static_cast<std::size_t>(k);
  out->tokens_above = sort_found(found.above, found.floor, largest, scratch);
  out->above = std::min(found.above, slots);
  out->equals = scratch.equals;
  write_values(out->tokens_above, out->above, found.floor, slots, scratch.top);
}

void select_of(const LogitRows& p, std::int64_t row, std::int64_t k, const ScratchSizes& sizes,
               float largest, const RowScratch& scratch, SelectedTokens* out) {
  visit_float_dtype(p.dtype, [&]<class T>() {
    if constexpr (!std::is_same_v<T, double>) {
      select_typed<T>(p, row, k, sizes, largest, scratch, out);
    }
  });
}

}  // namespace touchstone::selection::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace touchstone::selection {
namespace {

HWY_EXPORT(select_of);

}  // namespace

SelectedTokens select_tokens(const LogitRows& rows, std::int64_t row, std::int64_t k,
                             const ScratchSizes& sizes, float largest, const RowScratch& scratch) {
  SelectedTokens selected;
  HWY_DYNAMIC_DISPATCH(select_of)(rows, row, k, sizes, largest, scratch, &selected);
  return selected;
}

}  // namespace touchstone::selection
#endif  // HWY_ONCE
