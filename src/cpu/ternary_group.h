// One group of ternary weights: what core/ternary.h does to every group of a matrix.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <string>

#include "touchstone/core/dtype.h"
#include "touchstone/core/ternary.h"

namespace touchstone::inline v0::ternary {

// ternary_scale() of float or double values; NaN where one of them is NaN or infinite.
template <class T>
double group_scale(TernaryScaleRule rule, const T* x, std::int64_t count);

// The largest number that is not above half the scale: a value has a code where it is above that.
template <class T>
T threshold_of(double scale) {
  auto threshold = static_cast<T>(scale / 2);
  // Doubled, which rounds nothing: half of a subnormal number may not be representable.
  if (2 * static_cast<double>(threshold) > scale) threshold = std::nextafter(threshold, T{0});
  return threshold;
}

// Comparisons with a threshold of NaN are false: codes of 0.
template <class T>
void write_codes(const T* x, std::int64_t count, T threshold, std::int8_t* codes) {
  for (std::int64_t i = 0; i < count; ++i) {
    codes[i] = static_cast<std::int8_t>((x[i] > threshold) - (x[i] < -threshold));
  }
}
// `values` may be x.
template <class T, class V>
void write_values(const T* x, std::int64_t count, T threshold, float scale, V* values) {
  const auto minus = convert<V>(-scale);
  const auto plus = convert<V>(scale);
  const auto zero = convert<V>(scale * 0.0F);
  for (std::int64_t i = 0; i < count; ++i) {
    const T value = x[i];
    values[i] = value > threshold ? plus : value < -threshold ? minus : zero;
  }
}

// Projects finite values. Null outputs are not written; `values` may be the group itself. Adds to
// the summary.
void project_group(const TernaryRule& rule, std::span<const float> group, std::int8_t* codes,
                   float* stored, float* values, TernarySummary& summary);

// A group that is already ternary: its scale, 0 for a group of zeros. Else the reason and the index
// of the value that does not fit.
struct ExactGroup {
  float scale = 0;
  std::int64_t index = 0;
  std::string reason;
};
ExactGroup exact_group(TernaryScaleType type, std::span<const float> group, std::int8_t* codes);

}  // namespace touchstone::inline v0::ternary
