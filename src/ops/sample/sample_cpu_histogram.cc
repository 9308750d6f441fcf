#include "ops/sample/sample_cpu_histogram.h"

#include <algorithm>

#include "ops/selection/cpu/cpu_weights.h"

namespace touchstone::sampling {
namespace {

constexpr std::size_t kBins = 4096;
// Values further below the largest share the last bin: 2^21 of them weigh less than 1e-9 of the
// row.
constexpr double kRangeNats = 35;

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
                             const HistogramScratch& scratch)
    : values_(values), scratch_(scratch), sorted_bin_(kBins) {
  float smallest = largest;  // above -inf
  for (const float value : values) {
    smallest = value < smallest && value > kMinusInfinity ? value : smallest;
  }
  const double range = std::min(kRangeNats * temperature,
                                static_cast<double>(largest) - static_cast<double>(smallest));
  // Finite and above 0 for extreme ranges: bins may be useless then, but stay monotone.
  const double step = std::clamp(static_cast<double>(kBins) / range, 1e-30, 1e30);
  total_ =
      selection::weigh_and_bin(values.data(), values.size(), largest, temperature,
                               static_cast<float>(step), kBins - 1, scratch.weights, scratch.bins);
  fill();
}

void HistogramDraw::fill() {
  std::fill_n(scratch_.masses, kBins, 0.0);
  std::fill_n(scratch_.counts, kBins, 0U);
  for (std::size_t i = 0; i < values_.size(); ++i) {
    const std::size_t bin = scratch_.bins[i];
    scratch_.masses[bin] += scratch_.weights[i];
    ++scratch_.counts[bin];
  }
  for (std::size_t bin = 1; bin < kBins; ++bin) {
    scratch_.masses[bin] += scratch_.masses[bin - 1];
    scratch_.counts[bin] += scratch_.counts[bin - 1];
  }
}

void HistogramDraw::sort_bin(std::size_t bin) {
  if (bin == sorted_bin_) return;
  constexpr std::size_t kTogether = 32;
  const auto wanted = static_cast<std::uint16_t>(bin);
  const std::uint16_t* const bins = scratch_.bins;
  std::size_t count = 0;
  for (std::size_t first = 0; first < values_.size(); first += kTogether) {
    const std::size_t end = std::min(first + kTogether, values_.size());
    bool any = false;
    for (std::size_t i = first; i < end; ++i) any |= bins[i] == wanted;
    if (!any) continue;
    for (std::size_t i = first; i < end; ++i) {
      scratch_.tokens[count] = static_cast<std::uint32_t>(i);
      count += bins[i] == wanted ? 1 : 0;
    }
  }
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

std::int64_t HistogramDraw::draw(const RowControls& controls, double u) {
  const auto vocabulary = static_cast<std::int64_t>(values_.size());
  const auto min_p = static_cast<double>(controls.min_p);
  Border kept{kBins, 0, -1, scratch_.masses[kBins - 1]};
  double base = total_;
  if (controls.top_k < vocabulary) {
    kept = at_count(controls.top_k);
    base = kept.mass;
  }
  if (controls.top_p < 1) {
    const Border border = at_mass(static_cast<double>(controls.top_p) * base, false);
    if (border.before(kept)) kept = border;
  }
  if (min_p > 0) {
    const auto count = std::count_if(scratch_.weights, scratch_.weights + vocabulary,
                                     [min_p](double weight) { return weight >= min_p; });
    const Border border = at_count(count);  // the largest weighs 1: at least one
    if (border.before(kept)) kept = border;
  }
  const Border drawn = at_mass(u * kept.mass, true);
  return kept.before(drawn) ? kept.token : drawn.token;
}

}  // namespace touchstone::sampling
