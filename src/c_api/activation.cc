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

using touchstone::c_api::activation_args;
using touchstone::c_api::activation_backward_args;
using touchstone::c_api::checked;
using touchstone::c_api::explained;
using touchstone::c_api::gate_args;
using touchstone::c_api::gate_backward_args;
using touchstone::c_api::guarded;

ts_status ts_activation(ts_context* context, const ts_activation_args* args) {
  return guarded(
      [&] { touchstone::activation(checked(context, "context").context, activation_args(args)); });
}

ts_status ts_activation_explain(ts_context* context, const ts_activation_args* args,
                                ts_report report, void* user) {
  return explained(context, report, user,
                   [&](auto& c) { return touchstone::explain(c, activation_args(args)); });
}

ts_status ts_activation_backward(ts_context* context, const ts_activation_args* args) {
  return guarded([&] {
    touchstone::activation_backward(checked(context, "context").context,
                                    activation_backward_args(args));
  });
}

ts_status ts_activation_backward_explain(ts_context* context, const ts_activation_args* args,
                                         ts_report report, void* user) {
  return explained(context, report, user,
                   [&](auto& c) { return touchstone::explain(c, activation_backward_args(args)); });
}

ts_status ts_gate(ts_context* context, const ts_activation_args* args) {
  return guarded([&] { touchstone::gate(checked(context, "context").context, gate_args(args)); });
}

ts_status ts_gate_explain(ts_context* context, const ts_activation_args* args, ts_report report,
                          void* user) {
  return explained(context, report, user,
                   [&](auto& c) { return touchstone::explain(c, gate_args(args)); });
}

ts_status ts_gate_backward(ts_context* context, const ts_activation_args* args) {
  return guarded([&] {
    touchstone::gate_backward(checked(context, "context").context, gate_backward_args(args));
  });
}

ts_status ts_gate_backward_explain(ts_context* context, const ts_activation_args* args,
                                   ts_report report, void* user) {
  return explained(context, report, user,
                   [&](auto& c) { return touchstone::explain(c, gate_backward_args(args)); });
}
