// Activation functions, element by element: y = act(x). As the gate of another tensor: gate.h.
//
//   silu          x / (1 + e^-x)
//   gelu          x / 2 * (1 + erf(x / sqrt 2))
//   gelu_tanh     x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))
//   relu_squared  max(x, 0)^2
//
// The backward is dx = dy * act'(x).
//
// Shapes      [.., C], all of one shape; leading dimensions collapse to one row stride, each tensor
//             with its own.
// Dtypes      f64 (CPU), f32, bf16, f16; all tensors of a call the same.
// Rounding    Arithmetic in f32 (f64 for f64), one rounding to the dtype at the end.
// Accuracy    Before that rounding act(x) is within 16 u |x|, relu_squared within u x^2, and
//             act'(x) within 16 u (1 + |x|), u the unit roundoff of the arithmetic.
// Aliasing    An output may be an input (the same elements); any other overlap is refused.
// NaN and infinity   Follow the formulas, in their own element: silu of -inf is NaN.
// Empty       Nothing is written.
// Guarantees  An element's bits depend on the elements at its place alone. CUDA: no allocation, no
//             synchronization; can be captured in a graph.
// Cost        Every tensor once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/export.h"
#include "touchstone/core/implementation_report.h"
#include "touchstone/core/tensor.h"

namespace touchstone::inline v0 {

enum class Activation : std::uint8_t { silu, gelu, gelu_tanh, relu_squared };

struct ActivationArgs {
  ConstTensorView x{};  // [.., C]
  TensorView y{};       // [.., C]
  Activation kind = Activation::silu;
  std::string implementation{};  // "" = the first of explain() that accepts
};

struct ActivationBackwardArgs {
  ConstTensorView dy{};  // [.., C]
  ConstTensorView x{};   // [.., C]
  TensorView dx{};       // [.., C]
  Activation kind = Activation::silu;
  std::string implementation{};
};

TOUCHSTONE_API void activation(Context& context, const ActivationArgs& args);
TOUCHSTONE_API void activation_backward(Context& context, const ActivationBackwardArgs& args);

// See touchstone/core/implementation_report.h.
TOUCHSTONE_API std::vector<ImplementationReport> explain(Context& context,
                                                         const ActivationArgs& args);
TOUCHSTONE_API std::vector<ImplementationReport> explain(Context& context,
                                                         const ActivationBackwardArgs& args);

}  // namespace touchstone::inline v0
