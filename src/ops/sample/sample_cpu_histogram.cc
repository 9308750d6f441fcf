#include "ops/sample/sample_cpu_histogram.h"

#include <algorithm>
#include <limits>

#include "ops/selection/cpu/cpu_weights.h"

namespace touchstone::sampling {
namespace {

constexpr std::size_t kBins = 4096;
// Values further below the largest share the last bin: 2^21 of them weigh less than 1e-9 of the
// row.
constexpr double kRangeNats = 35;
// Tokens whose weights stay in L1 between their computation and the histogram.
constexpr std::size_t kChunk = 1024;

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
  scratch.masses = from.take<double>(kBins);
  scratch.counts = from.take<std::uint32_t>(kBins);
  return scratch;
}

HistogramDraw::HistogramDraw(std::span<const float> values, float largest, double temperature,
                             const RowControls& controls, const HistogramScratch& scratch)
    : values_(values), controls_(controls), scratch_(scratch), sorted_bin_(kBins) {
  fill(largest, temperature);
}

void HistogramDraw::fill(float largest, double temperature) {
  // Bins per unit of value. Finite and above 0 for extreme ranges: bins may be useless then, but
  // stay monotone.
  const double range = std::min(kRangeNats * temperature, sampled_range(values_, largest));
  const auto step = static_cast<float>(std::clamp(static_cast<double>(kBins) / range, 1e-30, 1e30));
  const auto min_p = static_cast<double>(controls_.min_p);
  const bool counts = min_p > 0 || controls_.top_k < static_cast<std::int64_t>(values_.size());
  std::fill_n(scratch_.masses, kBins, 0.0);
  std::fill_n(scratch_.counts, kBins, 0U);
  for (std::size_t first = 0; first < values_.size(); first += kChunk) {
    const std::size_t n = std::min(kChunk, values_.size() - first);
    double* const weights = scratch_.weights + first;
    const std::uint16_t* const bins = scratch_.bins + first;
    total_ += selection::weigh_and_bin(values_.data() + first, n, largest, temperature, step,
                                       kBins - 1, weights, scratch_.bins + first);
    for (std::size_t i = 0; i < n; ++i) scratch_.masses[bins[i]] += weights[i];
    if (!counts) continue;
    for (std::size_t i = 0; i < n; ++i) ++scratch_.counts[bins[i]];
    std::int64_t kept = 0;
    for (std::size_t i = 0; i < n; ++i) kept += weights[i] >= min_p ? 1 : 0;
    kept_by_min_p_ += kept;
  }
  for (std::size_t bin = 1; bin < kBins; ++bin) {
    scratch_.masses[bin] += scratch_.masses[bin - 1];
    scratch_.counts[bin] += scratch_.counts[bin - 1];
  }
}

void HistogramDraw::sort_bin(std::size_t bin) {
  if (bin == sorted_bin_) return;
  const auto wanted = static_cast<std::uint16_t>(bin);
  const std::uint16_t* const bins = scratch_.bins;
  std::size_t count = 0;
  const auto collect = [&](std::size_t first, std::size_t end) {
    for (std::size_t i = first; i < end; ++i) {
      scratch_.tokens[count] = static_cast<std::uint32_t>(i);
      count += bins[i] == wanted ? 1 : 0;
    }
  };
  constexpr std::size_t kTogether = 64;
  std::size_t first = 0;
  for (; first + kTogether <= values_.size(); first += kTogether) {
    std::uint16_t hits = 0;  // a reduction that vectorizes
    for (std::size_t i = 0; i < kTogether; ++i) {
      hits = static_cast<std::uint16_t>(hits | (bins[first + i] == wanted ? 1 : 0));
    }
    if (hits != 0) collect(first, first + kTogether);
  }
  collect(first, values_.size());
  const auto before = [this](std::uint32_t a, std::uint32_t b) {
    return values_[a] > values_[b] || (values_[a] == values_[b] && a < b);
  };
  std::uint32_t* const tokens = scratch_.tokens;
  if (!std::is_sorted(tokens, tokens + count, before)) std::sort(tokens, tokens + count, before);
  sorted_bin_ = bin;
  sorted_count_ = count;
}

HistogramDraw::Border HistogramDraw::at_count(std::int64_t count) {
  const std::uint32_t* const counts = scratch_.counts;
  const auto wanted = static_cast<std::uint32_t>(count);
  const auto bin =
      static_cast<std::size_t>(std::lower_bound(counts, counts + kBins, wanted) - counts);
  sort_bin(bin);
  const std::size_t before = bin == 0 ? 0 : counts[bin - 1];
  Border border{bin, static_cast<std::size_t>(wanted) - before - 1, -1,
                bin == 0 ? 0 : scratch_.masses[bin - 1]};
  for (std::size_t i = 0; i <= border.index; ++i) {
    border.mass += scratch_.weights[scratch_.tokens[i]];
  }
  border.token = scratch_.tokens[border.index];
  return border;
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
    const double weight = scratch_.weights[scratch_.tokens[i]];
    if (border.token >= 0 && !(weight > 0)) break;  // a token without weight is never drawn
    border.index = i;
    border.token = scratch_.tokens[i];
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
    const Border border = at_count(kept_by_min_p_);  // the largest weighs 1: at least one
    if (border.before(kept)) kept = border;
  }
  const Border drawn = at_mass(u * kept.mass, true);
  return kept.before(drawn) ? kept.token : drawn.token;
}

}  // namespace touchstone::sampling
