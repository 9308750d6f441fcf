// The k largest softmax probabilities of each row and their tokens, from one read of the logits.
//
//   v[i] = logits[i] + bias[i]       rounded to f32; -inf where token_mask excludes the token
//   p[i] = exp((v[i] - max v) / T) / sum over j of exp((v[j] - max v) / T)
//
// Order       By (v descending, token ascending), v compared as f32: temperature never reorders
//             tokens, -0 equals +0, and equal values go by token. Output slot j holds the token of
//             rank j.
// Shapes      logits: [.., V], any leading shape; the last dimension has stride 1, the leading ones
//             collapse to one row stride (>= 0). Rows may start at any element.
//             probabilities, indices, log_probabilities: [.., k] with 1 <= k <= V, contiguous.
//             temperature, log_sum_exp, status: the leading shape, contiguous.
//             bias: [V], or like logits. token_mask: [W], or [.., W], W = ceil(V / 32), bit t % 32
//             of word t / 32 is token t, 1 = allowed; spare bits are ignored.
// Dtypes      logits f32, bf16, f16; bias and all floating outputs f32; indices i32 or i64;
//             token_mask and status i32.
// Accuracy    The sum is of f32 values, in an order that depends on V alone. Against exact
//             arithmetic a probability is within (1e-6 + 2e-7 * |v - max v| / T) of itself.
// NaN and infinity
//             -inf is a masked token: probability 0, log-probability -inf, last in order. A row of
//             -inf only has probabilities 0, log-sum-exp -inf and tokens 0 .. k-1. With +inf in a
//             row, the +inf tokens share probability 1 equally, the others have 0, log-sum-exp is
//             +inf. A row with NaN, or whose own temperature is not finite and > 0, has indices -1
//             and NaN everywhere else. The status word (RowStatus) reports each: a bad temperature
//             with that bit alone, else NaN with that bit alone, else all bits that hold. A masked
//             token is -inf whatever its logit, NaN included.
// Aliasing    None: an output that overlaps anything else is refused.
// Empty       No rows: nothing is written. V = 0 is refused, since k >= 1.
// Guarantees  Deterministic: set, order and bits are the same for any batch, row stride, alignment,
//             stream and number of threads of a device; CPU and GPU agree on set and order exactly.
//             No float atomics. CUDA: no allocation, no synchronization; can be captured in a
//             graph.
// Cost        Bytes: rows * V * size, once (rare rows are read twice and report two_pass), plus the
//             outputs. One exponential and about five other flops per logit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/export.h"
#include "touchstone/core/implementation_report.h"
#include "touchstone/core/tensor.h"
#include "touchstone/ops/row_status.h"

namespace touchstone::inline v0 {

struct SoftmaxTopkArgs {
  ConstTensorView logits{};        // [.., V]
  ConstTensorView temperature{};   // [..], optional: per row, times `temperature_scale`
  ConstTensorView bias{};          // [V] or [.., V], optional
  ConstTensorView token_mask{};    // [W] or [.., W], optional: packed bits
  TensorView probabilities{};      // [.., k]
  TensorView indices{};            // [.., k]
  TensorView log_probabilities{};  // [.., k], optional: log of `probabilities` before underflow
  TensorView log_sum_exp{};        // [..], optional: log(sum(exp(v / T)))
  TensorView status{};             // [..], optional: RowStatus
  double temperature_scale = 1.0;  // finite, > 0: the temperature of the whole call
  bool renormalize = false;        // probabilities sum to 1 over the k that are kept
  std::string implementation{};    // "" = the first of explain() that accepts
};

TOUCHSTONE_API void softmax_topk(Context& context, const SoftmaxTopkArgs& args);

// See touchstone/core/implementation_report.h.
TOUCHSTONE_API std::vector<ImplementationReport> explain(Context& context,
                                                         const SoftmaxTopkArgs& args);

}  // namespace touchstone::inline v0
