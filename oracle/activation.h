// Activation functions in float64: the specification the kernels are held to. Templated on the
// scalar, so that dual numbers give their slopes; see norm.h.
#pragma once

#include "oracle/linear.h"

namespace touchstone::oracle {

enum class Activation { silu, gelu, gelu_tanh, relu_squared };

template <class S>
S activation(Activation kind, const S& x) {
  switch (kind) {
    case Activation::silu:
      return linear_activation(LinearGate::silu, x);
    case Activation::gelu:
      return linear_activation(LinearGate::gelu, x);
    case Activation::gelu_tanh:
      return linear_activation(LinearGate::gelu_tanh, x);
    case Activation::relu_squared:
      break;
  }
  return x < 0.0 ? x * 0.0 : x * x;
}

}  // namespace touchstone::oracle
