// The epilogue: scalar code between a sum and its store, the same in every CPU implementation.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "ops/activation/activation_math.h"
#include "ops/linear/linear_problem.h"

namespace touchstone::linear_layer {

// Replaces a row of x by integers of at most 127 and returns the scale they stand for: max |x| /
// 127. A row with NaN or infinity has a scale of NaN.
template <class C>
C round_to_int8(C* values, std::int64_t count) {
  C largest = 0;
  C poison = 0;  // NaN where a value is NaN or infinite
  for (std::int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::abs(values[i]));
    poison += values[i] * C{0};
  }
  const C scale = largest / C{127} + poison;
  for (std::int64_t i = 0; i < count; ++i) {
    // A subnormal scale may be too small by half of itself.
    values[i] = scale > 0 ? std::clamp(std::nearbyint(values[i] / scale), C{-127}, C{127}) : C{0};
  }
  return scale;
}

// C is the type of the sums: float, or double for f64.
template <class C>
class Epilogue {
 public:
  explicit Epilogue(const Forward& p) : p_(p), cap_(static_cast<C>(p.soft_cap)) {}

  // Columns [first, first + columns) of a row of y before it is rounded, in `sums`: from the sums
  // of those rows of W there and, with a gate, from those of rows first + p.columns() on in `ups`,
  // which is overwritten.
  void apply(std::int64_t row, std::int64_t first, std::int64_t columns, C* sums, C* ups) const {
    finish(sums, first, columns);
    if (p_.gate != LinearGate::none) {
      finish(ups, first + p_.columns(), columns);
      for (std::int64_t c = 0; c < columns; ++c) {
        sums[c] = activation_op::activate(activation_of(p_.gate), sums[c]).value * ups[c];
      }
    }
    if (p_.residual.data != nullptr) {
      add(sums, columns, p_.residual.data, p_.dtype, row * p_.residual.stride + first);
    }
    // NaN has the sign of an operand, and which one depends on the code that computed the sum.
    for (std::int64_t c = 0; c < columns; ++c) {
      if (std::isnan(sums[c])) sums[c] = std::numeric_limits<C>::quiet_NaN();
    }
  }

  // The same, stored.
  void store(std::int64_t row, std::int64_t first, std::int64_t columns, C* sums, C* ups) const {
    apply(row, first, columns, sums, ups);
    visit_float_dtype(p_.y_dtype, [&]<class T>() {
      T* const y = static_cast<T*>(p_.y.data) + row * p_.y.stride + first;
      for (std::int64_t c = 0; c < columns; ++c) y[c] = convert<T>(sums[c]);
    });
  }

 private:
  static void add(C* sums, std::int64_t columns, const void* data, DType dtype,
                  std::int64_t first) {
    visit_float_dtype(dtype, [&]<class T>() {
      const T* const from = static_cast<const T*>(data) + first;
      for (std::int64_t c = 0; c < columns; ++c) sums[c] += convert<C>(from[c]);
    });
  }
  // Bias and soft cap.
  void finish(C* sums, std::int64_t first, std::int64_t columns) const {
    if (p_.bias != nullptr) add(sums, columns, p_.bias, p_.bias_dtype, first);
    if (cap_ > 0) {
      for (std::int64_t c = 0; c < columns; ++c) sums[c] = cap_ * std::tanh(sums[c] / cap_);
    }
  }

  const Forward& p_;
  C cap_;
};

}  // namespace touchstone::linear_layer
