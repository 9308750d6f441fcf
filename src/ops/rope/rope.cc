// Checks and choice of implementation for rope; nothing else.
#include "touchstone/ops/rope.h"

#include <cmath>

#include "core/checks.h"
#include "core/implementation.h"
#include "ops/rope/rope_problem.h"

namespace touchstone::inline v0 {
namespace {

using rope_op::Problem;

constexpr Implementation<Problem> kList[] = {
    {"simd", DeviceKind::cpu, nullptr, rope_op::rope_simd},
    {"plain", DeviceKind::cpu, nullptr, rope_op::rope_plain},
    {"vectorized", DeviceKind::cuda, rope_op::rope_vectorized_refuses, rope_op::rope_vectorized},
    {"portable", DeviceKind::cuda, nullptr, rope_op::rope_portable},
};

// What forward and backward have in common, under their own names.
struct Named {
  const char* op;
  Argument from;
  Argument to;
  TensorView written;
  const ConstTensorView& positions;
  const ConstTensorView& frequencies;
  RopePairs pairs;
  double scale;
  bool inverse;
};

Named named(const RopeArgs& a) {
  return {"rope", {"x", a.x}, {"y", a.y}, a.y, a.positions, a.frequencies, a.pairs, a.scale, false};
}
Named named(const RopeBackwardArgs& a) {
  return {"rope_backward", {"dy", a.dy}, {"dx", a.dx}, a.dx, a.positions,
          a.frequencies,   a.pairs,      a.scale,      true};
}

// [N, H, D] with the numbers of a head side by side, at any strides.
void check_heads(const Checks& checks, const Argument& a, bool writable) {
  if (a.view.rank != 3) checks.fail(a.name, "[N, H, D]", shape_string(a.view.sizes()));
  checks.dense_last(a, writable);
}

Problem checked(const Context& context, const Named& n) {
  const Checks checks(n.op, context);
  checks.present(n.from);
  if (context.device().is_cuda()) {
    checks.dtype(n.from, {DType::f32, DType::bf16, DType::f16});
  } else {
    checks.dtype(n.from, {DType::f64, DType::f32, DType::bf16, DType::f16});
  }
  check_heads(checks, n.from, false);
  checks.present(n.to);
  checks.dtype(n.to, {n.from.view.dtype});
  checks.shape(n.to, n.from.view.sizes());
  check_heads(checks, n.to, true);
  const Argument positions{"positions", n.positions};
  const std::int64_t tokens[] = {n.from.view.shape[0]};
  const void* const position_data = checks.array(positions, DType::i64, tokens, true);
  const Argument frequencies{"frequencies", n.frequencies};
  checks.present(frequencies);
  checks.dtype(frequencies, {DType::f64});
  if (frequencies.view.rank != 1) {
    checks.fail("frequencies", "[R / 2]", shape_string(frequencies.view.sizes()));
  }
  checks.contiguous(frequencies);
  const std::int64_t dim = n.from.view.shape[2];
  if (2 * frequencies.view.shape[0] > dim) {
    checks.fail("frequencies", "at most D / 2 = " + std::to_string(dim / 2),
                std::to_string(frequencies.view.shape[0]));
  }
  if (n.pairs != RopePairs::halves && n.pairs != RopePairs::adjacent) {
    checks.fail("pairs", "halves or adjacent", std::to_string(static_cast<int>(n.pairs)));
  }
  if (!std::isfinite(n.scale)) checks.fail("scale", "a finite number", std::to_string(n.scale));
  for (const Argument* input : {&positions, &frequencies}) checks.disjoint(n.to, *input, false);
  checks.disjoint(n.to, n.from, true);
  const auto& from = n.from.view;
  const auto& to = n.to.view;
  return {.dtype = from.dtype,
          .x = from.data,
          .y = n.written.data,
          .positions = static_cast<const std::int64_t*>(position_data),
          .frequencies = static_cast<const double*>(n.frequencies.data),
          .tokens = from.shape[0],
          .heads = from.shape[1],
          .dim = dim,
          .pairs = frequencies.view.shape[0],
          .x_token = from.stride[0],
          .x_head = from.stride[1],
          .y_token = to.stride[0],
          .y_head = to.stride[1],
          .adjacent = n.pairs == RopePairs::adjacent,
          .inverse = n.inverse,
          .scale = n.scale};
}

void run(Context& context, const Named& n, const std::string& implementation) {
  const Problem p = checked(context, n);
  if (p.tokens == 0 || p.heads == 0 || p.dim == 0) return;
  run_first<Problem>(n.op, kList, context, p, implementation);
}

}  // namespace

void rope(Context& context, const RopeArgs& args) {
  run(context, named(args), args.implementation);
}
void rope_backward(Context& context, const RopeBackwardArgs& args) {
  run(context, named(args), args.implementation);
}
std::vector<ImplementationReport> explain(Context& context, const RopeArgs& args) {
  return report_implementations<Problem>(kList, context, checked(context, named(args)));
}
std::vector<ImplementationReport> explain(Context& context, const RopeBackwardArgs& args) {
  return report_implementations<Problem>(kList, context, checked(context, named(args)));
}

}  // namespace touchstone::inline v0
