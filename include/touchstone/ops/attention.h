// Attention over dense keys and values, forward and backward, tile by tile: no matrix of all
// queries by all keys exists anywhere.
//
//   s[i][t]   = scale * dot(q[i], k[t])          then cap * tanh(s / cap) with a soft cap
//               - slope[head] * |p[i] - t|       with ALiBi
//               + bias[i][t]                     with an additive bias
//   w[i][t]   = exp(s[i][t] - max s[i])          over the keys t that query i sees
//   output[i] = sum of w[i][t] * v[t] / sum of w[i][t]
//   log_sum_exp[i] = log(sum of exp(s[i][t]))
//
// Backward, with P[i][t] = exp(s[i][t] - log_sum_exp[i]):
//   delta[i] = dot(doutput[i], output[i]) - dlog_sum_exp[i]
//   dS[i][t] = P[i][t] * (dot(doutput[i], v[t]) - delta[i])
//   dv[t] = sum of P[i][t] * doutput[i]                      over the queries i that see t
//   dq[i] = scale * sum of c[i][t] * dS[i][t] * k[t]         c: the slope of the soft cap, or 1
//   dk[t] = scale * sum of c[i][t] * dS[i][t] * q[i]         over i and the query heads of the group
//   dbias[i][t] = dS[i][t]                                   summed over the broadcast dimensions
//   dsink_logits[h] = -sum of exp(sink_logits[h] - log_sum_exp[i]) * delta[i]
//
// Shapes      Dense: q [B, H, Sq, D], k [B, Hk, Sk, D], v [B, Hk, Sk, Dv], output [B, H, Sq, Dv],
//             log_sum_exp [B, H, Sq]. Packed, sequences of different lengths one after the other:
//             q [H, N, D], k [Hk, M, D], v [Hk, M, Dv], output [H, N, Dv], log_sum_exp [H, N], with
//             query_starts and key_starts [B + 1], ascending from 0 to N and to M: sequence b has
//             the queries [query_starts[b], query_starts[b + 1]), which may be none.
//             The last dimension has stride 1, the others may lie any stride apart (inputs >= 0):
//             memory in the order [B, S, H, D] or [N, H, D] is a view with two dimensions swapped,
//             `transposed(view, 1, 2)` or `transposed(view, 0, 1)`. log_sum_exp is contiguous.
//             H is a multiple of Hk: query head h reads KV head h / (H / Hk). Gradients are as
//             large as what they are the gradient of.
// Sight       Query i of a sequence with Sq queries and Sk keys stands at position
//             p = i + Sk - Sq, its last query at its last key. It sees key t when
//               - causal: t <= p,
//               - with a window: t > p - window or t < sinks, and t < p + window unless causal.
//             A learned sink, sink_logits[head], is one more logit among the s, with a value of 0.
// Dtypes      f64 (CPU), f32, bf16, f16, the same for q, k, v, output and their gradients.
//             log_sum_exp, bias, alibi_slopes, sink_logits and their gradients f32, f64 when q is.
//             query_starts and key_starts i64.
// Accuracy    Arithmetic in f32 (f64 for f64); sums in chains of a tile, which are then joined.
//             With u the unit roundoff of the arithmetic, r that of the dtype, and
//               e[i][t] = u * ((D + 4) * scale * dot(|q[i]|, |k[t]|)
//                              + 8 * (|alibi| + |bias| + 2 * max |s[i]|) + 8)
//             for the error of a score, and w = 2 * max e[i] + 2 * u * (264 + Sk / 64):
//               |output - exact| <= w * sum of P * |v| + r * |output|
//               |log_sum_exp - exact| <= w + 4 * u * |log_sum_exp|
//             and P in the backward is right to e[i][t] + 4 * u * |log_sum_exp|, relatively; the
//             gradients are sums of such terms. On CUDA in 16 bits P and dS are rounded to the
//             dtype before they are multiplied, which adds 2 * r * sum of P * |v| to the first
//             line and r * |P| and r * |dS| to the terms of gradients.
// Special     A query that sees nothing has output 0 and log_sum_exp -inf (with a sink: the sink's
//             logit), and takes no part in any gradient; a key that nobody sees has dk = dv = 0.
//             Never NaN for finite input whose scores are finite. What is not seen is never looked
//             at, not even NaN; but CUDA's tensor cores multiply whole tiles, where a weight of 0
//             times NaN or infinity is NaN: there it may reach the rows of its tile that do not see
//             it. Past the end of a sequence it reaches nothing anywhere.
// Aliasing    None: an output that overlaps a tensor is refused.
// Empty       No queries: dk = dv = 0. No keys: output 0, log_sum_exp -inf, dq = 0.
// Promises    Bitwise the same from run to run and for any number of threads; a query's output and
//             dq, and the dk and dv of a KV head, are bitwise the same whatever shares the batch;
//             changing a key leaves queries that do not see it bitwise as they were. No float
//             atomics. CUDA: no allocation but from the workspace, no synchronization; can be
//             captured in a graph.
// Cost        4 * B * H * Sq * Sk * D flops forward, 2.5 times that backward, half of it when
//             causal. Extra memory: a few tiles per thread, up to three numbers per query, and in
//             the backward on the CPU an f32 dq, at most 64 MiB per thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/implementation_report.h"
#include "touchstone/core/tensor.h"

namespace touchstone {

// What decides which key counts how much, the same for both directions.
struct AttentionOptions {
  ConstTensorView query_starts{};  // [B + 1], packed only
  ConstTensorView key_starts{};    // [B + 1], packed only
  ConstTensorView bias{};          // [B or 1, H or 1, Sq, Sk], optional, dense only
  ConstTensorView alibi_slopes{};  // [H], optional
  ConstTensorView sink_logits{};   // [H], optional
  double scale = 0;                // finite; 0 = 1 / sqrt(D)
  double soft_cap = 0;             // finite, >= 0; 0 = none
  std::int64_t window = 0;         // >= 0; 0 = none
  std::int64_t sinks = 0;          // >= 0, with a window only
  std::int64_t tile = 0;           // keys of a tile on the CPU, at most 1024; 0 = what is fast
  bool causal = false;
};

struct AttentionArgs {
  ConstTensorView q{};       // [B, H, Sq, D] or [H, N, D]
  ConstTensorView k{};       // [B, Hk, Sk, D] or [Hk, M, D]
  ConstTensorView v{};       // [B, Hk, Sk, Dv] or [Hk, M, Dv]
  TensorView output{};       // [B, H, Sq, Dv] or [H, N, Dv]
  TensorView log_sum_exp{};  // [B, H, Sq] or [H, N], optional; counts the sink
  AttentionOptions options{};
  std::string implementation{};  // "" = the first of explain() that accepts
};

struct AttentionBackwardArgs {
  ConstTensorView doutput{};       // as output
  ConstTensorView dlog_sum_exp{};  // as log_sum_exp, optional
  ConstTensorView q{};             // what the forward was given
  ConstTensorView k{};
  ConstTensorView v{};
  ConstTensorView output{};       // what it returned
  ConstTensorView log_sum_exp{};  // likewise
  TensorView dq{};
  TensorView dk{};
  TensorView dv{};
  TensorView dbias{};         // as bias, optional, contiguous
  TensorView dsink_logits{};  // [H], optional
  AttentionOptions options{};
  std::string implementation{};  // "" = the first of explain() that accepts
};

void attention(Context& context, const AttentionArgs& args);
void attention_backward(Context& context, const AttentionBackwardArgs& args);

// Every implementation for the context's device, in order of preference, and what it says to this
// call.
std::vector<ImplementationReport> explain(Context& context, const AttentionArgs& args);
std::vector<ImplementationReport> explain(Context& context, const AttentionBackwardArgs& args);

}  // namespace touchstone
