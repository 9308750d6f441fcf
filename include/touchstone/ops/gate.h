// A gated activation, element by element: y = act(gate) * up (SwiGLU, GEGLU, ReGLU^2). The
// functions, and everything that is not said here, are those of activation.h.
//
// The backward is dgate = dy * up * act'(gate), dup = dy * act(gate).
//
// Shapes      [.., C], all of one shape, each tensor with its own row stride: gate and up of a
//             packed row [.., 2 C] are two views of it, and so are dgate and dup.
// Accuracy    Before the last rounding y is within 16 u |gate| |up|, dup within 16 u |gate| |dy|,
//             dgate within 16 u (1 + |gate|) |up| |dy|. With relu_squared y and dup are within
//             2 u gate^2 in place of 16 u |gate|.
// Cost        Every tensor once.
#pragma once

#include <string>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/export.h"
#include "touchstone/core/implementation_report.h"
#include "touchstone/core/tensor.h"
#include "touchstone/ops/activation.h"

namespace touchstone::inline v0 {

struct GateArgs {
  ConstTensorView gate{};  // [.., C]
  ConstTensorView up{};    // [.., C]
  TensorView y{};          // [.., C]
  Activation kind = Activation::silu;
  std::string implementation{};
};

struct GateBackwardArgs {
  ConstTensorView dy{};    // [.., C]
  ConstTensorView gate{};  // [.., C]
  ConstTensorView up{};    // [.., C]
  TensorView dgate{};      // [.., C]
  TensorView dup{};        // [.., C]
  Activation kind = Activation::silu;
  std::string implementation{};
};

TOUCHSTONE_API void gate(Context& context, const GateArgs& args);
TOUCHSTONE_API void gate_backward(Context& context, const GateBackwardArgs& args);

// See touchstone/core/implementation_report.h.
TOUCHSTONE_API std::vector<ImplementationReport> explain(Context& context, const GateArgs& args);
TOUCHSTONE_API std::vector<ImplementationReport> explain(Context& context,
                                                         const GateBackwardArgs& args);

}  // namespace touchstone::inline v0
