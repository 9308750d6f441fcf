// The k largest softmax probabilities of each row and where they are, from one read of the logits.
//
//   v[i] = logits[i] + bias[i]       rounded to f32; -inf where the token is not allowed
//   p[i] = exp((v[i] - max v) / T) / sum over j of exp((v[j] - max v) / T)
//
// Order       By (v descending, token ascending), v compared as f32: temperature never reorders
//             tokens, -0 equals +0, and equal values go by token. Output place j holds the token of
//             rank j.
// Shapes      logits: [.., V], any leading shape; the last dimension has stride 1, the leading ones
//             collapse to one row stride (>= 0). Rows may start at any element.
//             probabilities, indices, log_probabilities: [.., k] with 1 <= k <= V, contiguous.
//             temperature, log_sum_exp, status: the leading shape, contiguous.
//             bias: [V], or like logits. allowed: [W], or [.., W], W = ceil(V / 32), bit t % 32 of
//             word t / 32 is token t; spare bits are ignored.
// Dtypes      logits f32, bf16, f16; bias and all floating outputs f32; indices i32 or i64; allowed
//             and status i32.
// Accuracy    The sum is of f32 values, in an order that depends on V alone. Against exact
//             arithmetic a probability is within (1e-6 + 2e-7 * |v - max v| / T) of itself.
// Special     -inf is a masked token: probability 0, log-probability -inf, last in order. A row of
//             -inf only has probabilities 0, log-sum-exp -inf and tokens 0 .. k-1. With +inf in a
//             row, the +inf tokens share probability 1 equally, the others have 0, log-sum-exp is
//             +inf. A row with NaN, or whose own temperature is not finite and > 0, has indices -1
//             and NaN everywhere else. Each says so in its status word: a bad temperature with
//             that bit alone, else NaN with that bit alone, else with all bits that hold. A token
//             that is not allowed is -inf whatever its logit, NaN included.
// Aliasing    None: an output that overlaps anything else is refused.
// Empty       No rows: nothing is written. V = 0 is refused, since k >= 1.
// Promises    Set, order and bits are the same for any batch, row stride, alignment, stream and
//             number of threads of a device; CPU and GPU agree on set and order exactly. No float
//             atomics. CUDA: no allocation, no synchronization; can be captured in a graph.
// Cost        Bytes: rows * V * size, once (rare rows are read twice and say so), plus the outputs.
//             One exponential and about five other flops per logit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/implementation_report.h"
#include "touchstone/core/tensor.h"

namespace touchstone {

// Bits of a row's status word; 0 is a plain row.
inline constexpr std::int32_t kRowHasNan = 1;
inline constexpr std::int32_t kRowHasInfinity = 2;    // +inf
inline constexpr std::int32_t kRowAllMasked = 4;      // no token is above -inf
inline constexpr std::int32_t kRowFewerThanK = 8;     // fewer than k tokens are above -inf
inline constexpr std::int32_t kRowBadParameter = 16;  // this row's temperature (or other parameter)
inline constexpr std::int32_t kRowTwoPass = 32;       // how, not what: may differ by device

struct SoftmaxTopkArgs {
  ConstTensorView logits{};        // [.., V]
  ConstTensorView temperature{};   // [..], optional: per row, times `temperature_scale`
  ConstTensorView bias{};          // [V] or [.., V], optional
  ConstTensorView allowed{};       // [W] or [.., W], optional: packed bits
  TensorView probabilities{};      // [.., k]
  TensorView indices{};            // [.., k]
  TensorView log_probabilities{};  // [.., k], optional: log of `probabilities` before underflow
  TensorView log_sum_exp{};        // [..], optional: log(sum(exp(v / T)))
  TensorView status{};             // [..], optional
  double temperature_scale = 1.0;  // finite, > 0: the temperature of the whole call
  bool renormalize = false;        // probabilities sum to 1 over the k that are kept
  std::string implementation{};    // "" = the first of explain() that accepts
};

void softmax_topk(Context& context, const SoftmaxTopkArgs& args);

// Every implementation for the context's device, in order of preference, and what it says to this
// call.
std::vector<ImplementationReport> explain(Context& context, const SoftmaxTopkArgs& args);

}  // namespace touchstone
