// Activations and gates.
#include "touchstone/ops/activation.h"

#include "c_api/border.h"
#include "touchstone/ops/gate.h"

namespace touchstone::c_api {
namespace {

ts_activation_args current_args(const ts_activation_args* given, const char* op) {
  const ts_activation_args args =
      current(given, op, offsetof(ts_activation_args, implementation), TS_ACTIVATION_ARGS);
  if (args.kind < TS_SILU || args.kind > TS_RELU_SQUARED) {
    throw InvalidArgument(std::string(op) + ": kind " + std::to_string(args.kind) +
                          " is not a ts_activation_kind");
  }
  return args;
}

ActivationArgs activation_args(const ts_activation_args* given) {
  const ts_activation_args args = current_args(given, "activation");
  return {.x = view(args.x, "activation: x"),
          .y = view(args.y, "activation: y"),
          .kind = static_cast<Activation>(args.kind),
          .implementation = text(args.implementation)};
}
ActivationBackwardArgs activation_backward_args(const ts_activation_args* given) {
  const ts_activation_args args = current_args(given, "activation_backward");
  return {.dy = view(args.dy, "activation_backward: dy"),
          .x = view(args.x, "activation_backward: x"),
          .dx = view(args.dx, "activation_backward: dx"),
          .kind = static_cast<Activation>(args.kind),
          .implementation = text(args.implementation)};
}
GateArgs gate_args(const ts_activation_args* given) {
  const ts_activation_args args = current_args(given, "gate");
  return {.gate = view(args.x, "gate: x"),
          .up = view(args.up, "gate: up"),
          .y = view(args.y, "gate: y"),
          .kind = static_cast<Activation>(args.kind),
          .implementation = text(args.implementation)};
}
GateBackwardArgs gate_backward_args(const ts_activation_args* given) {
  const ts_activation_args args = current_args(given, "gate_backward");
  return {.dy = view(args.dy, "gate_backward: dy"),
          .gate = view(args.x, "gate_backward: x"),
          .up = view(args.up, "gate_backward: up"),
          .dgate = view(args.dx, "gate_backward: dx"),
          .dup = view(args.dup, "gate_backward: dup"),
          .kind = static_cast<Activation>(args.kind),
          .implementation = text(args.implementation)};
}

}  // namespace
}  // namespace touchstone::c_api

TOUCHSTONE_C_OPERATOR(activation, ts_activation_args, activation_args);
TOUCHSTONE_C_OPERATOR(activation_backward, ts_activation_args, activation_backward_args);
TOUCHSTONE_C_OPERATOR(gate, ts_activation_args, gate_args);
TOUCHSTONE_C_OPERATOR(gate_backward, ts_activation_args, gate_backward_args);
