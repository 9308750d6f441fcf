#include "spec/bounds.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "touchstone/core/error.h"

namespace touchstone::spec {
namespace {

struct Format {
  int mantissa_bits;  // without the leading one
  int min_exponent;   // of the smallest normal number
  int max_exponent;   // of the largest number
};

Format format_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return {52, -1022, 1023};
    case DType::f32:
      return {23, -126, 127};
    case DType::bf16:
      return {7, -126, 127};
    case DType::f16:
      return {10, -14, 15};
    default:
      throw InvalidArgument("spec: expected a floating point dtype, got " +
                            std::string(name_of(dtype)));
  }
}

bool is_float(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

// Error over bound, for choosing the element to report; NaN is worst of all.
double ratio_of(double actual, double expected, double bound) {
  const double ratio = std::fabs(actual - expected) / bound;
  return std::isnan(ratio) ? HUGE_VAL : ratio;
}

}  // namespace

double unit_roundoff(DType dtype) { return std::ldexp(1.0, -format_of(dtype).mantissa_bits - 1); }

double rounding_error(DType dtype, double value) {
  const Format format = format_of(dtype);
  int exponent = format.min_exponent;
  if (value != 0 && std::isfinite(value)) exponent = std::max(exponent, std::ilogb(value));
  return std::ldexp(1.0, exponent - format.mantissa_bits - 1);
}

double with_rounding(DType dtype, double value, double error) {
  return error + rounding_error(dtype, std::fabs(value) + error);
}

double overflow_threshold(DType dtype) {
  if (!is_float(dtype) || dtype == DType::f64) return HUGE_VAL;
  const Format format = format_of(dtype);
  return std::ldexp(2.0 - std::ldexp(1.0, -format.mantissa_bits - 1), format.max_exponent);
}

double growth(std::int64_t n) {
  return 1.0 + std::log2(static_cast<double>(std::max<std::int64_t>(n, 1)));
}

DType wide_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

bool within(double actual, double expected, double bound, double overflow) {
  if (std::isnan(expected)) return std::isnan(actual);
  if (std::isinf(expected)) return actual == expected;
  if (!std::isfinite(bound) || bound < 0) return false;
  if (std::isinf(actual)) {
    return std::signbit(actual) == std::signbit(expected) &&
           std::fabs(expected) + bound >= overflow;
  }
  return std::fabs(actual - expected) <= bound;  // false for NaN
}

double Verdict::relative_error() const {
  return size > 0 ? std::sqrt(difference / size) : std::sqrt(difference);
}

void Verdict::merge(const Verdict& other) {
  if (where.empty() || (!other.where.empty() && other.worst > worst)) {
    where = other.where;
    element = other.element;
  }
  worst = std::max(worst, other.worst);
  compared += other.compared;
  outside += other.outside;
  difference += other.difference;
  size += other.size;
}

Verdict compare(std::span<const double> actual, const Expected& expected, DType dtype,
                const std::string& name, std::span<const std::int64_t> index) {
  Verdict verdict;
  if (actual.size() != expected.value.size() || actual.size() != expected.bound.size()) {
    verdict.outside = 1;
    verdict.worst = HUGE_VAL;
    verdict.where = name + ": " + std::to_string(actual.size()) + " values, " +
                    std::to_string(expected.value.size()) + " expected";
    return verdict;
  }
  verdict.compared = static_cast<std::int64_t>(actual.size());
  const bool exact = !is_float(dtype);
  const double overflow = overflow_threshold(dtype);
  double worst_outside = -1;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double value = expected.value[i];
    const double bound = exact ? 0 : expected.bound[i];
    const double off = actual[i] - value;
    const bool good = within(actual[i], value, bound, overflow);
    if (std::isfinite(value) && !exact && !(good && std::isinf(actual[i]))) {
      verdict.difference += off * off;
      verdict.size += value * value;
    }
    if (good) {
      if (bound > 0 && std::isfinite(off)) {
        verdict.worst = std::max(verdict.worst, std::fabs(off) / bound);
      }
      continue;
    }
    ++verdict.outside;
    const double ratio = ratio_of(actual[i], value, bound);
    verdict.worst = std::max(verdict.worst, std::max(ratio, std::nextafter(1.0, 2.0)));
    if (!(ratio > worst_outside)) continue;
    worst_outside = ratio;
    verdict.element = static_cast<std::int64_t>(i);
    std::ostringstream text;
    text.precision(std::numeric_limits<double>::max_digits10);
    text << name << "[" << (index.empty() ? static_cast<std::int64_t>(i) : index[i]) << "]: got "
         << actual[i] << ", expected " << value << ", error " << std::fabs(off) << " (bound "
         << bound << ")";
    verdict.where = text.str();
  }
  return verdict;
}

}  // namespace touchstone::spec
