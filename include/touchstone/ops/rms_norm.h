// RMS norm over the last dimension, forward and backward.
//
//   h    = x                                     (x + residual, rounded to the dtype, when fused)
//   rstd = 1 / sqrt(sum(h^2) / D + eps)
//   y    = h * rstd * (weight_offset + weight)
//
// Backward, with xhat = h * rstd and g = dy * (weight_offset + weight):
//   dx      = rstd * (g - xhat * sum(g * xhat) / D)   (+ dsum when fused)
//   dweight = sum over rows of dy * xhat
//
// Rounding point. Model families differ in it, and it changes bits:
//   once           h * rstd * weight in f32, rounded once at the end
//   before_weight  h * rstd rounded to the dtype of x, then times the weight, rounded again
// The backward treats both roundings as the identity.
// Weight offset. 0 for most models; 1 for those that store weight - 1. The sum is taken in f32.
//
// Shapes, dtypes, accuracy, NaN and infinity, aliasing, empty input, guarantees and cost are those
// of layer_norm.h, without mean and bias.
#pragma once

#include <string>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/export.h"
#include "touchstone/core/implementation_report.h"
#include "touchstone/core/tensor.h"

namespace touchstone::inline v0 {

enum class RmsNormRounding { once, before_weight };

struct RmsNormArgs {
  ConstTensorView x{};         // [.., D]
  ConstTensorView residual{};  // [.., D], optional
  ConstTensorView weight{};    // [D], optional: weight_offset + weight = 1
  TensorView y{};              // [.., D]
  TensorView sum{};            // [.., D], x + residual; given exactly when residual is
  TensorView rstd{};           // [..], optional
  double eps = 1e-6;           // finite, >= 0
  double weight_offset = 0;    // finite
  RmsNormRounding rounding = RmsNormRounding::once;
  std::string implementation{};  // "" = the first of explain() that accepts
};

struct RmsNormBackwardArgs {
  ConstTensorView dy{};      // [.., D]
  ConstTensorView x{};       // [.., D], what the forward normalized: its x, or its sum when fused
  ConstTensorView rstd{};    // [..]
  ConstTensorView weight{};  // [D], optional
  ConstTensorView dsum{};    // [.., D], optional: the gradient that reaches sum directly
  TensorView dx{};           // [.., D]; when fused, the gradient of x and of residual alike
  TensorView dweight{};      // [D], optional
  double weight_offset = 0;
  std::string implementation{};  // "" = the first of explain() that accepts
};

TOUCHSTONE_API void rms_norm(Context& context, const RmsNormArgs& args);
TOUCHSTONE_API void rms_norm_backward(Context& context, const RmsNormBackwardArgs& args);

// See touchstone/core/implementation_report.h.
TOUCHSTONE_API std::vector<ImplementationReport> explain(Context& context, const RmsNormArgs& args);
TOUCHSTONE_API std::vector<ImplementationReport> explain(Context& context,
                                                         const RmsNormBackwardArgs& args);

}  // namespace touchstone::inline v0
