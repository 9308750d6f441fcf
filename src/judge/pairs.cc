#include "judge/pairs.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "fmt/format.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

constexpr int kResamples = 1000;
// The promise for a shared machine with two cores.
constexpr double kTwinMargin = 0.02;
// Beyond this the twin says nothing, even where its median is at 1.
constexpr double kTwinWidth = 0.05;

double median_in_place(std::vector<double>& samples) {
  const std::size_t half = samples.size() / 2;
  std::ranges::nth_element(samples, samples.begin() + static_cast<std::ptrdiff_t>(half));
  const double upper = samples[half];
  if (samples.size() % 2 == 1) return upper;
  const double lower =
      *std::max_element(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(half));
  return (lower + upper) / 2;
}

}  // namespace

double median(std::span<const double> samples) {
  if (samples.empty()) throw InvalidArgument("median: expected at least one sample");
  std::vector<double> copy(samples.begin(), samples.end());
  return median_in_place(copy);
}

Interval median_interval(std::span<const double> samples) {
  Interval interval;
  interval.value = median(samples);
  interval.samples = static_cast<int>(samples.size());
  std::mt19937_64 random(samples.size());
  std::uniform_int_distribution<std::size_t> pick(0, samples.size() - 1);
  std::vector<double> resample(samples.size());
  std::vector<double> medians;
  medians.reserve(kResamples);
  for (int i = 0; i < kResamples; ++i) {
    for (double& value : resample) value = samples[pick(random)];
    medians.push_back(median_in_place(resample));
  }
  std::ranges::sort(medians);
  interval.low = medians[kResamples * 25 / 1000];
  interval.high = medians[kResamples * 975 / 1000];
  return interval;
}

Interval paired_ratio(std::span<const double> mine, std::span<const double> peer) {
  if (mine.size() != peer.size()) {
    throw InvalidArgument(fmt::format("paired_ratio: expected pairs, got {} and {} samples",
                                      mine.size(), peer.size()));
  }
  std::vector<double> logs;
  for (std::size_t i = 0; i < mine.size(); ++i) {
    if (mine[i] > 0.0 && peer[i] > 0.0) logs.push_back(std::log(mine[i] / peer[i]));
  }
  if (logs.empty()) throw InvalidArgument("paired_ratio: expected at least one pair");
  Interval interval = median_interval(logs);
  interval.value = std::exp(interval.value);
  interval.low = std::exp(interval.low);
  interval.high = std::exp(interval.high);
  return interval;
}

Interval mean_ratio(std::span<const Interval> ratios) {
  if (ratios.empty()) throw InvalidArgument("mean_ratio: expected at least one ratio");
  double sum = 0.0;
  double below = 0.0;  // squares of the half widths: independent errors add so
  double above = 0.0;
  int samples = 0;
  for (const Interval& ratio : ratios) {
    const double centre = std::log(ratio.value);
    sum += centre;
    below += std::pow(centre - std::log(ratio.low), 2);
    above += std::pow(std::log(ratio.high) - centre, 2);
    samples += ratio.samples;
  }
  const auto count = static_cast<double>(ratios.size());
  const double centre = sum / count;
  return {std::exp(centre), std::exp(centre - std::sqrt(below) / count),
          std::exp(centre + std::sqrt(above) / count), samples};
}

Outcome outcome(const Interval& ratio, double margin) {
  if (ratio.low >= 1.0 - margin && ratio.high <= 1.0 + margin) return Outcome::same;
  if (ratio.high < 1.0) return Outcome::faster;
  if (ratio.low > 1.0) return Outcome::slower;
  return Outcome::unresolved;
}

std::string twin_fault(const Interval& ratio) {
  if (!(std::abs(ratio.value - 1.0) <= kTwinMargin)) {
    return fmt::format("a twin of the same code reads {:.3f} times its time", ratio.value);
  }
  if (!(ratio.high - ratio.low <= 2 * kTwinWidth)) {
    return fmt::format("a twin of the same code reads between {:.3f} and {:.3f} times its time",
                       ratio.low, ratio.high);
  }
  return {};
}

}  // namespace touchstone::judge
