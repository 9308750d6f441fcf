#include "tests/support/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "touchstone/core/convert.h"

namespace touchstone::test {

testing::AssertionResult close(std::span<const double> actual, const Expected& expected,
                               DType dtype, std::int64_t cols) {
  if (actual.empty() && expected.value.empty()) {
    return testing::AssertionFailure() << "nothing to compare";
  }
  const spec::Verdict verdict = spec::compare(actual, expected, dtype, "");
  if (verdict.right()) return testing::AssertionSuccess();
  testing::AssertionResult result = testing::AssertionFailure();
  result << verdict.outside << " of " << verdict.compared << " elements out of bounds; worst";
  if (cols > 0 && verdict.element >= 0) {
    result << " (" << verdict.element / cols << ", " << verdict.element % cols << ")";
  }
  return result << " " << verdict.where;
}

double relative_l2(std::span<const double> actual, std::span<const double> expected) {
  if (actual.size() != expected.size()) return std::numeric_limits<double>::quiet_NaN();
  // Scaled by the largest magnitude, so that the squares of 1e200 do not overflow.
  double scale = 0;
  for (const double value : expected) scale = std::max(scale, std::fabs(value));
  if (scale == 0) scale = 1;
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double e = (actual[i] - expected[i]) / scale;
    const double v = expected[i] / scale;
    error += e * e;
    norm += v * v;
  }
  return std::sqrt(error / norm);
}

std::vector<double> rounded(std::span<const double> values, DType dtype) {
  std::vector<double> result(values.begin(), values.end());
  visit_float_dtype(dtype, [&]<class T>() {
    for (double& value : result) value = convert<double>(convert<T>(value));
  });
  return result;
}

}  // namespace touchstone::test
