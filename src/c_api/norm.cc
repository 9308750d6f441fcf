// Normalization.
#include "c_api/border.h"
#include "touchstone/ops/layer_norm.h"
#include "touchstone/ops/rms_norm.h"

namespace touchstone::c_api {
namespace {

RmsNormRounding rounding(ts_rms_norm_rounding value) {
  if (value == TS_ROUND_ONCE) return RmsNormRounding::once;
  if (value == TS_ROUND_BEFORE_WEIGHT) return RmsNormRounding::before_weight;
  throw InvalidArgument("rms_norm: rounding " + std::to_string(value) +
                        " is not a ts_rms_norm_rounding");
}

LayerNormArgs converted(const ts_layer_norm_args* given) {
  const ts_layer_norm_args args = current(
      given, "layer_norm", offsetof(ts_layer_norm_args, implementation), TS_LAYER_NORM_ARGS);
  return {.x = view(args.x, "layer_norm: x"),
          .residual = view(args.residual, "layer_norm: residual"),
          .weight = view(args.weight, "layer_norm: weight"),
          .bias = view(args.bias, "layer_norm: bias"),
          .y = view(args.y, "layer_norm: y"),
          .sum = view(args.sum, "layer_norm: sum"),
          .mean = view(args.mean, "layer_norm: mean"),
          .rstd = view(args.rstd, "layer_norm: rstd"),
          .eps = args.eps,
          .implementation = text(args.implementation)};
}

LayerNormBackwardArgs converted(const ts_layer_norm_backward_args* given) {
  const ts_layer_norm_backward_args args =
      current(given, "layer_norm_backward", offsetof(ts_layer_norm_backward_args, implementation),
              TS_LAYER_NORM_BACKWARD_ARGS);
  return {.dy = view(args.dy, "layer_norm_backward: dy"),
          .x = view(args.x, "layer_norm_backward: x"),
          .mean = view(args.mean, "layer_norm_backward: mean"),
          .rstd = view(args.rstd, "layer_norm_backward: rstd"),
          .weight = view(args.weight, "layer_norm_backward: weight"),
          .dsum = view(args.dsum, "layer_norm_backward: dsum"),
          .dx = view(args.dx, "layer_norm_backward: dx"),
          .dweight = view(args.dweight, "layer_norm_backward: dweight"),
          .dbias = view(args.dbias, "layer_norm_backward: dbias"),
          .implementation = text(args.implementation)};
}

RmsNormArgs converted(const ts_rms_norm_args* given) {
  const ts_rms_norm_args args =
      current(given, "rms_norm", offsetof(ts_rms_norm_args, implementation), TS_RMS_NORM_ARGS);
  return {.x = view(args.x, "rms_norm: x"),
          .residual = view(args.residual, "rms_norm: residual"),
          .weight = view(args.weight, "rms_norm: weight"),
          .y = view(args.y, "rms_norm: y"),
          .sum = view(args.sum, "rms_norm: sum"),
          .rstd = view(args.rstd, "rms_norm: rstd"),
          .eps = args.eps,
          .weight_offset = args.weight_offset,
          .rounding = rounding(args.rounding),
          .implementation = text(args.implementation)};
}

RmsNormBackwardArgs converted(const ts_rms_norm_backward_args* given) {
  const ts_rms_norm_backward_args args =
      current(given, "rms_norm_backward", offsetof(ts_rms_norm_backward_args, implementation),
              TS_RMS_NORM_BACKWARD_ARGS);
  return {.dy = view(args.dy, "rms_norm_backward: dy"),
          .x = view(args.x, "rms_norm_backward: x"),
          .rstd = view(args.rstd, "rms_norm_backward: rstd"),
          .weight = view(args.weight, "rms_norm_backward: weight"),
          .dsum = view(args.dsum, "rms_norm_backward: dsum"),
          .dx = view(args.dx, "rms_norm_backward: dx"),
          .dweight = view(args.dweight, "rms_norm_backward: dweight"),
          .weight_offset = args.weight_offset,
          .implementation = text(args.implementation)};
}

}  // namespace
}  // namespace touchstone::c_api

TOUCHSTONE_C_OPERATOR(layer_norm, ts_layer_norm_args, converted);
TOUCHSTONE_C_OPERATOR(layer_norm_backward, ts_layer_norm_backward_args, converted);
TOUCHSTONE_C_OPERATOR(rms_norm, ts_rms_norm_args, converted);
TOUCHSTONE_C_OPERATOR(rms_norm_backward, ts_rms_norm_backward_args, converted);
