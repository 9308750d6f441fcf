// Checks and choice of implementation for cross_entropy; nothing else.
#include "touchstone/ops/cross_entropy.h"

#include <vector>

#include "core/checks.h"
#include "core/implementation.h"
#include "ops/cross_entropy/cross_entropy_problem.h"

namespace touchstone::inline v0 {
namespace cross_entropy_checks {
namespace {

using cross_entropy_op::Problem;

constexpr Implementation<Problem> kList[] = {
    {"amx", DeviceKind::cpu, cross_entropy_op::amx_refuses, cross_entropy_op::run_amx},
    {"simd", DeviceKind::cpu, nullptr, cross_entropy_op::run_simd},
    {"plain", DeviceKind::cpu, nullptr, cross_entropy_op::run_plain},
    {"wgmma", DeviceKind::cuda, cross_entropy_op::wgmma_refuses, cross_entropy_op::run_wgmma},
    {"portable", DeviceKind::cuda, cross_entropy_op::portable_refuses,
     cross_entropy_op::run_portable},
};

constexpr char kForwardName[] = "cross_entropy";
constexpr char kBackwardName[] = "cross_entropy_backward";

DType wide(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

// What forward and backward have in common: x, weight, targets, the options, the losses.
template <class Args>
Problem checked_forward(const Checks& checks, const Context& context, const Args& args) {
  const Argument x{"x", args.x};
  const Argument weight{"weight", args.weight};
  const Argument targets{"targets", args.targets};
  Problem p;
  checks.present(x);
  if (context.device().is_cuda()) {
    checks.dtype(x, {DType::f32, DType::bf16, DType::f16});
  } else {
    checks.dtype(x, {DType::f64, DType::f32, DType::bf16, DType::f16});
  }
  const RowLayout rows = checks.rows(x, false);
  p.dtype = args.x.dtype;
  p.tokens = rows.rows;
  p.dim = rows.cols;
  p.x = {const_cast<void*>(args.x.data), rows.stride};
  checks.present(weight);
  checks.dtype(weight, {p.dtype});
  if (args.weight.rank != 2) checks.fail("weight", "[V, E]", shape_string(args.weight.sizes()));
  p.vocabulary = args.weight.shape[0];
  if (p.vocabulary < 1) checks.fail("weight", "at least one row", "none");
  const std::int64_t head[] = {p.vocabulary, p.dim};
  checks.shape(weight, head);
  p.weight = {const_cast<void*>(args.weight.data), checks.rows(weight, false).stride};
  checks.present(targets);
  checks.dtype(targets, {DType::i32, DType::i64});
  const auto leading = args.x.sizes().first(args.x.sizes().size() - 1);
  checks.shape(targets, leading);
  checks.contiguous(targets);
  p.targets = {args.targets.data, args.targets.dtype == DType::i64};
  p.ignore_index = args.ignore_index;
  checks.finite_at_least("label_smoothing", args.label_smoothing, 0);
  if (args.label_smoothing > 1) {
    checks.fail("label_smoothing", "at most 1", std::to_string(args.label_smoothing));
  }
  checks.finite_at_least("z_loss", args.z_loss, 0);
  checks.soft_cap(args.soft_cap, p.dtype);
  p.label_smoothing = args.label_smoothing;
  p.z_loss = args.z_loss;
  p.soft_cap = args.soft_cap;
  const auto output = [&](const char* name, const TensorView& view) {
    return const_cast<void*>(checks.array({name, view}, wide(p.dtype), leading));
  };
  p.loss = output("loss", args.loss);
  p.log_probability = output("log_probability", args.log_probability);
  p.lse = output("lse", args.lse);
  const std::int64_t one[] = {1};
  p.mean_loss = const_cast<void*>(checks.array({"mean_loss", args.mean_loss}, wide(p.dtype), one));
  return p;
}

void check_targets(const Checks& checks, const Context& context, const Problem& p) {
  if (context.device().is_cuda()) return;  // the kernels look
  for (std::int64_t n = 0; n < p.tokens; ++n) {
    const std::int64_t target = p.targets[n];
    if (target == p.ignore_index || (target >= 0 && target < p.vocabulary)) continue;
    checks.fail(("targets[" + std::to_string(n) + "]").c_str(),
                "0 <= target < " + std::to_string(p.vocabulary) + ", or ignore_index",
                std::to_string(target));
  }
}

void check_disjoint(const Checks& checks, const std::vector<Argument>& outputs,
                    const std::vector<Argument>& inputs) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    for (const Argument& input : inputs) checks.disjoint(outputs[i], input, false);
    for (std::size_t j = i + 1; j < outputs.size(); ++j) {
      checks.disjoint(outputs[i], outputs[j], false);
    }
  }
}

Problem checked(const Context& context, const CrossEntropyArgs& args) {
  const Checks checks(kForwardName, context);
  const Problem p = checked_forward(checks, context, args);
  check_disjoint(checks,
                 {{"loss", args.loss},
                  {"log_probability", args.log_probability},
                  {"lse", args.lse},
                  {"mean_loss", args.mean_loss}},
                 {{"x", args.x}, {"weight", args.weight}, {"targets", args.targets}});
  check_targets(checks, context, p);
  return p;
}

Problem checked(const Context& context, const CrossEntropyBackwardArgs& args) {
  const Checks checks(kBackwardName, context);
  Problem p = checked_forward(checks, context, args);
  p.backward = true;
  const Argument dx{"dx", args.dx};
  const Argument dweight{"dweight", args.dweight};
  const Argument dloss{"dloss", args.dloss};
  const auto leading = args.x.sizes().first(args.x.sizes().size() - 1);
  p.dloss = checks.array(dloss, wide(p.dtype), leading);
  if (args.dx.defined()) {
    checks.present(dx);
    checks.dtype(dx, {p.dtype});
    checks.shape(dx, args.x.sizes());
    p.dx = {args.dx.data, checks.rows(dx, true).stride};
  }
  p.accumulate = args.accumulate;
  if (args.dweight.defined()) {
    checks.present(dweight);
    if (p.accumulate) {
      checks.dtype(dweight, {wide(p.dtype)});
    } else {
      checks.dtype(dweight, {p.dtype, wide(p.dtype)});
    }
    checks.shape(dweight, args.weight.sizes());
    p.dweight = {args.dweight.data, checks.rows(dweight, true).stride};
    p.dweight_dtype = args.dweight.dtype;
  }
  check_disjoint(checks,
                 {dx,
                  dweight,
                  {"loss", args.loss},
                  {"log_probability", args.log_probability},
                  {"lse", args.lse},
                  {"mean_loss", args.mean_loss}},
                 {{"x", args.x}, {"weight", args.weight}, {"targets", args.targets}, dloss});
  check_targets(checks, context, p);
  return p;
}

}  // namespace
}  // namespace cross_entropy_checks

void cross_entropy(Context& context, const CrossEntropyArgs& args) {
  using namespace cross_entropy_checks;
  run_first<Problem>(kForwardName, kList, context, checked(context, args), args.implementation);
}

void cross_entropy_backward(Context& context, const CrossEntropyBackwardArgs& args) {
  using namespace cross_entropy_checks;
  run_first<Problem>(kBackwardName, kList, context, checked(context, args), args.implementation);
}

std::vector<ImplementationReport> explain(Context& context, const CrossEntropyArgs& args) {
  using namespace cross_entropy_checks;
  return report_implementations<Problem>(kList, context, checked(context, args));
}

std::vector<ImplementationReport> explain(Context& context, const CrossEntropyBackwardArgs& args) {
  using namespace cross_entropy_checks;
  return report_implementations<Problem>(kList, context, checked(context, args));
}

}  // namespace touchstone::inline v0
