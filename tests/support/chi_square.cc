#include "tests/support/chi_square.h"

#include <cmath>

namespace touchstone::test {
namespace {

// Upper tail of the gamma distribution, Q(a, x): the series for small x, Lentz's continued fraction
// for large (Numerical Recipes 6.2). Good to 1e-10, ample for a threshold of 1e-6.
double gamma_q(double a, double x) {
  if (x <= 0) return 1;
  const double scale = std::exp(-x + a * std::log(x) - std::lgamma(a));
  if (x < a + 1) {
    double term = 1 / a;
    double sum = term;
    for (double n = a + 1; term > sum * 1e-15; ++n) sum += (term *= x / n);
    return 1 - sum * scale;
  }
  double b = x + 1 - a;
  double c = 1e300;
  double d = 1 / b;
  double h = d;
  for (int i = 1; i < 10000; ++i) {
    const double an = -i * (i - a);
    b += 2;
    d = 1 / (an * d + b);
    c = b + an / c;
    h *= d * c;
    if (std::fabs(d * c - 1) < 1e-14) break;
  }
  return h * scale;
}

}  // namespace

double chi_square_p(const std::vector<std::int64_t>& counts,
                    const std::vector<double>& probability) {
  double draws = 0;
  for (const std::int64_t count : counts) draws += static_cast<double>(count);
  double statistic = 0;
  int cells = 0;
  double rare_expected = 0;
  double rare_counted = 0;
  const auto add = [&](double expected, double counted) {
    statistic += (counted - expected) * (counted - expected) / expected;
    ++cells;
  };
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double expected = probability[i] * draws;
    const auto counted = static_cast<double>(counts[i]);
    if (expected == 0 && counted > 0) return 0;
    if (expected >= 10) {
      add(expected, counted);
    } else {
      rare_expected += expected;
      rare_counted += counted;
    }
  }
  if (rare_expected >= 10) add(rare_expected, rare_counted);
  return cells < 2 ? 1 : gamma_q((cells - 1) / 2.0, statistic / 2);
}

}  // namespace touchstone::test
