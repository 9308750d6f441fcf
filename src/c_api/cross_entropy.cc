// The loss over an output head.
#include "touchstone/ops/cross_entropy.h"

#include "c_api/border.h"

namespace touchstone::c_api {
namespace {

CrossEntropyArgs converted(const ts_cross_entropy_args* given) {
  const ts_cross_entropy_args args =
      current(given, "cross_entropy", offsetof(ts_cross_entropy_args, implementation),
              TS_CROSS_ENTROPY_ARGS);
  return {.x = view(args.x, "cross_entropy: x"),
          .weight = view(args.weight, "cross_entropy: weight"),
          .targets = view(args.targets, "cross_entropy: targets"),
          .loss = view(args.loss, "cross_entropy: loss"),
          .log_probability = view(args.log_probability, "cross_entropy: log_probability"),
          .lse = view(args.lse, "cross_entropy: lse"),
          .mean_loss = view(args.mean_loss, "cross_entropy: mean_loss"),
          .label_smoothing = args.label_smoothing,
          .z_loss = args.z_loss,
          .soft_cap = args.soft_cap,
          .ignore_index = args.ignore_index,
          .implementation = text(args.implementation)};
}

CrossEntropyBackwardArgs converted(const ts_cross_entropy_backward_args* given) {
  const ts_cross_entropy_backward_args args = current(
      given, "cross_entropy_backward", offsetof(ts_cross_entropy_backward_args, implementation),
      TS_CROSS_ENTROPY_BACKWARD_ARGS);
  const auto argument = [](const ts_tensor& tensor, const char* name) {
    return view(tensor, (std::string("cross_entropy_backward: ") + name).c_str());
  };
  return {.x = argument(args.x, "x"),
          .weight = argument(args.weight, "weight"),
          .targets = argument(args.targets, "targets"),
          .dloss = argument(args.dloss, "dloss"),
          .dx = argument(args.dx, "dx"),
          .dweight = argument(args.dweight, "dweight"),
          .loss = argument(args.loss, "loss"),
          .log_probability = argument(args.log_probability, "log_probability"),
          .lse = argument(args.lse, "lse"),
          .mean_loss = argument(args.mean_loss, "mean_loss"),
          .label_smoothing = args.label_smoothing,
          .z_loss = args.z_loss,
          .soft_cap = args.soft_cap,
          .ignore_index = args.ignore_index,
          .accumulate = args.accumulate != 0,
          .implementation = text(args.implementation)};
}

}  // namespace
}  // namespace touchstone::c_api

TOUCHSTONE_C_OPERATOR(cross_entropy, ts_cross_entropy_args, converted);
TOUCHSTONE_C_OPERATOR(cross_entropy_backward, ts_cross_entropy_backward_args, converted);
