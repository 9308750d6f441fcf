// Projection of a weight matrix to ternary weights, on the device of a context: what a training
// step does to its latent weights before they are multiplied. Groups, scales, codes, rounding and
// the straight-through gradient are defined in core/ternary.h.
//
// Shapes      weight, values, codes: [rows, cols], contiguous. scales: [groups], numbered row by
//             row; ternary_groups() says how many. values, codes and scales are optional, at least
//             one is there.
// Dtypes      weight f32, on the CPU also f64. values: f32, bf16 or f16, with f64 weights also f64;
//             of bf16 and f16 the product scale * code rounded once, which is exact where the scale
//             type is f16_bf16. codes i8. scales f32, the numbers that are stored.
// NaN and     A group with NaN or infinity has a scale of NaN, values of NaN and codes of 0; other
// infinity    groups are not touched by it.
// Aliasing    values may be weight exactly where the dtypes are the same. No other overlap.
// Empty       Nothing is written.
// Guarantees  CPU and CUDA give the same bits, for any number of threads. No allocation on CUDA, no
//             synchronization; can be captured in a graph. Groups of rows and tensors take
//             workspace on CUDA: 8 bytes per 256 values and 8 per group.
// Refusals    Unsupported: least squares over rows and tensors on CUDA (their values would have to
//             be sorted).
// Cost        Reads weight once (tensor and row on CUDA: twice), writes the outputs once.
#pragma once

#include <string>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/export.h"
#include "touchstone/core/implementation_report.h"
#include "touchstone/core/tensor.h"
#include "touchstone/core/ternary.h"

namespace touchstone::inline v0 {

struct TernaryProjectArgs {
  ConstTensorView weight{};  // [rows, cols]
  TernaryRule rule{};
  TensorView values{};           // [rows, cols], optional
  TensorView codes{};            // i8 [rows, cols], optional
  TensorView scales{};           // f32 [groups], optional
  std::string implementation{};  // "" = the first of explain() that accepts
};

TOUCHSTONE_API void ternary_project(Context& context, const TernaryProjectArgs& args);

// See touchstone/core/implementation_report.h.
TOUCHSTONE_API std::vector<ImplementationReport> explain(Context& context,
                                                         const TernaryProjectArgs& args);

}  // namespace touchstone::inline v0
