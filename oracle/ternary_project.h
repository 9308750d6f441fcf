// The projection to ternary weights in float64: the specification the kernels are held to.
//
//   s = mean |w|, max |w|, or the s that with its best codes minimizes the sum of (w - s c)^2
//   c = sign(w) where 2 |w| > s, else 0
//
// Deliberately naive: of a group in least squares, every number of codes other than 0 is tried.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

namespace touchstone::oracle {

enum class TernaryScale { mean, absmax, least_squares };

inline double ternary_scale(TernaryScale rule, std::vector<double> group) {
  for (double& w : group) w = std::fabs(w);
  std::sort(group.begin(), group.end(), std::greater<>());
  if (rule == TernaryScale::absmax) return group.front();
  double sum = 0;
  double best = 0;
  double scale = 0;
  for (size_t n = 1; n <= group.size(); ++n) {
    sum += group[n - 1];
    const auto count = static_cast<double>(n);
    // With n codes other than 0 the error is the sum of squares less this.
    if (sum * sum / count > best) {
      best = sum * sum / count;
      scale = sum / count;
    }
  }
  return rule == TernaryScale::mean ? sum / static_cast<double>(group.size()) : scale;
}

inline int64_t ternary_code(double w, double scale) {
  if (!(2 * std::fabs(w) > scale)) return 0;
  return w < 0 ? -1 : 1;
}

}  // namespace touchstone::oracle
