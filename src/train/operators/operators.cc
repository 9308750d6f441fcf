// Checks of the training operators, then the device.
#include "touchstone/train/operators.h"

#include <cmath>

#include "core/checks.h"
#include "touchstone/core/checked.h"
#include "train/operators/problem.h"

namespace touchstone::inline v0::train {
namespace {

void* data_of(const Argument& a) { return const_cast<void*>(a.view.data); }

void check_float(const Checks& checks, const Context& context, const Argument& a) {
  if (context.device().is_cuda()) {
    checks.dtype(a, {DType::f32, DType::bf16, DType::f16});
  } else {
    checks.dtype(a, {DType::f64, DType::f32, DType::bf16, DType::f16});
  }
}

void check_wide(const Checks& checks, const Context& context, const Argument& a) {
  checks.present(a);
  if (context.device().is_cuda()) {
    checks.dtype(a, {DType::f32});
  } else {
    checks.dtype(a, {DType::f64, DType::f32});
  }
  checks.contiguous(a);
}

// A contiguous tensor like `first`.
void check_like(const Checks& checks, const Argument& first, const Argument& a) {
  checks.present(a);
  checks.dtype(a, {first.view.dtype});
  checks.shape(a, first.view.sizes());
  checks.contiguous(a);
}

void check_below_one(const Checks& checks, const char* name, double value) {
  checks.finite_at_least(name, value, 0);
  if (value >= 1) checks.fail(name, "less than 1", std::to_string(value));
}

}  // namespace

void cast(Context& context, const CastArgs& args) {
  const Checks checks("cast", context);
  const Argument x{"x", args.x};
  const Argument y{"y", args.y};
  checks.present(x);
  checks.present(y);
  check_float(checks, context, x);
  check_float(checks, context, y);
  checks.shape(y, x.view.sizes());
  if ((x.view.dtype == DType::f64) != (y.view.dtype == DType::f64)) {
    checks.fail("y", "f64 exactly where x is", std::string(name_of(y.view.dtype)));
  }
  checks.disjoint(y, x, false);
  const RowLayout from = checks.rows(x, false);
  const RowLayout to = checks.rows(y, true);
  if (from.rows == 0 || from.cols == 0) return;
  const CastProblem p{.rows = from.rows,
                      .cols = from.cols,
                      .x = {data_of(x), from.stride},
                      .y = {data_of(y), to.stride},
                      .from = x.view.dtype,
                      .to = y.view.dtype};
  context.device().is_cuda() ? cast_cuda(context, p) : cast_cpu(context, p);
}

void add_to(Context& context, const AddArgs& args) {
  const Checks checks("add_to", context);
  const Argument x{"x", args.x};
  const Argument y{"y", args.y};
  check_wide(checks, context, x);
  check_like(checks, x, y);
  checks.disjoint(y, x, false);
  const AddProblem p{args.x.data, args.y.data, args.x.elements(), args.x.dtype};
  if (p.count == 0) return;
  context.device().is_cuda() ? add_cuda(context, p) : add_cpu(context, p);
}

void dropout(Context& context, const DropoutArgs& args) {
  const Checks checks("dropout", context);
  const Argument x{"x", args.x};
  const Argument y{"y", args.y};
  checks.present(x);
  checks.present(y);
  check_float(checks, context, x);
  checks.dtype(y, {x.view.dtype});
  checks.shape(y, x.view.sizes());
  checks.disjoint(y, x, true);
  const DropoutMask& mask = args.mask;
  check_below_one(checks, "probability", mask.probability);
  constexpr std::int64_t kSteps = std::int64_t{1} << 23;
  if (mask.step < 0 || mask.step >= kSteps) {
    checks.fail("step", "0 <= step < 2^23", std::to_string(mask.step));
  }
  const RowLayout from = checks.rows(x, false);
  const RowLayout to = checks.rows(y, true);
  const std::int64_t per_row = ceil_div(from.cols, kDropoutColumns);
  const std::int64_t last = checked_add(mask.first_token, from.rows, "dropout");
  if (mask.first_token < 0 || checked_mul(last, per_row, "dropout") >= std::int64_t{1} << 40) {
    checks.fail("first_token", "at least 0, and less than 2^40 draws in a step",
                std::to_string(mask.first_token));
  }
  if (from.rows == 0 || from.cols == 0) return;
  const double threshold = std::nearbyint(mask.probability * 65536);
  const DropoutProblem p{
      .rows = from.rows,
      .cols = from.cols,
      .x = {data_of(x), from.stride},
      .y = {data_of(y), to.stride},
      .dtype = x.view.dtype,
      .seed = mask.seed,
      .first_position = (mask.step << 40) + mask.first_token * per_row,
      .positions_per_row = per_row,
      .draw = mask.draw,
      .threshold = static_cast<std::uint32_t>(threshold < 65535 ? threshold : 65535),
      .scale = 65536 / (65536 - (threshold < 65535 ? threshold : 65535))};
  context.device().is_cuda() ? dropout_cuda(context, p) : dropout_cpu(context, p);
}

void gradient_norm(Context& context, const GradientNormArgs& args) {
  const Checks checks("gradient_norm", context);
  const Argument gradient{"gradient", args.gradient};
  const Argument norm{"norm", args.norm};
  check_wide(checks, context, gradient);
  const std::int64_t one[] = {1};
  checks.array(norm, DType::f64, one, true);
  checks.disjoint(norm, gradient, false);
  const NormProblem p{args.gradient.data, static_cast<double*>(args.norm.data),
                      args.gradient.elements(), args.gradient.dtype};
  context.device().is_cuda() ? norm_cuda(context, p) : norm_cpu(context, p);
}

void adamw(Context& context, const AdamWArgs& args) {
  const Checks checks("adamw", context);
  const Argument gradient{"gradient", args.gradient};
  check_wide(checks, context, gradient);
  const Argument outputs[] = {
      {"weight", args.weight}, {"m", args.m}, {"v", args.v}, {"average", args.average}};
  const bool averaged = args.average.defined();
  for (const Argument& output : outputs) {
    if (output.view.defined() || &output != &outputs[3]) check_like(checks, gradient, output);
  }
  const std::int64_t one[] = {1};
  const void* const norm = checks.array({"norm", args.norm}, DType::f64, one);
  for (int i = 0; i < (averaged ? 4 : 3); ++i) {
    checks.disjoint(outputs[i], gradient, false);
    if (norm != nullptr) checks.disjoint(outputs[i], {"norm", args.norm}, false);
    for (int j = 0; j < i; ++j) checks.disjoint(outputs[i], outputs[j], false);
  }
  if (args.step < 1) checks.fail("step", "at least 1", std::to_string(args.step));
  checks.finite_at_least("learning_rate", args.learning_rate, 0);
  checks.finite_at_least("epsilon", args.epsilon, 0);
  checks.finite_at_least("weight_decay", args.weight_decay, 0);
  checks.finite_at_least("clip", args.clip, 0);
  check_below_one(checks, "beta1", args.beta1);
  check_below_one(checks, "beta2", args.beta2);
  check_below_one(checks, "average_decay", args.average_decay);
  const auto step = static_cast<double>(args.step);
  const AdamWProblem p{.gradient = args.gradient.data,
                       .norm = static_cast<const double*>(norm),
                       .weight = args.weight.data,
                       .m = args.m.data,
                       .v = args.v.data,
                       .average = args.average.data,
                       .count = args.gradient.elements(),
                       .dtype = args.gradient.dtype,
                       .decay = 1 - args.learning_rate * args.weight_decay,
                       .step_size = args.learning_rate / (1 - std::pow(args.beta1, step)),
                       .root = 1 / std::sqrt(1 - std::pow(args.beta2, step)),
                       .beta1 = args.beta1,
                       .beta2 = args.beta2,
                       .epsilon = args.epsilon,
                       .clip = args.clip,
                       .average_decay = args.average_decay};
  if (p.count == 0) return;
  context.device().is_cuda() ? adamw_cuda(context, p) : adamw_cpu(context, p);
}

}  // namespace touchstone::inline v0::train
