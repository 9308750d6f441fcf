// Attention over dense keys and values, forward and backward, tile by tile: no matrix of all
// queries by all keys is stored.
//
//   s[i][t]   = scale * dot(q[i], k[t])          then cap * tanh(s / cap) with a soft cap
//               - slope[head] * |p[i] - t|       with ALiBi
//               + bias[i][t]                     with an additive bias
//   w[i][t]   = exp(s[i][t] - max s[i])          over the keys t that query i attends to
//   output[i] = sum of w[i][t] * v[t] / sum of w[i][t]
//   log_sum_exp[i] = log(sum of exp(s[i][t]))
//
// Backward, with P[i][t] = exp(s[i][t] - log_sum_exp[i]):
//   delta[i] = dot(doutput[i], output[i]) - dlog_sum_exp[i]
//   dS[i][t] = P[i][t] * (dot(doutput[i], v[t]) - delta[i])
//   dv[t] = sum of P[i][t] * doutput[i]                    over the queries i that attend to t
//   dq[i] = scale * sum of c[i][t] * dS[i][t] * k[t]       c: the slope of the soft cap, or 1
//   dk[t] = scale * sum of c[i][t] * dS[i][t] * q[i]       over i and the query heads of the group
//   dbias[i][t] = dS[i][t]                                 summed over the broadcast dimensions
//   dsink_logits[h] = -sum of exp(sink_logits[h] - log_sum_exp[i]) * delta[i]
//
// Shapes      Dense: q [B, Sq, H, D], k [B, Sk, Hk, D], v [B, Sk, Hk, Dv], output [B, Sq, H, Dv],
//             log_sum_exp [B, Sq, H]. Packed (ragged), sequences of different lengths one after the
//             other: q [N, H, D], k [M, Hk, D], v [M, Hk, Dv], output [N, H, Dv], log_sum_exp
//             [N, H], with query_offsets and key_offsets [B + 1], ascending from 0 to N and to M:
//             sequence b has the queries [query_offsets[b], query_offsets[b + 1]), possibly none.
//             H is a multiple of Hk: query head h reads KV head h / (H / Hk). Gradients have the
//             shape of what they are the gradient of.
// Strides     The last dimension of q, k, v, output and their gradients has stride 1; all other
//             strides are free (>= 0, for outputs without overlap), those of log_sum_exp too.
//             Head-major memory [B, H, S, D] or [H, N, D] is a view with two dimensions swapped,
//             `transposed(view, 1, 2)` or `transposed(view, 0, 1)`; every implementation runs on
//             the strides, without copies.
// Masking     Query i of a sequence with Sq queries and Sk keys is at position p = i + Sk - Sq
//             (bottom-right aligned). It attends to key t iff
//               - causal: t <= p,
//               - with a window: t > p - window or t < sinks, and t < p + window unless causal.
//             A learned sink, sink_logits[head], is one more logit among the s, with a value of 0.
// Dropout     Of the weights, by a counter: AttentionDropout. In the formulas above w and P of the
//             products with v and doutput carry the mask; the sums of weights do not.
// Dtypes      f64 (CPU), f32, bf16, f16, the same for q, k, v, output and their gradients.
//             log_sum_exp, bias, alibi_slopes, sink_logits and their gradients f32, f64 when q is.
//             query_offsets and key_offsets i64.
// Accuracy    Arithmetic in f32 (f64 for f64); sums in chains of a tile, which are then joined.
//             With u the unit roundoff of the arithmetic, r that of the dtype, and
//               e[i][t] = u * ((D + 4) * scale * dot(|q[i]|, |k[t]|)
//                              + 8 * (|alibi| + |bias| + 2 * max |s[i]|) + 8)
//             for the error of a score, and w = 2 * max e[i] + 2 * u * (264 + Sk / 64):
//               |output - exact| <= w * sum of P * |v| + r * |output|
//               |log_sum_exp - exact| <= w + 4 * u * |log_sum_exp|
//             and P in the backward has the relative error e[i][t] + 4 * u * |log_sum_exp| where it
//             is at least 2^-126; a smaller P may be taken as 0 (not in f64), in the forward too,
//             where a learned sink can leave nothing larger. The gradients are sums of such terms.
//             On CUDA in 16 bits P and dS are rounded to the dtype before they are multiplied,
//             which adds 2 * r * sum of P * |v| to the first line and r * |P| and r * |dS| to the
//             terms of gradients.
// NaN and     A fully masked query has output 0 and log_sum_exp -inf (with a sink: the sink's
// infinity    logit), and takes no part in any gradient; a key without queries has dk = dv = 0.
//             Never NaN for finite input: on the CPU wherever the exact result is finite, on CUDA
//             where 256 * Sk * max |v| and 2 * D * scale * max |q| * max |k| are below the largest
//             float (beyond, sums may overflow to infinity or NaN). The backward has the latter
//             range everywhere, with |doutput| as |v|.
//             Masked keys are never read into a result, not even NaN; but CUDA's tensor cores
//             multiply whole tiles, where a weight of 0 times NaN or infinity is NaN: there it may
//             reach the rows of its tile that mask it. Past the end of a sequence it reaches
//             nothing anywhere.
// Aliasing    None: an output that overlaps a tensor is refused.
// Empty       No queries: dk = dv = 0. No keys: output 0, log_sum_exp -inf, dq = 0.
// Guarantees  Bitwise the same from run to run, for any number of threads and for any strides; a
//             query's output and dq, and the dk and dv of a KV head, are bitwise independent of the
//             rest of the batch; changing a key leaves queries that mask it bitwise as they were.
//             No float atomics. CUDA: no allocation but from the workspace, no synchronization; can
//             be captured in a graph.
// Cost        4 * B * H * Sq * Sk * D flops forward, 2.5 times that backward, half of it when
//             causal. Extra memory: a few tiles per thread, up to three numbers per query, and in
//             the backward on the CPU an f32 dq, at most 64 MiB per thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/export.h"
#include "touchstone/core/implementation_report.h"
#include "touchstone/core/tensor.h"

namespace touchstone::inline v0 {

// Dropout of weights, for training: P[i][t] becomes 0 or P[i][t] / (1 - p) after the softmax, so
// that log_sum_exp stays. A pure function of these numbers, the query's token, head and key, the
// same in both directions: bits t % 8 * 16 ... of random_words(seed, step * 2^40 + token * 2^13 + t
// / 8, RandomPurpose::dropout, draw + head * 2^16) are below round(p * 65536), p rounded to that
// number. The token is first_token + its index among all queries of the call, in the order of
// memory; t counts within the sequence.
struct AttentionDropout {
  double probability = 0;  // 0 <= p < 1
  std::int64_t seed = 0;
  std::int64_t step = 0;         // 0 <= step < 2^23
  std::int64_t first_token = 0;  // first_token + queries <= 2^27; keys <= 2^16 and heads <= 2^15
  std::uint32_t draw = 0;        // < 2^16
};

// Masks and score modifications, the same for both directions.
struct AttentionOptions {
  ConstTensorView query_offsets{};  // [B + 1], packed only
  ConstTensorView key_offsets{};    // [B + 1], packed only
  ConstTensorView bias{};           // [B or 1, H or 1, Sq, Sk], optional, dense only
  ConstTensorView alibi_slopes{};   // [H], optional
  ConstTensorView sink_logits{};    // [H], optional
  double scale = 0;                 // finite; 0 = 1 / sqrt(D)
  double soft_cap = 0;              // finite, >= 0; 0 = none
  std::int64_t window = 0;          // >= 0; 0 = none
  std::int64_t sinks = 0;           // >= 0, with a window only
  bool causal = false;
  AttentionDropout dropout{};  // not with dbias
};

struct AttentionArgs {
  ConstTensorView q{};       // [B, Sq, H, D] or [N, H, D]
  ConstTensorView k{};       // [B, Sk, Hk, D] or [M, Hk, D]
  ConstTensorView v{};       // [B, Sk, Hk, Dv] or [M, Hk, Dv]
  TensorView output{};       // [B, Sq, H, Dv] or [N, H, Dv]
  TensorView log_sum_exp{};  // [B, Sq, H] or [N, H], optional; includes the sink
  AttentionOptions options{};
  std::string implementation{};  // "" = the first of explain() that accepts
};

struct AttentionBackwardArgs {
  ConstTensorView doutput{};       // as output
  ConstTensorView dlog_sum_exp{};  // as log_sum_exp, optional
  ConstTensorView q{};             // inputs of the forward
  ConstTensorView k{};
  ConstTensorView v{};
  ConstTensorView output{};       // results of the forward
  ConstTensorView log_sum_exp{};  // likewise
  TensorView dq{};
  TensorView dk{};
  TensorView dv{};
  TensorView dbias{};         // as bias, optional, contiguous
  TensorView dsink_logits{};  // [H], optional
  AttentionOptions options{};
  std::string implementation{};  // "" = the first of explain() that accepts
};

TOUCHSTONE_API void attention(Context& context, const AttentionArgs& args);
TOUCHSTONE_API void attention_backward(Context& context, const AttentionBackwardArgs& args);

// See touchstone/core/implementation_report.h.
TOUCHSTONE_API std::vector<ImplementationReport> explain(Context& context,
                                                         const AttentionArgs& args);
TOUCHSTONE_API std::vector<ImplementationReport> explain(Context& context,
                                                         const AttentionBackwardArgs& args);

}  // namespace touchstone::inline v0
