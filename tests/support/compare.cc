#include "tests/support/compare.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <sstream>
#include <string>

namespace touchstone::test {
namespace {

// How bad an element is, for choosing the one to report: error over bound, NaN worst of all.
double badness(double actual, double expected, double bound) {
  const double ratio = std::fabs(actual - expected) / bound;
  return std::isnan(ratio) ? std::numeric_limits<double>::infinity() : ratio;
}

// Maps the numbers of a format to integers in order, -0 and 0 to the same one.
template <class Bits>
std::int64_t ordinal(Bits bits) {
  using Signed = std::make_signed_t<Bits>;
  constexpr auto kMagnitude = static_cast<Bits>(std::numeric_limits<Signed>::max());
  const auto magnitude = static_cast<std::int64_t>(bits & kMagnitude);
  return (bits & ~kMagnitude) != 0 ? -magnitude : magnitude;
}

std::int64_t ordinal_of(DType dtype, double value) {
  switch (dtype) {
    case DType::f64:
      return ordinal(std::bit_cast<std::uint64_t>(value));
    case DType::f32:
      return ordinal(std::bit_cast<std::uint32_t>(convert<float>(value)));
    case DType::bf16:
      return ordinal(convert<Bf16>(value).bits);
    default:
      return ordinal(convert<F16>(value).bits);
  }
}

std::string place(std::size_t index, std::int64_t cols) {
  std::ostringstream text;
  if (cols > 0) {
    const auto i = static_cast<std::int64_t>(index);
    text << "(" << i / cols << ", " << i % cols << ")";
  } else {
    text << index;
  }
  return text.str();
}

}  // namespace

testing::AssertionResult close(std::span<const double> actual, const Expected& expected,
                               DType dtype, std::int64_t cols) {
  const std::size_t count = expected.value.size();
  if (actual.size() != count || expected.bound.size() != count) {
    return testing::AssertionFailure() << "sizes differ: " << actual.size() << " values, " << count
                                       << " expected, " << expected.bound.size() << " bounds";
  }
  if (count == 0) return testing::AssertionFailure() << "nothing to compare";
  const double overflow = spec::overflow_threshold(dtype);
  std::size_t bad = 0;
  std::size_t worst = 0;
  double worst_badness = -1;
  for (std::size_t i = 0; i < count; ++i) {
    if (spec::within(actual[i], expected.value[i], expected.bound[i], overflow)) continue;
    ++bad;
    const double b = badness(actual[i], expected.value[i], expected.bound[i]);
    if (b > worst_badness) {
      worst_badness = b;
      worst = i;
    }
  }
  if (bad == 0) return testing::AssertionSuccess();
  std::ostringstream text;
  text.precision(std::numeric_limits<double>::max_digits10);
  text << bad << " of " << count << " elements out of bounds; worst at " << place(worst, cols)
       << ": got " << actual[worst] << ", expected " << expected.value[worst] << ", error "
       << std::fabs(actual[worst] - expected.value[worst]) << " (bound " << expected.bound[worst]
       << ", " << ulps_between(dtype, actual[worst], expected.value[worst]) << " ulp of "
       << name_of(dtype) << ")";
  return testing::AssertionFailure() << text.str();
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

std::int64_t ulps_between(DType dtype, double a, double b) {
  if (!std::isfinite(a) || !std::isfinite(b)) return -1;
  return std::abs(ordinal_of(dtype, a) - ordinal_of(dtype, b));
}

std::vector<double> rounded(std::span<const double> values, DType dtype) {
  std::vector<double> result(values.begin(), values.end());
  visit_float_dtype(dtype, [&]<class T>() {
    for (double& value : result) value = convert<double>(convert<T>(value));
  });
  return result;
}

}  // namespace touchstone::test
