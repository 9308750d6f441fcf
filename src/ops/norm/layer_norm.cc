#include "touchstone/ops/layer_norm.h"

#include "ops/norm/norm_checks.h"

namespace touchstone::inline v0 {
namespace {

constexpr char kLayerForward[] = "layer_norm";
constexpr char kLayerBackward[] = "layer_norm_backward";

norm::Forward checked(const Context& context, const LayerNormArgs& args) {
  return norm::check_forward(kLayerForward, context, norm::Kind::layer,
                             {.x = {"x", args.x},
                              .residual = {"residual", args.residual},
                              .weight = {"weight", args.weight},
                              .bias = {"bias", args.bias},
                              .y = {"y", args.y},
                              .sum = {"sum", args.sum},
                              .mean = {"mean", args.mean},
                              .rstd = {"rstd", args.rstd},
                              .eps = args.eps,
                              .weight_offset = 0,
                              .round_before_weight = false});
}

norm::Backward checked(const Context& context, const LayerNormBackwardArgs& args) {
  return norm::check_backward(kLayerBackward, context, norm::Kind::layer,
                              {.dy = {"dy", args.dy},
                               .x = {"x", args.x},
                               .mean = {"mean", args.mean},
                               .rstd = {"rstd", args.rstd},
                               .weight = {"weight", args.weight},
                               .dsum = {"dsum", args.dsum},
                               .dx = {"dx", args.dx},
                               .dweight = {"dweight", args.dweight},
                               .dbias = {"dbias", args.dbias},
                               .weight_offset = 0});
}

}  // namespace

void layer_norm(Context& context, const LayerNormArgs& args) {
  norm::run_forward(kLayerForward, context, checked(context, args), args.implementation);
}

void layer_norm_backward(Context& context, const LayerNormBackwardArgs& args) {
  norm::run_backward(kLayerBackward, context, checked(context, args), args.implementation);
}

std::vector<ImplementationReport> explain(Context& context, const LayerNormArgs& args) {
  return norm::report(context, checked(context, args));
}

std::vector<ImplementationReport> explain(Context& context, const LayerNormBackwardArgs& args) {
  return norm::report(context, checked(context, args));
}

}  // namespace touchstone::inline v0
