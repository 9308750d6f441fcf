#include "touchstone/ops/rms_norm.h"

#include "ops/norm/norm_checks.h"

namespace touchstone::inline v0 {
namespace {

constexpr char kRmsForward[] = "rms_norm";
constexpr char kRmsBackward[] = "rms_norm_backward";

norm::Forward checked(const Context& context, const RmsNormArgs& args) {
  return norm::check_forward(
      kRmsForward, context, norm::Kind::rms,
      {.x = {"x", args.x},
       .residual = {"residual", args.residual},
       .weight = {"weight", args.weight},
       .bias = {"bias", {}},
       .y = {"y", args.y},
       .sum = {"sum", args.sum},
       .mean = {"mean", {}},
       .rstd = {"rstd", args.rstd},
       .eps = args.eps,
       .weight_offset = args.weight_offset,
       .round_before_weight = args.rounding == RmsNormRounding::before_weight});
}

norm::Backward checked(const Context& context, const RmsNormBackwardArgs& args) {
  return norm::check_backward(kRmsBackward, context, norm::Kind::rms,
                              {.dy = {"dy", args.dy},
                               .x = {"x", args.x},
                               .mean = {"mean", {}},
                               .rstd = {"rstd", args.rstd},
                               .weight = {"weight", args.weight},
                               .dsum = {"dsum", args.dsum},
                               .dx = {"dx", args.dx},
                               .dweight = {"dweight", args.dweight},
                               .dbias = {"dbias", {}},
                               .weight_offset = args.weight_offset});
}

}  // namespace

void rms_norm(Context& context, const RmsNormArgs& args) {
  norm::run_forward(kRmsForward, context, checked(context, args), args.implementation);
}

void rms_norm_backward(Context& context, const RmsNormBackwardArgs& args) {
  norm::run_backward(kRmsBackward, context, checked(context, args), args.implementation);
}

std::vector<ImplementationReport> explain(Context& context, const RmsNormArgs& args) {
  return norm::report(context, checked(context, args));
}

std::vector<ImplementationReport> explain(Context& context, const RmsNormBackwardArgs& args) {
  return norm::report(context, checked(context, args));
}

}  // namespace touchstone::inline v0
