// act(x) and act'(x) by the C library, in the type of x: one place for activation, gate and the
// gate of linear on the CPU.
#pragma once

#include <algorithm>
#include <cmath>

#include "touchstone/ops/activation.h"

namespace touchstone::activation_op {

template <class C>
struct Slope {
  C value;
  C slope;
};
template <class C>
Slope<C> activate(Activation kind, C x) {
  switch (kind) {
    case Activation::silu: {
      const C sigmoid = C{1} / (C{1} + std::exp(-x));
      return {x * sigmoid, sigmoid * (C{1} + x * (C{1} - sigmoid))};
    }
    case Activation::gelu: {
      const C phi = C{0.5} * std::erfc(x * static_cast<C>(-0.70710678118654752440));
      const C density = static_cast<C>(0.39894228040143267794) * std::exp(C{-0.5} * x * x);
      return {x * phi, phi + x * density};
    }
    case Activation::gelu_tanh: {
      constexpr double kSqrt2OverPi = 0.79788456080286535588;
      const C inner = static_cast<C>(kSqrt2OverPi) * (x + static_cast<C>(0.044715) * x * x * x);
      const C t = std::tanh(inner);
      const C bounded = std::clamp(x, C{-1e15F}, C{1e15F});  // 0 * infinity below
      const C slope =
          static_cast<C>(kSqrt2OverPi) * (C{1} + static_cast<C>(3 * 0.044715) * bounded * bounded);
      return {C{0.5} * x * (C{1} + t), C{0.5} * (C{1} + t) + C{0.5} * x * (C{1} - t * t) * slope};
    }
    case Activation::relu_squared:
      break;
  }
  // Written so that NaN stays.
  const C positive = x < C{0} ? C{0} : x;
  return {positive * positive, C{2} * positive};
}

}  // namespace touchstone::activation_op
