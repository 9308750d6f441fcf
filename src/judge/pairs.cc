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

// With fewer undisturbed blocks than these, all blocks count: a machine that is never quiet, or a
// contender that is always in its own way.
constexpr std::size_t kLeastQuiet = 6;

// The mean of the middle half: as little moved by strays as the median, and nearly twice as sure.
double middle_mean(std::vector<double>& samples) {
  std::ranges::sort(samples);
  const std::size_t cut = samples.size() / 4;
  double sum = 0.0;
  for (std::size_t i = cut; i < samples.size() - cut; ++i) sum += samples[i];
  return sum / static_cast<double>(samples.size() - 2 * cut);
}

double median_in_place(std::vector<double>& samples) {
  const std::size_t half = samples.size() / 2;
  std::ranges::nth_element(samples, samples.begin() + static_cast<std::ptrdiff_t>(half));
  const double upper = samples[half];
  if (samples.size() % 2 == 1) return upper;
  const double lower =
      *std::max_element(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(half));
  return (lower + upper) / 2;
}

// An estimate with its bootstrap 95 % interval.
template <class Estimate>
Interval resampled(std::span<const double> samples, const Estimate& estimate) {
  if (samples.empty()) throw InvalidArgument("median: expected at least one sample");
  std::vector<double> copy(samples.begin(), samples.end());
  Interval interval;
  interval.value = estimate(copy);
  interval.samples = static_cast<int>(samples.size());
  std::mt19937_64 random(samples.size());
  std::uniform_int_distribution<std::size_t> pick(0, samples.size() - 1);
  std::vector<double> estimates;
  estimates.reserve(kResamples);
  for (int i = 0; i < kResamples; ++i) {
    for (double& value : copy) value = samples[pick(random)];
    estimates.push_back(estimate(copy));
  }
  std::ranges::sort(estimates);
  interval.low = estimates[kResamples * 25 / 1000];
  interval.high = estimates[kResamples * 975 / 1000];
  return interval;
}

}  // namespace

double median(std::span<const double> samples) {
  if (samples.empty()) throw InvalidArgument("median: expected at least one sample");
  std::vector<double> copy(samples.begin(), samples.end());
  return median_in_place(copy);
}

Interval median_interval(std::span<const double> samples) {
  return resampled(samples, median_in_place);
}

std::vector<double> own_seconds(std::span<const Sample> times) {
  std::vector<double> all;
  std::vector<double> quiet;
  for (const Sample& sample : times) {
    if (!(sample.seconds > 0.0)) continue;
    all.push_back(sample.seconds);
    if (!sample.disturbed) quiet.push_back(sample.seconds);
  }
  return quiet.size() >= kLeastQuiet ? quiet : all;
}

Interval paired_ratio(std::span<const Sample> mine, std::span<const Sample> peer) {
  if (mine.size() != peer.size()) {
    throw InvalidArgument(fmt::format("paired_ratio: expected pairs, got {} and {} samples",
                                      mine.size(), peer.size()));
  }
  std::vector<double> all;
  std::vector<double> quiet;
  for (std::size_t i = 0; i < mine.size(); ++i) {
    if (!(mine[i].seconds > 0.0 && peer[i].seconds > 0.0)) continue;
    all.push_back(std::log(mine[i].seconds / peer[i].seconds));
    if (!mine[i].disturbed && !peer[i].disturbed) quiet.push_back(all.back());
  }
  if (all.empty()) throw InvalidArgument("paired_ratio: expected at least one pair");
  Interval interval = resampled(quiet.size() >= kLeastQuiet ? quiet : all, middle_mean);
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
