// The linear layer.
#include "touchstone/ops/linear.h"

#include "c_api/border.h"

namespace touchstone::c_api {
namespace {

LinearGate gate(ts_linear_gate value) {
  if (value < TS_GATE_NONE || value > TS_GATE_GELU_TANH) {
    throw InvalidArgument("linear: gate " + std::to_string(value) + " is not a ts_linear_gate");
  }
  return static_cast<LinearGate>(value);
}

LinearArgs converted(const ts_linear_args* given) {
  const ts_linear_args args =
      current(given, "linear", offsetof(ts_linear_args, implementation), TS_LINEAR_ARGS);
  return {.x = view(args.x, "linear: x"),
          .weight = view(args.weight, "linear: weight"),
          .weight_format = text(args.weight_format),
          .bias = view(args.bias, "linear: bias"),
          .residual = view(args.residual, "linear: residual"),
          .y = view(args.y, "linear: y"),
          .gate = gate(args.gate),
          .soft_cap = args.soft_cap,
          .int8_activations = args.int8_activations != 0,
          .bits_may_depend_on_batch = args.bits_may_depend_on_batch != 0,
          .constant_weight = args.constant_weight != 0,
          .implementation = text(args.implementation)};
}

LinearBackwardArgs converted(const ts_linear_backward_args* given) {
  const ts_linear_backward_args args =
      current(given, "linear_backward", offsetof(ts_linear_backward_args, implementation),
              TS_LINEAR_BACKWARD_ARGS);
  return {.dy = view(args.dy, "linear_backward: dy"),
          .x = view(args.x, "linear_backward: x"),
          .weight = view(args.weight, "linear_backward: weight"),
          .weight_format = text(args.weight_format),
          .dx = view(args.dx, "linear_backward: dx"),
          .dweight = view(args.dweight, "linear_backward: dweight"),
          .dbias = view(args.dbias, "linear_backward: dbias"),
          .accumulate = args.accumulate != 0,
          .bits_may_depend_on_batch = args.bits_may_depend_on_batch != 0,
          .implementation = text(args.implementation)};
}

}  // namespace
}  // namespace touchstone::c_api

TOUCHSTONE_C_OPERATOR(linear, ts_linear_args, converted);
TOUCHSTONE_C_OPERATOR(linear_backward, ts_linear_backward_args, converted);
