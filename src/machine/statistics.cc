#include "machine/statistics.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "touchstone/core/error.h"

namespace touchstone::machine {
namespace {

double quantile(const std::vector<double>& sorted, double q) {
  const double position = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], position - static_cast<double>(below));
}

}  // namespace

Summary summarize(std::span<const double> samples) {
  if (samples.empty()) throw InvalidArgument("summarize: samples: expected at least one, got none");
  std::vector<double> sorted(samples.begin(), samples.end());
  std::ranges::sort(sorted);
  Summary summary;
  summary.median = quantile(sorted, 0.5);
  summary.best = sorted.front();
  const double range = quantile(sorted, 0.75) - quantile(sorted, 0.25);
  summary.spread = summary.median > 0 ? range / 2 / summary.median : 0;
  return summary;
}

}  // namespace touchstone::machine
