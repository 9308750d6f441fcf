#include "ops/sample/sample_cpu_histogram.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

namespace touchstone::sampling {
namespace {

constexpr std::size_t kBins = 4096;
// Values further below the largest share the last bin: 2^21 of them weigh less than 1e-9 of the
// row.
constexpr double kRangeNats = 35;
// Tokens whose weights stay in L1 between their computation and the histogram. Those of a bin that
// is sorted are computed again: 8 bytes per token of the row would leave L2.
constexpr std::size_t kChunk = 1024;

// In the order of the output: larger values first, then smaller tokens; -0 equals 0.
selection::Candidate candidate_of(float value, std::uint32_t token) {
  const auto bits = std::bit_cast<std::uint32_t>(value + 0.0F);
  const std::uint32_t key = bits ^ ((bits >> 31) != 0 ? 0U : 0x7fffffffU);
  return std::uint64_t{key} << 32 | token;
}

// How far most values lie below the largest, from a sample; values further down share the last bin.
double sampled_range(std::span<const float> values, float largest) {
  constexpr std::size_t kSamples = 512;
  float smallest = largest;
  for (std::size_t i = 0; i < kSamples; ++i) {
    const float value = values[i * values.size() / kSamples];
    if (value < smallest && value > kMinusInfinity) smallest = value;
  }
  const double range = 1.25 * (static_cast<double>(largest) - static_cast<double>(smallest));
  return range > 0 ? range : std::numeric_limits<double>::infinity();
}

}  // namespace

HistogramScratch partition_histogram(std::int64_t vocabulary, selection::WorkspacePartition& from) {
  const auto n = static_cast<std::size_t>(vocabulary);
  HistogramScratch scratch;
  scratch.weights = from.take<double>(n);
  scratch.bins = from.take<std::uint16_t>(n);
  scratch.tokens = from.take<std::uint32_t>(n);
  scratch.sorted = from.take<selection::Candidate>(n);
  scratch.masses = from.take<double>(kBins);
  scratch.counts = from.take<std::uint32_t>(kBins);
  return scratch;
}

HistogramDraw::HistogramDraw(std::span<const float> values, float largest, double temperature,
                             const RowControls& controls, const HistogramScratch& scratch)
    : values_(values),
      controls_(controls),
      scratch_(scratch),
      how_{.largest = largest, .temperature = temperature},
      sorted_bin_(kBins) {
  fill();
}

void HistogramDraw::fill() {
  // Finite and above 0 for extreme ranges: bins may be useless then, but stay monotone.
  const double range =
      std::min(kRangeNats * how_.temperature, sampled_range(values_, how_.largest));
  how_.step = static_cast<float>(std::clamp(static_cast<double>(kBins) / range, 1e-30, 1e30));
  how_.last_bin = kBins - 1;
  const bool counts = controls_.top_k < static_cast<std::int64_t>(values_.size());
  std::fill_n(scratch_.masses, kBins, 0.0);
  if (counts) std::fill_n(scratch_.counts, kBins, 0U);
  double weights[kChunk];
  for (std::size_t first = 0; first < values_.size(); first += kChunk) {
    const std::size_t n = std::min(kChunk, values_.size() - first);
    const std::uint16_t* const bins = scratch_.bins + first;
    total_ += selection::weigh_and_bin(values_.data() + first, n, how_,
                                       {weights, scratch_.bins + first, scratch_.masses});
    for (std::size_t i = 0; counts && i < n; ++i) ++scratch_.counts[bins[i]];
  }
  std::partial_sum(scratch_.masses, scratch_.masses + kBins, scratch_.masses);
  if (counts) std::partial_sum(scratch_.counts, scratch_.counts + kBins, scratch_.counts);
}

void HistogramDraw::sort_bin(std::size_t bin) {
  if (bin == sorted_bin_) return;
  sorted_count_ = selection::collect_bin(scratch_.bins, values_.size(),
                                         static_cast<std::uint16_t>(bin), scratch_.tokens);
  for (std::size_t i = 0; i < sorted_count_; ++i) {
    const std::uint32_t token = scratch_.tokens[i];
    scratch_.sorted[i] = candidate_of(values_[token], token);
  }
  std::sort(scratch_.sorted, scratch_.sorted + sorted_count_);
  float values[kChunk];
  std::uint16_t bins[kChunk];
  for (std::size_t first = 0; first < sorted_count_; first += kChunk) {
    const std::size_t n = std::min(kChunk, sorted_count_ - first);
    for (std::size_t i = 0; i < n; ++i) values[i] = values_[token(first + i)];
    selection::weigh_and_bin(values, n, how_, {scratch_.weights + first, bins, nullptr});
  }
  sorted_bin_ = bin;
}

HistogramDraw::Border HistogramDraw::at_index(std::size_t bin, std::size_t index) {
  Border border{bin, index, token(index), bin == 0 ? 0 : scratch_.masses[bin - 1]};
  for (std::size_t i = 0; i <= index; ++i) border.mass += scratch_.weights[i];
  return border;
}

HistogramDraw::Border HistogramDraw::at_count(std::int64_t count) {
  const std::uint32_t* const counts = scratch_.counts;
  const auto wanted = static_cast<std::uint32_t>(count);
  const auto bin =
      static_cast<std::size_t>(std::lower_bound(counts, counts + kBins, wanted) - counts);
  sort_bin(bin);
  const std::size_t before = bin == 0 ? 0 : counts[bin - 1];
  return at_index(bin, static_cast<std::size_t>(wanted) - before - 1);
}

HistogramDraw::Border HistogramDraw::at_min_p() {
  const auto min_p = static_cast<double>(controls_.min_p);
  // The bin of a value that weighs min_p; bins are computed in f32, by three roundings.
  const double distance =
      -std::log(min_p) * how_.temperature * static_cast<double>(how_.step) * (1 + 1e-6);
  auto bin = static_cast<std::size_t>(std::min(distance, static_cast<double>(kBins - 1)));
  // Ends: the largest value weighs 1 and is in the first bin.
  for (;; --bin) {
    if (bin > 0 && scratch_.masses[bin] == scratch_.masses[bin - 1]) continue;
    sort_bin(bin);
    std::size_t kept = 0;
    while (kept < sorted_count_ && scratch_.weights[kept] >= min_p) ++kept;
    if (kept > 0) return at_index(bin, kept - 1);
  }
}

HistogramDraw::Border HistogramDraw::at_mass(double mass, bool exceeds) {
  const double* const masses = scratch_.masses;
  const double* const found = exceeds ? std::upper_bound(masses, masses + kBins, mass)
                                      : std::lower_bound(masses, masses + kBins, mass);
  // Rounding may put the mass beyond the last sum: then the last bin with mass.
  const double* const last = std::lower_bound(masses, masses + kBins, masses[kBins - 1]);
  const auto bin = static_cast<std::size_t>(std::min(found, last) - masses);
  sort_bin(bin);
  Border border{bin, 0, -1, bin == 0 ? 0 : masses[bin - 1]};
  for (std::size_t i = 0; i < sorted_count_; ++i) {
    const double weight = scratch_.weights[i];
    if (border.token >= 0 && !(weight > 0)) break;  // a token without weight is never drawn
    border.index = i;
    border.token = token(i);
    border.mass += weight;
    if (exceeds ? border.mass > mass : border.mass >= mass) break;
  }
  return border;
}

std::int64_t HistogramDraw::draw(double u) {
  const auto vocabulary = static_cast<std::int64_t>(values_.size());
  Border kept{kBins, 0, -1, scratch_.masses[kBins - 1]};
  double base = total_;
  if (controls_.top_k < vocabulary) {
    kept = at_count(controls_.top_k);
    base = kept.mass;
  }
  if (controls_.top_p < 1) {
    const Border border = at_mass(static_cast<double>(controls_.top_p) * base, false);
    if (border.before(kept)) kept = border;
  }
  if (controls_.min_p > 0) {
    const Border border = at_min_p();  // the largest weighs 1: at least one
    if (border.before(kept)) kept = border;
  }
  const Border drawn = at_mass(u * kept.mass, true);
  return kept.before(drawn) ? kept.token : drawn.token;
}

}  // namespace touchstone::sampling
