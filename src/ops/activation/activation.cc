// Checks and choice of implementation for activation and gate; nothing else.
#include "touchstone/ops/activation.h"

#include <vector>

#include "core/checks.h"
#include "core/implementation.h"
#include "ops/activation/activation_problem.h"
#include "touchstone/ops/gate.h"

namespace touchstone::inline v0 {
namespace {

using activation_op::Function;
using activation_op::Problem;

constexpr Implementation<Problem> kList[] = {
    {"simd", DeviceKind::cpu, nullptr, activation_op::run_simd},
    {"plain", DeviceKind::cpu, nullptr, activation_op::run_plain},
    {"vectorized", DeviceKind::cuda, activation_op::vectorized_refuses,
     activation_op::run_vectorized},
    {"portable", DeviceKind::cuda, nullptr, activation_op::run_portable},
};

struct Call {
  const char* op;
  Function function;
  Activation kind;
  std::vector<Argument> in;
  std::vector<Argument> out;
};

Call call_of(const ActivationArgs& a) {
  return {"activation", Function::activation, a.kind, {{"x", a.x}}, {{"y", a.y}}};
}
Call call_of(const ActivationBackwardArgs& a) {
  return {"activation_backward",
          Function::activation_backward,
          a.kind,
          {{"dy", a.dy}, {"x", a.x}},
          {{"dx", a.dx}}};
}
Call call_of(const GateArgs& a) {
  return {"gate", Function::gate, a.kind, {{"gate", a.gate}, {"up", a.up}}, {{"y", a.y}}};
}
Call call_of(const GateBackwardArgs& a) {
  return {"gate_backward",
          Function::gate_backward,
          a.kind,
          {{"dy", a.dy}, {"gate", a.gate}, {"up", a.up}},
          {{"dgate", a.dgate}, {"dup", a.dup}}};
}

Problem checked(const Context& context, const Call& call) {
  const Checks checks(call.op, context);
  const Argument& first = call.in.front();
  checks.present(first);
  if (context.device().is_cuda()) {
    checks.dtype(first, {DType::f32, DType::bf16, DType::f16});
  } else {
    checks.dtype(first, {DType::f64, DType::f32, DType::bf16, DType::f16});
  }
  Problem p{.function = call.function, .kind = call.kind, .dtype = first.view.dtype};
  if (static_cast<std::uint8_t>(call.kind) > static_cast<std::uint8_t>(Activation::relu_squared)) {
    checks.fail("kind", "silu, gelu, gelu_tanh or relu_squared",
                std::to_string(static_cast<int>(call.kind)));
  }
  const RowLayout layout = checks.rows(first, false);
  p.rows = layout.rows;
  p.cols = layout.cols;
  const auto rows_of = [&](const Argument& a, bool writable) {
    checks.present(a);
    checks.dtype(a, {p.dtype});
    checks.shape(a, first.view.sizes());
    return activation_op::Rows{const_cast<void*>(a.view.data), checks.rows(a, writable).stride};
  };
  for (std::size_t i = 0; i < call.in.size(); ++i) p.in[i] = rows_of(call.in[i], false);
  for (std::size_t i = 0; i < call.out.size(); ++i) p.out[i] = rows_of(call.out[i], true);
  for (std::size_t i = 0; i < call.out.size(); ++i) {
    for (const Argument& input : call.in) checks.disjoint(call.out[i], input, true);
    for (std::size_t j = i + 1; j < call.out.size(); ++j) {
      checks.disjoint(call.out[i], call.out[j], false);
    }
  }
  return p;
}

template <class Args>
void run(Context& context, const Args& args) {
  const Call call = call_of(args);
  const Problem p = checked(context, call);
  if (p.rows == 0 || p.cols == 0) return;
  run_first<Problem>(call.op, kList, context, p, args.implementation);
}

template <class Args>
std::vector<ImplementationReport> report(Context& context, const Args& args) {
  return report_implementations<Problem>(kList, context, checked(context, call_of(args)));
}

}  // namespace

void activation(Context& context, const ActivationArgs& args) { run(context, args); }
void activation_backward(Context& context, const ActivationBackwardArgs& args) {
  run(context, args);
}
void gate(Context& context, const GateArgs& args) { run(context, args); }
void gate_backward(Context& context, const GateBackwardArgs& args) { run(context, args); }

std::vector<ImplementationReport> explain(Context& context, const ActivationArgs& args) {
  return report(context, args);
}
std::vector<ImplementationReport> explain(Context& context, const ActivationBackwardArgs& args) {
  return report(context, args);
}
std::vector<ImplementationReport> explain(Context& context, const GateArgs& args) {
  return report(context, args);
}
std::vector<ImplementationReport> explain(Context& context, const GateBackwardArgs& args) {
  return report(context, args);
}

}  // namespace touchstone::inline v0
