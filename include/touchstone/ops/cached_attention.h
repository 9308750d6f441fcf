// Attention of query tokens over the keys and values of a paged KV cache, directly from its pages.
//
//   s[t]   = scale * dot(q, k[t])               then cap * tanh(s[t] / cap) with a soft cap
//   w[t]   = exp(s[t] - max s)                  over the tokens t that the query attends to
//   output = sum of w[t] * v[t] / sum of w[t]   log_sum_exp = log(sum of exp(s[t]))
//
// k and v are the stored vectors, decoded. Query head h reads KV head h / (query_heads / kv_heads):
// MHA, GQA and MQA differ in these two numbers only. With k_is_v the value of a token is the first
// v_dim numbers of its key (MLA). With rotate_keys the query is rotated as the keys were.
//
// Order       reserve, append, commit, build a view, attend; or, layer by layer on one view,
//             reserve, build a view, (append, attend) for each layer, commit: with
//             `include_reserved` the length of a row is what the view has reserved for it,
//             otherwise what it has committed. Either way the query tokens of a row are its last
//             ones: of n, number j is at position length - n + j. `positions` overrides this.
// Masking     A query at position p attends to position t of its own row iff t < length and
//               - causal: t <= p,
//               - with a window: t > p - window, or t < sinks (window and sinks of the LayerGroup).
//             With `tree`, this holds below position tree_starts[row] (default: the position of the
//             first query of the row), and from there on bit j % 64 of word j / 64 of the query
//             alone says whether it attends to slot tree_starts[row] + j. Absent words are 0.
//             A draft tree is stored in any order that is ascending from root to leaf; each query
//             has the bits of its ancestors and its own, and with a window the `positions` of its
//             own path: tree_starts[row] + its depth.
//             A learned sink, sink_logits[head], is one more logit among the s, with a value of 0.
// Shapes      q: [N, query_heads, k_dim], output: [N, query_heads, v_dim], log_sum_exp:
//             [N, query_heads]; the tokens of row 0, then those of row 1, ... The last dimension of
//             q and output has stride 1, all other strides are free: head-major memory is a view
//             with two dimensions swapped, `transposed(view, 0, 1)`. query_offsets: [rows + 1],
//             ascending from 0 to N: row r has the tokens [query_offsets[r], query_offsets[r + 1]),
//             possibly none. All other tensors are contiguous.
// Dtypes      q and output f32, bf16, f16, each its own; log_sum_exp and sink_logits f32;
//             query_offsets, positions, tree and tree_starts i64. Any format for K and for V.
// Accuracy    Arithmetic in f32. Before it is rounded to its dtype the output is within
//             1e-5 * (sum of w[t] * |v[t]| / sum of w[t]) of exact arithmetic on the stored bytes
//             (for asymmetric and int4 values on CUDA |v[t]| is the largest magnitude its group can
//             hold: an offset that they are decoded with is taken out of the sums),
//             log_sum_exp within 1e-5 * max(1, |log_sum_exp|), where scale * dot(|q|, |k[t]|) is at
//             most 16 for every t attended to. Errors grow with the largest of these numbers, as
//             those of any f32 dot product do.
// NaN and     A fully masked query (an empty row, too many queries, scores of -inf only) has output
// infinity    0 and log_sum_exp -inf; with a sink, output 0 and the sink's logit. A score that is
//             NaN or +inf makes output and log_sum_exp of that query and head NaN. NaN and infinity
//             in a value that is attended to reach that column of the output, as infinity or NaN,
//             however small the weight. Never NaN for finite input where the number of tokens times
//             256 * max |v|, and 2 * k_dim * scale * max |q| * max |k|, are below the largest
//             float. Masked tokens are never read.
// Aliasing    None. An output that overlaps a tensor is refused; none may lie in the pages.
// Empty       N = 0: nothing is written.
// Guarantees  A query's bits depend on its own numbers and on the tokens it attends to, at their
//             positions on its path, and on nothing else: not on page size or slots, other rows,
//             the number of queries in the call (chunked prefill), strides, or the number of
//             threads. A node of a tree has the bits of its path decoded without a tree: its
//             ancestors are at positions tree_starts[row], tree_starts[row] + 1, ... of that path
//             (with a window that begins inside the tree, from the beginning of the window on),
//             whatever slots they are stored in.
//             Pages that neighboring rows have in common are read once for several of them; on CUDA
//             where each has one query token. CUDA: no allocation, no synchronization; can be
//             captured in a graph. Scratch is taken for all positions the page table has capacity
//             for; where the workspace is too small for all query tokens they are processed in
//             several launches.
// Memory      On the CPU the arrays of the view are checked: lengths against the table, and every
//             token that is attended to must have a page. On CUDA the view is one of
//             build(context, ids), all tensors are on the device, and what the arrays hold is not
//             checked; a token without a page is masked.
// Cost        Bytes: the stored K and V of what is attended to, once per KV head for all query
//             heads and query tokens that share it, plus q and output. 2 * (k_dim + v_dim) flops
//             and one exponential per query, head and token.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "touchstone/cache/cache_view.h"
#include "touchstone/core/context.h"
#include "touchstone/core/export.h"
#include "touchstone/core/implementation_report.h"
#include "touchstone/core/tensor.h"

namespace touchstone::inline v0 {

struct CachedAttentionArgs {
  ConstTensorView q{};              // [N, query_heads, k_dim]
  ConstTensorView query_offsets{};  // [rows + 1]
  cache::CacheView cache{};
  std::int64_t layer_group = 0;   // of the cache
  std::int64_t layer = 0;         // of the layer group
  ConstTensorView positions{};    // [N], optional
  ConstTensorView tree{};         // [N, words], optional
  ConstTensorView tree_starts{};  // [rows], optional, with `tree` only
  ConstTensorView sink_logits{};  // [query_heads], optional
  TensorView output{};            // [N, query_heads, v_dim]
  TensorView log_sum_exp{};       // [N, query_heads], optional; includes the sink
  double scale = 0;               // finite; 0 = 1 / sqrt(k_dim)
  double soft_cap = 0;            // finite, >= 0; 0 = none
  bool causal = true;
  bool include_reserved = false;
  std::string implementation{};  // "" = the first of explain() that accepts
};

TOUCHSTONE_API void cached_attention(Context& context, const CachedAttentionArgs& args);

// See touchstone/core/implementation_report.h.
TOUCHSTONE_API std::vector<ImplementationReport> explain(Context& context,
                                                         const CachedAttentionArgs& args);

}  // namespace touchstone::inline v0
