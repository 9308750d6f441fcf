// Sorts collected tokens into output order. No #pragma once: read once per target, after
// cpu/simd.h.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "ops/selection/cpu/cpu_values.h"

#if defined(TOUCHSTONE_SELECTION_CPU_SORT_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TOUCHSTONE_SELECTION_CPU_SORT_H_
#undef TOUCHSTONE_SELECTION_CPU_SORT_H_
#else
#define TOUCHSTONE_SELECTION_CPU_SORT_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace touchstone::selection::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using CandidateTag = hn::ScalableTag<Candidate>;

// Unsigned order of keys = descending order of values; -0 equals 0.
HWY_INLINE std::uint32_t key_of(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value + 0.0F);
  return bits ^ ((bits >> 31) != 0 ? 0U : 0x7fffffffU);
}

// Bits of values to keys and back.
template <class V>
HWY_INLINE V flip_positive(V bits) {
  const hn::DFromV<V> du;
  const hn::RebindToSigned<decltype(du)> di;
  const auto negative = hn::BitCast(du, hn::BroadcastSignBit(hn::BitCast(di, bits)));
  return hn::Xor(bits, hn::AndNot(negative, hn::Set(du, 0x7fffffffU)));
}

HWY_INLINE Vector found_value(const RowScratch& scratch, std::size_t i) {
  return hn::BitCast(Tag(), hn::LoadU(hn::RebindToUnsigned<Tag>(), scratch.found_bits + i));
}

// Turns the bits of n collected values into keys, in whole vectors.
HWY_INLINE void make_keys(std::size_t n, const RowScratch& scratch) {
  const Tag d;
  const hn::RebindToUnsigned<Tag> du;
  for (std::size_t i = 0; i < n; i += hn::Lanes(d)) {
    const auto value = hn::Add(found_value(scratch, i), hn::Zero(d));
    hn::StoreU(flip_positive(hn::BitCast(du, value)), du, scratch.found_bits + i);
  }
}

// From a key and its token.
HWY_INLINE Candidate candidate(const RowScratch& scratch, std::size_t i) {
  return std::uint64_t{scratch.found_bits[i]} << 32 | scratch.found_tokens[i];
}

// ---- few or very many --------------------------------------------------------------------------

// Rank sort for few: each goes to the index given by the number of smaller ones. Space for whole
// vectors.
void sort_by_rank(Candidate* a, std::size_t n, Candidate* to) {
  const CandidateTag d;
  const std::size_t lanes = hn::Lanes(d);
  for (std::size_t i = n; i % lanes != 0; ++i) a[i] = ~std::uint64_t{0};
  for (std::size_t i = 0; i < n; ++i) {
    const auto own = hn::Set(d, a[i]);
    std::size_t rank = 0;
    for (std::size_t j = 0; j < n; j += lanes) {
      rank += hn::CountTrue(d, hn::Lt(hn::LoadU(d, a + j), own));
    }
    to[rank] = a[i];
  }
}

// Digits are 8 to 10 bits wide.
constexpr int kMaxDigitBits = 10;
constexpr std::size_t kMaxDigits = std::size_t{1} << kMaxDigitBits;

// Exclusive prefix sums of digit counts.
HWY_INLINE void exclusive_sums(std::uint32_t* low, std::uint32_t* high, std::size_t digits) {
  std::uint32_t low_sum = 0;
  std::uint32_t high_sum = 0;
  for (std::size_t i = 0; i < digits; ++i) {
    low_sum += std::exchange(low[i], low_sum);
    high_sum += std::exchange(high[i], high_sum);
  }
}

// LSD radix sort by the two digits from `shift` on of the distance to `least`. Stable; the result
// is in `a`.
void sort_by_two_digits(Candidate* a, std::size_t n, Candidate least, int shift, int digit_bits,
                        Candidate* room) {
  std::uint32_t low[kMaxDigits];
  std::uint32_t high[kMaxDigits];
  const std::size_t digits = std::size_t{1} << digit_bits;
  // Past the last bit, a digit repeats that bit.
  const int low_shift = std::min(shift, 63);
  const int high_shift = std::min(shift + digit_bits, 63);
  const auto digit = [=](Candidate c, int by) { return (c - least) >> by & (digits - 1); };
  std::fill_n(low, digits, 0);
  std::fill_n(high, digits, 0);
  for (std::size_t i = 0; i < n; ++i) {
    ++low[digit(a[i], low_shift)];
    ++high[digit(a[i], high_shift)];
  }
  exclusive_sums(low, high, digits);
  for (std::size_t i = 0; i < n; ++i) room[low[digit(a[i], low_shift)]++] = a[i];
  for (std::size_t i = 0; i < n; ++i) a[high[digit(room[i], high_shift)]++] = room[i];
}

// Insertion sort of a nearly sorted array: finds elements smaller than their predecessor, a vector
// at a time, and inserts them. Gives up, with all elements present, if there are many.
bool sort_by_insertion(Candidate* a, std::size_t n) {
  const CandidateTag d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t moves = 2 * n;
  for (std::size_t i = 1; i < n; i += lanes) {
    const std::size_t end = std::min(n, i + lanes);
    if (end == i + lanes && hn::AllFalse(d, hn::Lt(hn::LoadU(d, a + i), hn::LoadU(d, a + i - 1)))) {
      continue;
    }
    for (std::size_t m = i; m < end; ++m) {
      const Candidate c = a[m];
      std::size_t j = m;
      for (; j > 0 && a[j - 1] > c && moves > 0; --j, --moves) a[j] = a[j - 1];
      a[j] = c;
    }
  }
  return moves > 0;
}

// The two top digits sort nearly everything, and insertion the rest; if one value far above the
// others occupies those digits, all digits are sorted. All values lie between `floor` and
// `largest`.
void sort_by_digits(Candidate* a, std::size_t n, float floor, float largest, Candidate* room) {
  const Candidate least = std::uint64_t{key_of(largest)} << 32;
  Candidate most = std::uint64_t{key_of(floor)} << 32 | 0xffffffffU;
  if (std::isinf(floor)) most = *std::max_element(a, a + n);  // much tighter
  const auto bits = static_cast<int>(std::bit_width(most - least));
  // A hundred times as many pairs of digits as there are candidates.
  const int digit_bits =
      std::clamp((static_cast<int>(std::bit_width(n)) + 7) / 2, 8, kMaxDigitBits);
  sort_by_two_digits(a, n, least, std::max(0, bits - 2 * digit_bits), digit_bits, room);
  if (sort_by_insertion(a, n)) return;
  for (int done = 0; done < bits; done += 2 * kMaxDigitBits) {
    sort_by_two_digits(a, n, least, done, kMaxDigitBits, room);
  }
}

// ---- up to kMaxBinned --------------------------------------------------------------------------
//
// Values above a floor thin out nearly exponentially, so bins that narrow toward the floor hold
// about the same number each, mostly none or one. One scatter by bins leaves little to sort.

constexpr std::size_t kBins = 4096;
constexpr std::size_t kMaxBinned = 5120;  // candidates

// Consecutive bins occupy one lane of consecutive vectors of counters, so that prefix sums are sums
// of vectors.
constexpr std::size_t kBinLanes = hn::MaxLanes(hn::ScalableTag<std::uint16_t>());
constexpr std::size_t kBinRows = kBins / kBinLanes;

// Mean distance of the collected values from the floor, without a partial vector at the end.
HWY_INLINE float mean_distance(std::size_t n, float floor, const RowScratch& scratch) {
  const Tag d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t counted = n / (2 * lanes) * 2 * lanes;
  const auto low = hn::Set(d, floor);
  auto even = hn::Zero(d);
  auto odd = even;
  for (std::size_t i = 0; i < counted; i += 2 * lanes) {
    even = hn::Add(even, hn::Sub(found_value(scratch, i), low));
    odd = hn::Add(odd, hn::Sub(found_value(scratch, i + lanes), low));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd))) / static_cast<float>(counted);
}

// The counter of the bin of each value. Larger values have smaller bins: every operation is
// monotone, so rounding does not change the order. False if bins do not suit the values.
HWY_INLINE bool find_bins(std::size_t n, float floor, const RowScratch& scratch) {
  const Tag d;
  const hn::RebindToSigned<Tag> di;
  const hn::Rebind<std::uint16_t, Tag> d16;
  const float scale = 1.442695F / mean_distance(n, floor, scratch);
  if (!(scale > 0 && std::isfinite(scale))) return false;
  const auto one = hn::Set(d, 127 * 0x1p23F);  // the bits of 1
  for (std::size_t i = 0; i < n; i += hn::Lanes(d)) {
    const auto distance = hn::Sub(found_value(scratch, i), hn::Set(d, floor));
    const auto octaves = hn::Min(hn::Mul(distance, hn::Set(d, scale)), hn::Set(d, 126.0F));
    // 2^-octaves to a few percent: the bits of a float approximate its logarithm.
    const auto bits = hn::ConvertTo(di, hn::NegMulAdd(octaves, hn::Set(d, 0x1p23F), one));
    const auto share = hn::Mul(hn::BitCast(d, bits), hn::Set(d, static_cast<float>(kBins - 1)));
    const auto bin = hn::ConvertTo(di, share);
    const auto lane = hn::ShiftRight<std::countr_zero(kBinRows)>(bin);
    const auto row = hn::And(bin, hn::Set(di, kBinRows - 1));
    const auto counter = hn::Add(hn::ShiftLeft<std::countr_zero(kBinLanes)>(row), lane);
    hn::StoreU(hn::DemoteTo(d16, counter), d16, scratch.bins + i);
  }
  return true;
}

// Exclusive prefix sums of bin counts.
HWY_INLINE void exclusive_bin_sums(std::uint16_t* counters) {
  const hn::ScalableTag<std::uint16_t> d;
  auto sum = hn::Zero(d);
  for (std::size_t i = 0; i < kBins; i += kBinLanes) sum = hn::Add(sum, hn::Load(d, counters + i));
  alignas(64) std::uint16_t begins[kBinLanes];
  hn::Store(sum, d, begins);
  std::uint16_t before = 0;
  for (std::uint16_t& begin : begins) {
    before = static_cast<std::uint16_t>(before + std::exchange(begin, before));
  }
  sum = hn::Load(d, begins);
  for (std::size_t i = 0; i < kBins; i += kBinLanes) {
    const auto count = hn::Load(d, counters + i);
    hn::Store(sum, d, counters + i);
    sum = hn::Add(sum, count);
  }
}

// Three passes of odd-even transposition: nearly sorts an array that is sorted up to runs of three.
// Overwrites up to a vector behind the end.
HWY_INLINE void swap_neighbors([[maybe_unused]] Candidate* a, [[maybe_unused]] std::size_t n) {
#if HWY_TARGET != HWY_SCALAR
  const CandidateTag d;
  std::fill_n(a + n, hn::Lanes(d), ~Candidate{0});
  for (std::size_t pass = 0; pass < 3; ++pass) {
    for (std::size_t i = pass % 2; i < n; i += hn::Lanes(d)) {
      const auto own = hn::LoadU(d, a + i);
      const auto other = hn::Shuffle01(own);
      const auto less = hn::Lt(other, own);
      const auto first = hn::IfThenElse(less, other, own);
      const auto second = hn::IfThenElse(less, own, other);
      hn::StoreU(hn::OddEven(second, first), d, a + i);
    }
  }
#endif
}

// Into scratch.sorted, in the order of bins. Stable.
void scatter_into_bins(std::size_t n, const RowScratch& scratch) {
  alignas(64) std::uint16_t counters[kBins];
  std::fill_n(counters, kBins, std::uint16_t{0});
  // Prefetch: stores retire in order, so none should miss.
  for (std::size_t i = 0; i < n; i += 64 / sizeof(Candidate)) {
    __builtin_prefetch(scratch.sorted + i, 1, 3);
  }
  const std::uint16_t* const bins = scratch.bins;
  for (std::size_t i = 0; i < n; ++i) ++counters[bins[i]];
  exclusive_bin_sums(counters);
  for (std::size_t i = 0; i < n; ++i) {
    scratch.sorted[counters[bins[i]]++] = candidate(scratch, i);
  }
}

// ---- any number --------------------------------------------------------------------------------

// Returns the array with the result. All values lie between `floor` and `largest`.
const Candidate* sort_found(std::size_t n, float floor, float largest, const RowScratch& scratch) {
  constexpr std::size_t kFew = 128;
  const bool binned = n > kFew && n <= kMaxBinned && find_bins(n, floor, scratch);
  make_keys(n, scratch);
  Candidate* const sorted = scratch.sorted;
  if (binned) {
    scatter_into_bins(n, scratch);
    swap_neighbors(sorted, n);
    if (sort_by_insertion(sorted, n)) return sorted;
  }
  Candidate* const a = scratch.candidates;
  for (std::size_t i = 0; i < n; ++i) a[i] = candidate(scratch, i);
  if (n > kFew) {
    sort_by_digits(a, n, floor, largest, sorted);
    return a;
  }
  sort_by_rank(a, n, sorted);
  return sorted;
}

}  // namespace touchstone::selection::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
