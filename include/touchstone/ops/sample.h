// Samples one token per row from logits, with all controls per row.
//
// The steps of a row, in the order of Hugging Face's logits processors (penalties, temperature,
// top-k, top-p, min-p):
//   1. v[i] = logits[i] + bias[i], rounded to f32; -inf where token_mask excludes the token.
//   2. Penalties. A token of the row's history (prompt or output): v > 0 ? v / r : v * r with r the
//      repetition penalty. A token that occurs c > 0 times in the output part of the
//      history: v - c * frequency_penalty - presence_penalty. Each step is one f32 operation. A
//      token that is -inf stays -inf.
//   3. Temperature T: w[i] = exp((v[i] - max v) / T). T = 0 is greedy: the first token in order.
//   4. The tokens in order (v descending, token ascending) are cut to the shortest of
//        top_k   the first top_k
//        top_p   the smallest prefix of what top_k leaves whose mass is >= top_p of that mass
//        min_p   those with w[i] >= min_p * w[first]
//      All three are prefixes of one order, so the kept set is one too, and never empty. Ties are
//      broken by token, unlike in Hugging Face: top_k = 2 of four equal logits keeps {0, 1} here
//      and all four there.
//   5. One uniform u in (0, 1), from (seed, position) and nothing else, picks the token where the
//      running sum of w first exceeds u * total. The sum runs in order when the row has a cut
//      (0 < top_k < V, top_p < 1 or min_p > 0), by token index when it does not.
//
// log_probability and top_log_probabilities are of the whole distribution after step 3, before any
// cut; a greedy row uses T = 1 for them. They come from the same read as the draw.
//
// Shapes      logits: [.., V] as for softmax_topk. Everything per row: the leading shape,
//             contiguous. history: [.., L], tokens; negative entries are padding, and so are
//             those of V and more. The first prompt_length[row] entries are the prompt, the rest is
//             output. With history_row it is [S, L], and row r reads history[history_row[r]]: rows
//             that continue one sequence share its tokens. top_tokens and top_log_probabilities:
//             [.., n], 1 <= n <= V, both or neither.
// Trees       With `parent` and `tree_token` the rows are nodes of draft trees: row r holds the
//             logits after its node, whose token is tree_token[r] and whose parent is row parent[r]
//             < r, or -1 for a root, which follows the history. The history of such a row is its
//             entries of `history`, then the tokens from its root to itself, all of them output. So
//             a node draws what its path decoded without a tree draws at that position. A
//             token_mask [.., W] is one per node. Paths have at most max_depth nodes. The CPU
//             checks parents, history_row and depths; on CUDA what is out of range counts as
//             absent.
// Dtypes      logits f32, bf16, f16; temperature, top_p, min_p, the penalties and the
//             log-probabilities f32; top_k, history, prompt_length, history_row, parent,
//             tree_token and status i32; seed and position i64; token and top_tokens i32 or i64
//             (i64 where V is beyond i32).
// NaN and infinity
//             -inf is a masked token and is never drawn. A row without any other, a row with NaN
//             after step 2, and a row whose parameters are out of range (see below) get token -1
//             and NaN log-probabilities (and top_tokens -1), and the status word (RowStatus)
//             reports it; for NaN or bad parameters it holds that bit alone. +inf tokens share the
//             whole mass equally. fewer_than_k means fewer than n, where top_tokens is given.
// Randomness  u = random_uniform(seed, position), touchstone/core/random.h: Philox4x32-10 with the
//             purpose `sample` and draw 0. Batch mates never change a token, and neither does the
//             number of threads.
// Aliasing    None: an output that overlaps anything else is refused.
// Empty       No rows: nothing is written. V = 0 is refused.
// Accuracy    Values and their order are exact. Log-probabilities, and the borders between tokens
//             that u is held against, are as accurate as those of softmax_topk.
// Guarantees  As softmax_topk: the same bits for any batch and split of one device.
// Cost        One read of the logits. A row that keeps more tokens than the fast path sorts (2048
//             on the CPU; on CUDA top_k up to 1024, and 64 to 256 where the row has no top_k), or
//             whose cut is too close to call from one read, is read again and reports two_pass. On
//             the CPU such a row costs about 10 times a row without a cut: over 128256 normal
//             logits, one thread with AVX-512, 0.18 ms with top_p .9 or min_p .01 against
//             0.018 ms.
#pragma once

#include <string>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/export.h"
#include "touchstone/core/implementation_report.h"
#include "touchstone/core/tensor.h"
#include "touchstone/ops/row_status.h"

namespace touchstone::inline v0 {

struct SampleArgs {
  ConstTensorView logits{};              // [.., V]
  ConstTensorView bias{};                // [V] or [.., V], optional
  ConstTensorView token_mask{};          // [W] or [.., W], optional: packed bits as softmax_topk
  ConstTensorView temperature{};         // [..], optional: 1; finite, >= 0
  ConstTensorView top_k{};               // [..], optional: 0 = all; >= 0, more than V is V
  ConstTensorView top_p{};               // [..], optional: 1; 0 <= p <= 1, >= 1 keeps all
  ConstTensorView min_p{};               // [..], optional: 0; 0 <= p <= 1
  ConstTensorView repetition_penalty{};  // [..], optional: 1; finite, > 0
  ConstTensorView frequency_penalty{};   // [..], optional: 0; finite
  ConstTensorView presence_penalty{};    // [..], optional: 0; finite
  ConstTensorView history{};             // [.., L], optional; needed by the penalties
  ConstTensorView prompt_length{};       // [..], optional: 0; clamped to 0 .. L
  ConstTensorView history_row{};         // [..], optional: the row itself
  ConstTensorView parent{};              // [..], optional, with tree_token: a row before, or -1
  ConstTensorView tree_token{};          // [..], optional, with parent
  std::int64_t max_depth = 0;            // with parent: nodes of the longest path, 1 .. rows
  ConstTensorView seed{};                // [..]
  ConstTensorView position{};            // [..]
  TensorView token{};                    // [..]
  TensorView log_probability{};          // [..], optional
  TensorView top_tokens{};               // [.., n], optional
  TensorView top_log_probabilities{};    // [.., n], optional
  TensorView status{};                   // [..], optional: RowStatus
  std::string implementation{};          // "" = the first of explain() that accepts
};

TOUCHSTONE_API void sample(Context& context, const SampleArgs& args);

// See touchstone/core/implementation_report.h.
TOUCHSTONE_API std::vector<ImplementationReport> explain(Context& context, const SampleArgs& args);

}  // namespace touchstone::inline v0
