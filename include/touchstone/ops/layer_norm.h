// Layer norm over the last dimension, forward and backward.
//
//   h    = x                                     (x + residual, rounded to the dtype, when fused)
//   mean = sum(h) / D       var = sum((h - mean)^2) / D       rstd = 1 / sqrt(var + eps)
//   y    = (h - mean) * rstd * weight + bias
//
// Backward, with xhat = (h - mean) * rstd and g = dy * weight:
//   dx      = rstd * (g - sum(g) / D - xhat * sum(g * xhat) / D)   (+ dsum when fused)
//   dweight = sum over rows of dy * xhat         dbias = sum over rows of dy
//
// Shapes      x, residual, y, sum, dy, dsum, dx: [.., D], any leading shape. The last dimension
//             has stride 1; the leading ones must collapse to one row stride (inputs: >= 0, so an
//             expanded gradient works; outputs: >= D). mean, rstd: the leading shape, contiguous.
//             weight, bias, dweight, dbias: [D], contiguous.
// Dtypes      f64 (CPU), f32, bf16, f16. weight and bias share a dtype: that of x, or f32 when x
//             is 16 bits wide. dweight and dbias likewise, independently of the dtype of weight.
//             mean and rstd are f32, f64 when x is.
// Rounding    Arithmetic is f32 or wider (f64 for f64); every output is rounded once.
// Accuracy    f32: |result - exact| <= 1e-6 |exact| in the Euclidean norm of each output (y, mean,
//             rstd, dx, dweight, dbias), up to |mean| = 1e6 standard deviations. The error of a
//             single element is relative to the terms it is a sum of, not to the element. The mean
//             is re-centered: m is the rounded mean, delta = sum(h - m) / D its rounding residual,
//             and (h - m) - delta replaces h - mean. The backward recomputes delta in the
//             reduction it makes anyway, so mean and rstd are all it needs. Beyond 1e6 the error
//             grows in proportion to |mean| / sigma. Squares neither overflow nor underflow:
//             sigma from 1e-37 to 1e37 works, eps = 0 included.
// NaN and     A row of zero variance gives xhat = 0 when eps > 0 (to rounding) and NaN when
// infinity    eps = 0, as the formula says. NaN or infinity in a row makes that row's y, mean,
//             rstd and dx NaN, and dweight NaN in the backward; dbias is the sum of dy whatever x
//             is. NaN in dy makes its row of dx NaN, infinity makes it NaN or infinite. Other rows
//             are untouched. On the CPU, in `simd`, the NaN of dweight, of dbias and of rows of dx
//             that these cause is the positive quiet NaN.
// Aliasing    y may be x, or residual where given; sum may be x or residual; dx may be dy, x or
//             dsum: exactly the same view. Any other overlap with an output is refused.
// Empty       No rows: nothing is written but dweight = dbias = 0. D = 0: nothing is written.
// Guarantees  Bitwise the same from run to run and for any number of threads; a row of y and dx is
//             bitwise the same whatever rows share its batch. No float atomics.
// Cost        Bytes: forward 2 * rows * D * size (fused 4), backward 3 (fused 4). Flops per
//             element: about 9 forward, 15 backward. On the CPU a row of the forward whose mean
//             square leaves 2^-90 .. 2^127 (f64: 2^-970 .. 2^1023) is computed by scalar code and
//             takes 10 to 40 times as long; one with NaN or infinity 1.5 to 3 times (f32, bf16 and
//             f16, 64 x 4096, one thread of an AMD EPYC of Zen 4).
#pragma once

#include <string>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/export.h"
#include "touchstone/core/implementation_report.h"
#include "touchstone/core/tensor.h"

namespace touchstone::inline v0 {

struct LayerNormArgs {
  ConstTensorView x{};           // [.., D]
  ConstTensorView residual{};    // [.., D], optional
  ConstTensorView weight{};      // [D], optional: 1
  ConstTensorView bias{};        // [D], optional: 0
  TensorView y{};                // [.., D]
  TensorView sum{};              // [.., D], x + residual; given exactly when residual is
  TensorView mean{};             // [..], optional
  TensorView rstd{};             // [..], optional
  double eps = 1e-5;             // finite, >= 0
  std::string implementation{};  // "" = the first of explain() that accepts
};

struct LayerNormBackwardArgs {
  ConstTensorView dy{};      // [.., D]
  ConstTensorView x{};       // [.., D], what the forward normalized: its x, or its sum when fused
  ConstTensorView mean{};    // [..]
  ConstTensorView rstd{};    // [..]
  ConstTensorView weight{};  // [D], optional: 1
  ConstTensorView dsum{};    // [.., D], optional: the gradient that reaches sum directly
  TensorView dx{};           // [.., D]; when fused, the gradient of x and of residual alike
  TensorView dweight{};      // [D], optional
  TensorView dbias{};        // [D], optional
  std::string implementation{};  // "" = the first of explain() that accepts
};

TOUCHSTONE_API void layer_norm(Context& context, const LayerNormArgs& args);
TOUCHSTONE_API void layer_norm_backward(Context& context, const LayerNormBackwardArgs& args);

// See touchstone/core/implementation_report.h.
TOUCHSTONE_API std::vector<ImplementationReport> explain(Context& context,
                                                         const LayerNormArgs& args);
TOUCHSTONE_API std::vector<ImplementationReport> explain(Context& context,
                                                         const LayerNormBackwardArgs& args);

}  // namespace touchstone::inline v0
