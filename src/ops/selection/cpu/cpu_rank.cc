// The end of a row in the SIMD implementation, for every target: the floor under the winners, the
// winners in order, and the outputs.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>

#include "ops/softmax_topk/topk_cpu.h"
#include "touchstone/ops/softmax_topk.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/softmax_topk/topk_cpu_finish.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h, as Highway asks.
#include "cpu/simd.h"
#include "ops/softmax_topk/topk_cpu_collect.h"
#include "ops/softmax_topk/topk_cpu_exp2.h"
#include "ops/softmax_topk/topk_cpu_order.h"
#include "ops/softmax_topk/topk_cpu_values.h"

HWY_BEFORE_NAMESPACE();
namespace touchstone::topk::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace sd = touchstone::simd::HWY_NAMESPACE;

// ---- the floor ---------------------------------------------------------------------------------

// The element with r larger ones before it in descending order. Compares each with each, without a
// branch that depends on the numbers: for few. n is a multiple of the lanes.
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

// Elements spread over the n of `a`: what is near rank r of n there is near rank r * kSample / n
// here.
constexpr std::size_t kSample = 32;

HWY_INLINE void take_sample(const float* a, std::size_t n, float* sample) {
  for (std::size_t i = 0; i < kSample; ++i) sample[i] = a[(2 * i + 1) * n / (2 * kSample)];
}

HWY_INLINE float guess_pivot(const float* a, std::size_t n, std::size_t k) {
  float sample[kSample];
  take_sample(a, n, sample);
  return ranked(sample, kSample, std::min(kSample - 1, k * kSample / n));
}

// The exact way: the k-th largest of n by quickselect. `room` has n elements and those of a vector
// more.
float select_exactly(const float* maxima, std::size_t n, std::size_t k, float* room) {
  const Tag d;
  const std::size_t lanes = hn::Lanes(d);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr int kRounds = 16;  // after which the guesses were unlucky
  constexpr std::size_t kFew = 64;
  const float* a = maxima;
  std::size_t above = 0;  // elements left out because they are larger than all that remain
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
    // Whole vectors again, filled up from below: the padding is last in order and k is not there.
    n = (kept + lanes - 1) / lanes * lanes;
    std::fill(room + kept, room + n, -kInfinity);
    a = room;
  }
  if (n <= kFew) return ranked(a, n, k - above - 1);
  if (a != room) std::copy_n(a, n, room);
  std::nth_element(room, room + (k - above - 1), room + n, std::greater<>());
  return room[k - above - 1];
}

// A number with at least k and, if that can be had, at most `enough` of the n maxima at or above
// it. Counting is cheaper than moving, so: guess, count, and guess again between the two counts
// that enclose k, along a line through their logarithms, since tails are near exponential.
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
    if (low_count == 0) {  // nothing reaches k yet: further down the sample
      rank = std::min(kSample - 1, 2 * rank + 2);
      pivot = ranked(sample, kSample, rank);
    } else {
      pivot = high + (low - high) * ((target - high_count) / (low_count - high_count));
    }
    if (!(pivot > low && pivot < high)) break;  // also where the numbers are not finite
  }
  return select_exactly(maxima, n, k, room);
}

// A guess at a floor that some more than k tokens exceed, from the maxima of coarse groups: where
// tokens lie anywhere, a group has none of `wanted` with probability exp(-wanted / groups). -inf
// where that says too little.
float guess_floor(const ScratchSizes& sizes, std::size_t k, float largest,
                  const RowScratch& scratch) {
  const std::size_t n = sizes.coarse * sizes.lanes;
  const auto groups = static_cast<float>(n);
  const auto wanted = static_cast<float>(k + k / 16 + 12);
  const auto rank = static_cast<std::size_t>(groups * (1 - std::exp(-wanted / groups)));
  if (rank < 1 || rank > n - n / 16) return -std::numeric_limits<float>::infinity();
  const float reached =
      select_floor(scratch.coarse, n, rank, rank + rank / 32, largest, scratch.maxima);
  // Many tokens may be equal to it.
  return std::nextafter(reached, -std::numeric_limits<float>::infinity());
}

// ---- the winners -------------------------------------------------------------------------------

// The tokens of a row above a floor, and where they are fewer than k, the first at it by token.
template <class Row>
class Winners {
 public:
  Winners(const Row& row, const Topk& p, const ScratchSizes& sizes, const RowScratch& scratch)
      : row_(row),
        sizes_(sizes),
        scratch_(scratch),
        k_(static_cast<std::size_t>(p.k)),
        enough_(enough_maxima(p.k)),
        tokens_(static_cast<std::size_t>(p.vocabulary)) {}

  HWY_INLINE Found find(float largest) {
    const Level level = floor_level(sizes_, static_cast<std::int64_t>(k_));
    // Where the list says how many groups there are; elsewhere they would have to be counted.
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
  // False if that floor is too high, or too low for the room there is.
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
        list_winners<typename Row::Scanned>(sizes_, whole_, hn::Set(Tag(), found_.floor), scratch_);
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

// ---- the outputs -------------------------------------------------------------------------------

struct RowSum {
  double reference = 0;
  double sum = 0;  // NaN: not for this path
  float largest = 0;
};

// 2^x, exactly where x is an integer.
HWY_INLINE double power_of_two(double x) {
  if (x < -1000) return 0;
  if (x == std::floor(x)) {
    return std::bit_cast<double>(static_cast<std::uint64_t>(static_cast<std::int64_t>(x) + 1023)
                                 << 52);
  }
  return std::exp2(x);
}

// Segments in order, each brought to the largest reference among them.
HWY_INLINE RowSum merge_segments(const SegmentSum* segments, std::size_t count) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  RowSum row{-std::numeric_limits<double>::infinity(), 0, -kInfinity};
  for (std::size_t g = 0; g < count; ++g) {
    row.largest = std::max(row.largest, segments[g].largest);
    if (segments[g].sum != 0) row.reference = std::max(row.reference, segments[g].reference);
  }
  for (std::size_t g = 0; g < count; ++g) {
    const SegmentSum& s = segments[g];
    if (s.sum != 0) row.sum += s.sum * power_of_two(s.reference - row.reference);
  }
  return row;
}

template <class Index>
HWY_INLINE void write_indices(Index* out, const Candidate* winners, std::size_t above,
                              const std::uint32_t* equals, std::size_t k) {
  for (std::size_t j = 0; j < above; ++j) out[j] = static_cast<Index>(winners[j] & 0xffffffffU);
  for (std::size_t j = above; j < k; ++j) out[j] = static_cast<Index>(equals[j - above]);
}

// Values of the winners, and for those that are not above the floor, the floor.
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

// Probabilities of the values in scratch.top, which has room for whole vectors.
HWY_INLINE void write_probabilities(const Topk& p, std::int64_t row, const RowSum& sum,
                                    double temperature, const RowScratch& scratch) {
  const Tag d;
  const std::size_t lanes = hn::Lanes(d);
  const auto k = static_cast<std::size_t>(p.k);
  const auto scale = static_cast<float>(1.44269504088896340736 / temperature);
  Exponent e(sum.largest, scale);
  const double to_row = power_of_two(e.reference - sum.reference);
  float* const out = p.probabilities + row * p.k;
  double total = sum.sum;
  if (p.renormalize) {
    total = 0;
    for (std::size_t j = 0; j < k; j += lanes) {
      alignas(64) float weight[hn::MaxLanes(Tag())];
      hn::Store(exp2_full(d, hn::LoadU(d, scratch.top + j), e), d, weight);
      for (std::size_t i = 0; i < std::min(lanes, k - j); ++i) {
        total += static_cast<double>(weight[i]);
      }
    }
    total *= to_row;
  }
  const auto inverse = hn::Set(d, static_cast<float>(to_row / total));
  for (std::size_t j = 0; j < k; j += lanes) {
    const auto weight = exp2_full(d, hn::LoadU(d, scratch.top + j), e);
    // The largest and the sum come by different roundings: no more than 1.
    const auto probability = hn::Min(hn::Mul(weight, inverse), hn::Set(d, 1.0F));
    sd::store_some(probability, d, out + j, std::min(lanes, k - j));
  }
  if (p.log_probabilities == nullptr && p.log_sum_exp == nullptr) return;

  // Of the sum over exp((v - largest) / T).
  const double distance =
      sum.reference - static_cast<double>(sum.largest) * static_cast<double>(scale);
  const double log_sum = std::log(sum.sum) + distance * 0.693147180559945309417;
  const double log_total = std::log(total) + distance * 0.693147180559945309417;
  if (p.log_sum_exp != nullptr) {
    p.log_sum_exp[row] =
        static_cast<float>(static_cast<double>(sum.largest) / temperature + log_sum);
  }
  if (p.log_probabilities == nullptr) return;
  const double inverse_temperature = 1 / temperature;
  for (std::size_t j = 0; j < k; ++j) {
    const double below = static_cast<double>(scratch.top[j]) - static_cast<double>(sum.largest);
    p.log_probabilities[static_cast<std::size_t>(row) * k + j] =
        static_cast<float>(below * inverse_temperature - log_total);
  }
}

template <class T>
void finish_typed(const Topk& p, std::int64_t row, const ScratchSizes& sizes,
                  const RowScratch& scratch) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const double temperature = row_temperature(p, row);
  if (std::isnan(temperature)) return plain_row(p, row);
  const RowSum sum = merge_segments(scratch.segments, sizes.segments);
  // NaN, +inf, or nothing above -inf.
  if (!(sum.sum > 0)) {
    plain_row(p, row);
    if (p.status != nullptr) p.status[row] |= kRowTwoPass;
    return;
  }

  const auto k = static_cast<std::size_t>(p.k);
  const bool plain = p.bias == nullptr && p.token_mask == nullptr;
  const PlainRow<T> logits(p, row);
  const CombinedRow<T> combined{p, row};
  const Found found = plain ? Winners(logits, p, sizes, scratch).find(sum.largest)
                            : Winners(combined, p, sizes, scratch).find(sum.largest);
  const Candidate* const winners = sort_found(found.above, found.floor, sum.largest, scratch);
  const std::size_t above = std::min(found.above, k);
  write_values(winners, above, found.floor, k, scratch.top);
  if (p.wide_indices) {
    write_indices(static_cast<std::int64_t*>(p.indices) + row * p.k, winners, above, scratch.equals,
                  k);
  } else {
    write_indices(static_cast<std::int32_t*>(p.indices) + row * p.k, winners, above, scratch.equals,
                  k);
  }
  write_probabilities(p, row, sum, temperature, scratch);
  if (p.status != nullptr) p.status[row] = scratch.top[k - 1] == -kInfinity ? kRowFewerThanK : 0;
}

void finish_of(const Topk& p, std::int64_t row, const ScratchSizes& sizes,
               const RowScratch& scratch) {
  visit_float_dtype(p.dtype, [&]<class T>() {
    if constexpr (!std::is_same_v<T, double>) finish_typed<T>(p, row, sizes, scratch);
  });
}

}  // namespace touchstone::topk::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace touchstone::topk {
namespace {

HWY_EXPORT(finish_of);

}  // namespace

void finish_row(const Topk& p, std::int64_t row, const ScratchSizes& sizes,
                const RowScratch& scratch) {
  HWY_DYNAMIC_DISPATCH(finish_of)(p, row, sizes, scratch);
}

}  // namespace touchstone::topk
#endif  // HWY_ONCE
