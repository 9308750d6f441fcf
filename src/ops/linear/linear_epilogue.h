// What happens to a sum before it is stored, the same scalar code in every CPU implementation.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "ops/activation/activation_math.h"
#include "ops/linear/linear_problem.h"

namespace touchstone::linear_layer {

// Replaces a row of x by integers of at most 127 and returns the scale they stand for: max |x| / 127.
// A row with NaN or infinity has a scale of NaN.
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
    values[i] = scale > 0 ? std::nearbyint(values[i] / scale) : C{0};
  }
  return scale;
}

// C is the type of the sums: float, or double for f64.
template <class C>
class Epilogue {
 public:
  explicit Epilogue(const Forward& p) : p_(p), cap_(static_cast<C>(p.soft_cap)) {}

  // Column c of y from the sum of row c of W and, with a gate, that of row c + columns.
  void store(std::int64_t row, std::int64_t c, C sum, C up) const {
    C v = with_cap(with_bias(sum, c));
    if (p_.gate != LinearGate::none) {
      v = activation_op::activate(activation_of(p_.gate), v).value *
          with_cap(with_bias(up, c + p_.columns()));
    }
    if (p_.residual.data != nullptr) {
      v += element(p_.residual.data, p_.dtype, row * p_.residual.stride + c);
    }
    visit_float_dtype(p_.y_dtype, [&]<class T>() {
      static_cast<T*>(p_.y.data)[row * p_.y.stride + c] = convert<T>(v);
    });
  }

 private:
  static C element(const void* data, DType dtype, std::int64_t i) {
    return visit_float_dtype(dtype,
                             [&]<class T>() { return convert<C>(static_cast<const T*>(data)[i]); });
  }
  C with_bias(C v, std::int64_t o) const {
    return p_.bias == nullptr ? v : v + element(p_.bias, p_.bias_dtype, o);
  }
  C with_cap(C v) const { return cap_ > 0 ? cap_ * std::tanh(v / cap_) : v; }

  const Forward& p_;
  C cap_;
};

}  // namespace touchstone::linear_layer
