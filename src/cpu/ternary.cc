#include "touchstone/core/ternary.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>

#include "core/index.h"
#include "cpu/ternary_group.h"
#include "touchstone/core/checked.h"
#include "touchstone/core/half.h"

namespace touchstone::inline v0 {
namespace {

constexpr std::int64_t kRun = 256;
constexpr std::int64_t kLanes = 32;

// The sum of magnitudes of at most kRun values in the order of the header.
template <class T>
double run_sum(const T* x, std::int64_t count) {
  double lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::int64_t l = 0; l < kLanes; ++l) {
      lanes[l] += static_cast<double>(std::abs(x[i + l]));
    }
  }
  for (std::int64_t l = 0; i + l < count; ++l) lanes[l] += static_cast<double>(std::abs(x[i + l]));
  for (std::int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::int64_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

template <class T>
double magnitude_sum(const T* x, std::int64_t count) {
  double sum = 0;
  for (std::int64_t i = 0; i < count; i += kRun) sum += run_sum(x + i, std::min(kRun, count - i));
  return sum;
}

template <class T>
double absmax_scale(const T* x, std::int64_t count) {
  T most = 0;
  for (std::int64_t i = 0; i < count; ++i) most = std::max(most, std::abs(x[i]));
  return static_cast<double>(most);
}

// With the k largest magnitudes as codes other than 0 the best scale is their mean c / k, and the
// error is the sum of squares less c^2 / k.
template <class T>
double least_squares_scale(const T* x, std::int64_t count) {
  std::vector<T> sorted(at(count));
  std::transform(x, x + count, sorted.begin(), [](T v) { return std::abs(v); });
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  // Squares of f64 that are this small or large would leave its range: they are taken of multiples
  // by a power of two, which rounds nothing.
  const int exponent = sorted.front() > 0 ? std::ilogb(sorted.front()) : 0;
  const int shift = std::abs(exponent) > 300 ? exponent : 0;
  double sum = 0;
  double scale = 0;
  double best = 0;
  for (std::int64_t k = 1; k <= count; ++k) {
    const auto magnitude = static_cast<double>(sorted[at(k - 1)]);
    sum += shift == 0 ? magnitude : std::ldexp(magnitude, -shift);
    const double gain = sum * sum / static_cast<double>(k);
    if (gain > best) {
      best = gain;
      scale = sum / static_cast<double>(k);
    }
  }
  return shift == 0 ? scale : std::ldexp(scale, shift);
}

void check_geometry(const TernaryGeometry& geometry) {
  if (geometry.grouping != TernaryGrouping::group) return;
  if (geometry.size < kTernarySmallestGroup || geometry.size > kTernaryLargestGroup) {
    throw InvalidArgument("ternary: group size: expected " + std::to_string(kTernarySmallestGroup) +
                          " to " + std::to_string(kTernaryLargestGroup) + ", got " +
                          std::to_string(geometry.size));
  }
}

void check_length(const char* what, std::size_t got, std::int64_t expected) {
  if (got != at(expected)) {
    throw InvalidArgument("ternary: " + std::string(what) + ": expected " +
                          std::to_string(expected) + " elements, got " + std::to_string(got));
  }
}

void check_finite(std::span<const float> weight, std::int64_t cols) {
  for (std::size_t i = 0; i < weight.size(); ++i) {
    if (std::isfinite(weight[i])) continue;
    throw InvalidArgument("ternary: weight: expected finite values, got " +
                          std::to_string(weight[i]) + " in row " +
                          std::to_string(static_cast<std::int64_t>(i) / cols) + ", column " +
                          std::to_string(static_cast<std::int64_t>(i) % cols));
  }
}

std::string number(float value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value);
  return {text, end.ptr};
}

}  // namespace

std::string ternary_geometry_name(const TernaryGeometry& geometry) {
  switch (geometry.grouping) {
    case TernaryGrouping::tensor:
      return "tensor";
    case TernaryGrouping::row:
      return "row";
    case TernaryGrouping::group:
      break;
  }
  return std::to_string(geometry.size);
}

TernaryGeometry parse_ternary_geometry(std::string_view name) {
  if (name == "tensor") return {.grouping = TernaryGrouping::tensor};
  if (name == "row") return {.grouping = TernaryGrouping::row};
  TernaryGeometry geometry;
  const auto end = std::from_chars(name.data(), name.data() + name.size(), geometry.size);
  if (end.ec != std::errc() || end.ptr != name.data() + name.size() ||
      geometry.size < kTernarySmallestGroup || geometry.size > kTernaryLargestGroup) {
    throw InvalidArgument("ternary group: expected tensor, row or a size from 32 to 256, got '" +
                          std::string(name) + "'");
  }
  return geometry;
}

std::string_view ternary_scale_rule_name(TernaryScaleRule rule) {
  switch (rule) {
    case TernaryScaleRule::mean:
      return "mean";
    case TernaryScaleRule::absmax:
      return "absmax";
    case TernaryScaleRule::least_squares:
      return "least_squares";
  }
  return "unknown";
}

TernaryScaleRule parse_ternary_scale_rule(std::string_view name) {
  for (const auto rule :
       {TernaryScaleRule::mean, TernaryScaleRule::absmax, TernaryScaleRule::least_squares}) {
    if (ternary_scale_rule_name(rule) == name) return rule;
  }
  throw InvalidArgument("ternary scale: expected mean, absmax or least_squares, got '" +
                        std::string(name) + "'");
}

std::int64_t ternary_groups(const TernaryGeometry& geometry, std::int64_t rows, std::int64_t cols) {
  check_geometry(geometry);
  if (rows < 0 || cols < 0) {
    throw InvalidArgument("ternary: shape: expected sizes >= 0, got [" + std::to_string(rows) +
                          ", " + std::to_string(cols) + "]");
  }
  if (checked_mul(rows, cols, "ternary: elements") == 0) return 0;
  switch (geometry.grouping) {
    case TernaryGrouping::tensor:
      return 1;
    case TernaryGrouping::row:
      return rows;
    case TernaryGrouping::group:
      break;
  }
  return rows * ceil_div(cols, geometry.size);
}

TernarySpan ternary_group(const TernaryGeometry& geometry, std::int64_t rows, std::int64_t cols,
                          std::int64_t index) {
  const std::int64_t groups = ternary_groups(geometry, rows, cols);
  if (index < 0 || index >= groups) {
    throw InvalidArgument("ternary: group: expected 0 to " + std::to_string(groups - 1) + ", got " +
                          std::to_string(index));
  }
  switch (geometry.grouping) {
    case TernaryGrouping::tensor:
      return {.begin = 0, .count = rows * cols};
    case TernaryGrouping::row:
      return {.begin = index * cols, .count = cols};
    case TernaryGrouping::group:
      break;
  }
  const std::int64_t per_row = ceil_div(cols, geometry.size);
  const std::int64_t col = index % per_row * geometry.size;
  return {.begin = index / per_row * cols + col, .count = std::min(geometry.size, cols - col)};
}

double ternary_scale(TernaryScaleRule rule, std::span<const float> group) {
  return ternary::group_scale(rule, group.data(), std::ssize(group));
}

float ternary_stored_scale(double scale, TernaryScaleType type) {
  if (!(scale > 0)) return static_cast<float>(scale);
  if (type == TernaryScaleType::f32) {
    return scale < 0x1p-149 ? 0x1p-149F : static_cast<float>(std::min(scale, 0x1.fffffep127));
  }
  if (type == TernaryScaleType::f16_bf16) {
    // 65280 is the largest f16 of 8 significant bits.
    const Bf16 rounded(std::clamp(scale, 0x1p-24, 65280.0));
    return static_cast<float>(F16(static_cast<float>(rounded)));
  }
  return static_cast<float>(F16(std::clamp(scale, 0x1p-24, 65504.0)));
}

TernarySummary ternary_project(const TernaryRule& rule, std::int64_t rows, std::int64_t cols,
                               std::span<const float> weight, const TernaryOutputs& outputs) {
  const std::int64_t groups = ternary_groups(rule.geometry, rows, cols);
  check_length("weight", weight.size(), rows * cols);
  if (!outputs.codes.empty()) check_length("codes", outputs.codes.size(), rows * cols);
  if (!outputs.scales.empty()) check_length("scales", outputs.scales.size(), groups);
  if (!outputs.values.empty()) check_length("values", outputs.values.size(), rows * cols);
  check_finite(weight, cols);
  TernarySummary summary;
  for (std::int64_t g = 0; g < groups; ++g) {
    const TernarySpan span = ternary_group(rule.geometry, rows, cols, g);
    const auto begin = at(span.begin);
    ternary::project_group(rule, weight.subspan(begin, at(span.count)),
                           outputs.codes.empty() ? nullptr : &outputs.codes[begin],
                           outputs.scales.empty() ? nullptr : &outputs.scales[at(g)],
                           outputs.values.empty() ? nullptr : &outputs.values[begin], summary);
  }
  return summary;
}

namespace ternary {
namespace {

// Whether rounding to nearest would have given 0 or infinity.
bool is_moved(double scale, TernaryScaleType type) {
  if (type == TernaryScaleType::f32) {
    return scale > 0 && (scale <= 0x1p-150 || scale >= 0x1.ffffffp127);
  }
  const double largest = type == TernaryScaleType::f16 ? 65520 : 65408;
  return scale > 0 && (scale <= 0x1p-25 || scale >= largest);
}

}  // namespace

template <class T>
double group_scale(TernaryScaleRule rule, const T* x, std::int64_t count) {
  if (count == 0) return 0;
  const double sum = magnitude_sum(x, count);
  if (!std::isfinite(sum)) {
    if (!std::all_of(x, x + count, [](T v) { return std::isfinite(v); })) {
      return std::numeric_limits<double>::quiet_NaN();
    }
    // The sum overflows f64: scale the values by 2^-64, take their scale, scale it back.
    constexpr int kShift = 64;
    std::vector<double> smaller(at(count));
    std::transform(x, x + count, smaller.begin(),
                   [](T v) { return std::ldexp(static_cast<double>(v), -kShift); });
    return std::min(std::ldexp(group_scale(rule, smaller.data(), count), kShift),
                    std::numeric_limits<double>::max());
  }
  switch (rule) {
    case TernaryScaleRule::mean:
      return sum / static_cast<double>(count);
    case TernaryScaleRule::absmax:
      return absmax_scale(x, count);
    case TernaryScaleRule::least_squares:
      return least_squares_scale(x, count);
  }
  throw InvalidArgument("ternary: scale rule: unknown value");
}
template double group_scale(TernaryScaleRule rule, const float* x, std::int64_t count);
template double group_scale(TernaryScaleRule rule, const double* x, std::int64_t count);

void project_group(const TernaryRule& rule, std::span<const float> group, std::int8_t* codes,
                   float* stored, float* values, TernarySummary& summary) {
  const double scale = ternary_scale(rule.scale, group);
  const float kept = ternary_stored_scale(scale, rule.scale_type);
  const auto threshold = threshold_of<float>(scale);
  const float* const x = group.data();
  const auto count = static_cast<std::int64_t>(group.size());
  std::int64_t nonzero = 0;
  for (std::int64_t i = 0; i < count; ++i) nonzero += std::abs(x[i]) > threshold ? 1 : 0;
  if (codes != nullptr) write_codes(x, count, threshold, codes);
  if (values != nullptr) write_values(x, count, threshold, kept, values);
  if (stored != nullptr) *stored = kept;
  ++summary.groups;
  summary.zero_groups += scale == 0 ? 1 : 0;
  summary.zero_codes += count - nonzero;
  summary.moved_scales += is_moved(scale, rule.scale_type) ? 1 : 0;
}

}  // namespace ternary

TernaryMatrix ternary_project(const TernaryRule& rule, std::int64_t rows, std::int64_t cols,
                              std::span<const float> weight) {
  TernaryMatrix matrix{.rows = rows, .cols = cols, .geometry = rule.geometry};
  const std::int64_t groups = ternary_groups(rule.geometry, rows, cols);
  check_length("weight", weight.size(), rows * cols);
  matrix.codes.resize(weight.size());
  matrix.scales.resize(at(groups));
  ternary_project(rule, rows, cols, weight, {.codes = matrix.codes, .scales = matrix.scales});
  return matrix;
}

void ternary_values(const TernaryMatrix& matrix, std::span<float> values) {
  const std::int64_t groups = ternary_groups(matrix.geometry, matrix.rows, matrix.cols);
  check_length("codes", matrix.codes.size(), matrix.rows * matrix.cols);
  check_length("scales", matrix.scales.size(), groups);
  check_length("values", values.size(), matrix.rows * matrix.cols);
  for (std::size_t i = 0; i < matrix.codes.size(); ++i) {
    if (matrix.codes[i] < -1 || matrix.codes[i] > 1) {
      throw InvalidArgument("ternary: codes: expected -1, 0 or 1, got " +
                            std::to_string(matrix.codes[i]) + " at " + std::to_string(i));
    }
  }
  for (std::size_t g = 0; g < matrix.scales.size(); ++g) {
    if (!std::isfinite(matrix.scales[g]) || matrix.scales[g] < 0) {
      throw InvalidArgument("ternary: scales: expected finite values >= 0, got " +
                            number(matrix.scales[g]) + " for group " + std::to_string(g));
    }
  }
  for (std::int64_t g = 0; g < groups; ++g) {
    const TernarySpan span = ternary_group(matrix.geometry, matrix.rows, matrix.cols, g);
    const float scale = matrix.scales[at(g)];
    for (std::int64_t i = span.begin; i < span.begin + span.count; ++i) {
      values[at(i)] = scale * static_cast<float>(matrix.codes[at(i)]);
    }
  }
}

TernaryExact ternary_exact(const TernaryGeometry& geometry, TernaryScaleType type,
                           std::int64_t rows, std::int64_t cols, std::span<const float> values) {
  const std::int64_t groups = ternary_groups(geometry, rows, cols);
  check_length("values", values.size(), rows * cols);
  TernaryMatrix matrix{.rows = rows, .cols = cols, .geometry = geometry};
  matrix.codes.resize(values.size());
  matrix.scales.resize(at(groups));
  for (std::int64_t g = 0; g < groups; ++g) {
    const TernarySpan span = ternary_group(geometry, rows, cols, g);
    const auto begin = at(span.begin);
    const ternary::ExactGroup found =
        ternary::exact_group(type, values.subspan(begin, at(span.count)), &matrix.codes[begin]);
    if (!found.reason.empty()) {
      const std::int64_t at_fault = span.begin + found.index;
      return {.mismatch = {.row = at_fault / cols, .col = at_fault % cols, .reason = found.reason}};
    }
    matrix.scales[at(g)] = found.scale;
  }
  return {.matrix = std::move(matrix)};
}

namespace ternary {

ExactGroup exact_group(TernaryScaleType type, std::span<const float> group, std::int8_t* codes) {
  ExactGroup result;
  for (std::size_t i = 0; i < group.size(); ++i) {
    const float value = group[i];
    const float magnitude = std::abs(value);
    codes[i] = static_cast<std::int8_t>((value > 0) - (value < 0));
    if (magnitude == 0 || magnitude == result.scale) continue;
    result.index = static_cast<std::int64_t>(i);
    if (!std::isfinite(value)) {
      result.reason = number(value);
    } else if (result.scale != 0) {
      result.reason = number(magnitude) + " among magnitudes of " + number(result.scale);
    } else if (ternary_stored_scale(static_cast<double>(magnitude), type) != magnitude) {
      result.reason = number(magnitude) + " is no f16";
    } else {
      result.scale = magnitude;
      continue;
    }
    return result;
  }
  return result;
}

}  // namespace ternary
}  // namespace touchstone::inline v0
