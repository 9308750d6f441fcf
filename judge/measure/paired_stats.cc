#include "judge/measure/paired_stats.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

constexpr int kResamples = 1000;
// The promise for a shared machine with two cores.
constexpr double kTwinMargin = 0.02;
// A twin that is not known to that either says nothing, even where it reads 1.
constexpr double kTwinWidth = 0.02;
// Beyond this, to either side, a session knows too little for any speed to be worth telling.
constexpr double kTwinMost = 0.10;

// With fewer undisturbed blocks than these, all blocks count: a machine that is never quiet, or a
// contender that is always in its own way.
constexpr std::size_t kMinQuiet = 6;
// Of one process alone nothing can be drawn again.
constexpr std::size_t kMinProcesses = 2;

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

using Groups = std::vector<std::vector<double>>;

std::vector<double> joined(const Groups& groups) {
  std::vector<double> all;
  for (const std::vector<double>& group : groups) all.insert(all.end(), group.begin(), group.end());
  return all;
}

// Drawing again from few groups shows too little of how much they differ: by the root of n / (n -
// 1) and by what Student's distribution has over the normal one (its 97.5 % point, to 4 %).
double few_groups_factor(std::size_t groups) {
  if (groups < 2) return 1.0;
  const auto n = static_cast<double>(groups);
  const double freedom = n - 1.0;
  const double normal = 1.96;
  const double student =
      freedom < 2.0 ? 12.71 : normal + 2.37 / freedom + 2.8 / (freedom * freedom);
  return student / normal * std::sqrt(n / freedom);
}

// An estimate with its bootstrap 95 % interval: groups are drawn again, with all that is in them.
template <class Estimate>
Interval resampled(const Groups& groups, const Estimate& estimate) {
  std::vector<double> all = joined(groups);
  if (all.empty()) throw InvalidArgument("median: expected at least one sample");
  Interval interval;
  interval.samples = static_cast<int>(all.size());
  interval.value = estimate(all);
  std::mt19937_64 random(all.size());
  std::uniform_int_distribution<std::size_t> pick(0, groups.size() - 1);
  std::vector<double> estimates;
  estimates.reserve(kResamples);
  for (int i = 0; i < kResamples; ++i) {
    all.clear();
    for (std::size_t k = 0; k < groups.size(); ++k) {
      const std::vector<double>& group = groups[pick(random)];
      all.insert(all.end(), group.begin(), group.end());
    }
    estimates.push_back(estimate(all));
  }
  std::ranges::sort(estimates);
  interval.low = estimates[kResamples * 25 / 1000];
  interval.high = estimates[kResamples * 975 / 1000];
  return interval;
}

Groups one_by_one(std::span<const double> samples) {
  Groups groups;
  for (const double sample : samples) groups.push_back({sample});
  return groups;
}

}  // namespace

double median(std::span<const double> samples) {
  if (samples.empty()) throw InvalidArgument("median: expected at least one sample");
  std::vector<double> copy(samples.begin(), samples.end());
  return median_in_place(copy);
}

Interval median_interval(std::span<const double> samples) {
  return resampled(one_by_one(samples), median_in_place);
}

std::vector<double> own_seconds(std::span<const Sample> times) {
  std::vector<double> all;
  std::vector<double> quiet;
  for (const Sample& sample : times) {
    if (!(sample.seconds > 0.0)) continue;
    all.push_back(sample.seconds);
    if (!sample.disturbed) quiet.push_back(sample.seconds);
  }
  return quiet.size() >= kMinQuiet ? quiet : all;
}

Interval paired_ratio(std::span<const Sample> mine, std::span<const Sample> peer) {
  if (mine.size() != peer.size()) {
    throw InvalidArgument(fmt::format("paired_ratio: expected pairs, got {} and {} samples",
                                      mine.size(), peer.size()));
  }
  std::map<int, std::vector<double>> all;
  std::map<int, std::vector<double>> quiet;
  std::size_t quiet_pairs = 0;
  for (std::size_t i = 0; i < mine.size(); ++i) {
    if (!(mine[i].seconds > 0.0 && peer[i].seconds > 0.0)) continue;
    const double ratio = std::log(mine[i].seconds / peer[i].seconds);
    const int older = std::min(mine[i].process, peer[i].process);
    all[older].push_back(ratio);
    if (mine[i].disturbed || peer[i].disturbed) continue;
    quiet[older].push_back(ratio);
    ++quiet_pairs;
  }
  if (all.empty()) throw InvalidArgument("paired_ratio: expected at least one pair");
  Groups groups;
  for (const auto& [process, ratios] : quiet_pairs >= kMinQuiet ? quiet : all) {
    groups.push_back(ratios);
  }
  if (groups.size() < kMinProcesses) groups = one_by_one(joined(groups));
  Interval interval = resampled(groups, middle_mean);
  const double factor = few_groups_factor(groups.size());
  const double below = factor * (interval.value - interval.low);
  const double above = factor * (interval.high - interval.value);
  interval.low = std::exp(interval.value - below);
  interval.high = std::exp(interval.value + above);
  interval.value = std::exp(interval.value);
  return interval;
}

Interval mean_ratio(std::span<const Interval> ratios) {
  if (ratios.empty()) throw InvalidArgument("mean_ratio: expected at least one ratio");
  double sum = 0.0;
  double below = 0.0;  // squares of the half widths: independent errors add so
  double above = 0.0;
  int samples = 0;
  for (const Interval& ratio : ratios) {
    const double center = std::log(ratio.value);
    sum += center;
    below += std::pow(center - std::log(ratio.low), 2);
    above += std::pow(std::log(ratio.high) - center, 2);
    samples += ratio.samples;
  }
  const auto count = static_cast<double>(ratios.size());
  const double center = sum / count;
  return {std::exp(center), std::exp(center - std::sqrt(below) / count),
          std::exp(center + std::sqrt(above) / count), samples};
}

Interval widened(const Interval& interval, double margin) {
  Interval wide = interval;
  wide.low = interval.low * std::exp(-margin);
  wide.high = interval.high * std::exp(margin);
  return wide;
}

std::string twin_failure(const Interval& ratio) {
  const double off = std::abs(std::log(ratio.value));
  if (!(off <= std::log1p(kTwinMost))) {
    return fmt::format("a twin of the same code reads {:.3f} times its time", ratio.value);
  }
  if (!(std::log(ratio.high / ratio.low) <= 2 * std::log1p(kTwinMost))) {
    return fmt::format("a twin of the same code reads between {:.3f} and {:.3f} times its time",
                       ratio.low, ratio.high);
  }
  if ((ratio.low > 1.0 || ratio.high < 1.0) && off > std::log1p(kTwinMargin)) {
    return fmt::format(
        "a twin of the same code reads {:.3f} times its time, and surely not 1 ({:.3f} to {:.3f})",
        ratio.value, ratio.low, ratio.high);
  }
  return {};
}

std::string twin_fault(const Interval& ratio) {
  if (!(std::abs(ratio.value - 1.0) <= kTwinMargin)) {
    return fmt::format("a twin of the same code reads {:.3f} times its time", ratio.value);
  }
  if (!(ratio.high - ratio.low <= 2 * kTwinWidth + 1e-9)) {
    return fmt::format("a twin of the same code reads between {:.3f} and {:.3f} times its time",
                       ratio.low, ratio.high);
  }
  return {};
}

}  // namespace touchstone::judge
