// Checks and choice of implementation for rope_append; nothing else.
#include "touchstone/ops/rope_append.h"

#include <cmath>

#include "core/checks.h"
#include "core/implementation.h"
#include "core/index.h"
#include "ops/rope_append/rope_append_problem.h"

namespace touchstone::inline v0 {
namespace {

using rope_append_op::Problem;

constexpr char kName[] = "rope_append";

constexpr Implementation<Problem> kList[] = {
    {"plain", DeviceKind::cpu, nullptr, rope_append_op::rope_append_plain},
    {"warps", DeviceKind::cuda, rope_append_op::rope_append_warps_refuses,
     rope_append_op::rope_append_warps},
};

// [T, heads, D] with the numbers of a token side by side.
void check_heads(const Checks& checks, const Argument& a, bool writable) {
  if (a.view.rank != 3) checks.fail(a.name, "[T, heads, D]", shape_string(a.view.sizes()));
  checks.dense_last(a, writable);
  if (a.view.shape[1] > 1 && a.view.elements() > 0 && a.view.stride[1] != a.view.shape[2]) {
    checks.fail(a.name, "the numbers of a token side by side",
                "strides " + shape_string({a.view.stride.data(), 3}));
  }
}

void check_norms(const Checks& checks, const RopeAppendArgs& args, std::int64_t dim, Problem& p) {
  if (args.q_weight.defined() != args.k_weight.defined()) {
    checks.fail(args.q_weight.defined() ? "k_weight" : "q_weight", "both weights or none", "one");
  }
  const std::int64_t shape[] = {dim};
  p.weight[0] =
      static_cast<const float*>(checks.array({"q_weight", args.q_weight}, DType::f32, shape));
  p.weight[1] =
      static_cast<const float*>(checks.array({"k_weight", args.k_weight}, DType::f32, shape));
  checks.finite_at_least("eps", args.eps, 0);
  p.eps = args.eps;
  p.round_before_weight = args.rounding == RmsNormRounding::before_weight;
}

void check_rotation(const Checks& checks, const RopeAppendArgs& args, rope_op::Problem& rope) {
  const Argument frequencies{"frequencies", args.frequencies};
  if (!args.frequencies.defined()) {
    if (args.positions.defined()) checks.fail("positions", "none without frequencies", "a tensor");
    return;
  }
  checks.present(frequencies);
  checks.dtype(frequencies, {DType::f64});
  if (args.frequencies.rank != 1) {
    checks.fail("frequencies", "[R / 2]", shape_string(args.frequencies.sizes()));
  }
  checks.contiguous(frequencies);
  if (2 * args.frequencies.shape[0] > rope.dim) {
    checks.fail("frequencies", "at most D / 2 = " + std::to_string(rope.dim / 2),
                std::to_string(args.frequencies.shape[0]));
  }
  if (args.pairs != RopePairs::halves && args.pairs != RopePairs::adjacent) {
    checks.fail("pairs", "halves or adjacent", std::to_string(static_cast<int>(args.pairs)));
  }
  if (!std::isfinite(args.scale)) {
    checks.fail("scale", "a finite number", std::to_string(args.scale));
  }
  const std::int64_t tokens[] = {rope.tokens};
  rope.positions = static_cast<const std::int64_t*>(
      checks.array({"positions", args.positions}, DType::i64, tokens, true));
  rope.frequencies = static_cast<const double*>(args.frequencies.data);
  rope.pairs = args.frequencies.shape[0];
  rope.adjacent = args.pairs == RopePairs::adjacent;
  rope.scale = args.scale;
}

Problem checked(const Context& context, const RopeAppendArgs& args) {
  const Checks checks(kName, context);
  const Argument q{"q", args.q};
  const Argument k{"k", args.k};
  const Argument v{"v", args.v};
  const Argument y{"y", args.y};
  checks.present(q);
  checks.dtype(q, {DType::f32, DType::bf16, DType::f16});
  check_heads(checks, q, false);
  checks.present(y);
  checks.dtype(y, {q.view.dtype});
  checks.shape(y, q.view.sizes());
  check_heads(checks, y, true);
  Problem p{.dtype = q.view.dtype};
  p.append = cache::checked_append(kName, "slots", context,
                                   {.cache = args.cache,
                                    .layer_group = args.layer_group,
                                    .layer = args.layer,
                                    .k = args.k,
                                    .v = args.v,
                                    .rows = args.rows,
                                    .positions = args.slots});
  checks.dtype(k, {q.view.dtype});
  checks.present(v);
  checks.dtype(v, {q.view.dtype});
  const std::int64_t dim = args.cache.groups[at(args.layer_group)].layer_group.k_dim;
  if (q.view.shape[0] != k.view.shape[0] || q.view.shape[2] != dim) {
    checks.fail("q", shape_string({{k.view.shape[0], q.view.shape[1], dim}}),
                shape_string(q.view.sizes()));
  }
  p.rope = {.dtype = q.view.dtype,
            .x = q.view.data,
            .y = args.y.data,
            .tokens = q.view.shape[0],
            .heads = q.view.shape[1],
            .dim = dim,
            .x_token = q.view.stride[0],
            .x_head = q.view.shape[2],
            .y_token = y.view.stride[0],
            .y_head = y.view.shape[2]};
  check_norms(checks, args, dim, p);
  check_rotation(checks, args, p.rope);
  checks.disjoint(y, q, true);
  for (const Argument& input :
       {k, v, Argument{"q_weight", args.q_weight}, Argument{"k_weight", args.k_weight},
        Argument{"positions", args.positions}, Argument{"frequencies", args.frequencies},
        Argument{"rows", args.rows}, Argument{"slots", args.slots}}) {
    if (input.view.defined()) checks.disjoint(y, input, false);
  }
  const cache::GroupView& group = args.cache.groups[at(args.layer_group)];
  const std::int64_t pages_shape[] = {group.pages, group.geometry.page_bytes};
  checks.disjoint(y,
                  {"cache", make_view(static_cast<const void*>(group.memory), pages_shape,
                                      DType::u8, context.device())},
                  false);
  return p;
}

}  // namespace

void rope_append(Context& context, const RopeAppendArgs& args) {
  const Problem p = checked(context, args);
  if (p.rope.tokens == 0) return;
  run_first<Problem>(kName, kList, context, p, args.implementation);
}

std::vector<ImplementationReport> explain(Context& context, const RopeAppendArgs& args) {
  return report_implementations<Problem>(kList, context, checked(context, args));
}

}  // namespace touchstone::inline v0
