// The loss of a language model over its output head, and the gradients of its inputs. The logits
// [N, V] are computed in tiles and never stored as a whole.
//
//   l = x W^T                                       [N, V]
//   l = soft_cap * tanh(l / soft_cap)               where soft_cap > 0
//   lse = log(sum over v of exp(l[v]))
//   log_probability = l[target] - lse
//   loss = (1 - s) (lse - l[target]) + s (lse - mean over v of l[v]) + z_loss * lse^2
//   mean_loss = sum of loss / number of tokens that are not ignored; 0 where all are
//
// with s = label_smoothing. Backward, for the gradient g of each token's loss (dloss, or that of
// mean_loss where dloss is absent):
//   dl[v] = g ((1 + 2 z_loss lse) exp(l[v] - lse) - (1 - s) [v = target] - s / V)
//   dl[v] = dl[v] (1 - (l[v] / soft_cap)^2)         where soft_cap > 0
//   dx = dl W          dweight = dl^T x
//
// cross_entropy_backward needs nothing of the forward, and gives its outputs too: a training step
// calls it alone, and has the logits computed once.
//
// Shapes      x, dx: [.., E]; targets, loss, log_probability, lse, dloss: [..], the same leading
//             shape; mean_loss: [1]. The last dimension of x and dx has stride 1, the leading ones
//             collapse to one row stride; targets and what is per token are contiguous. weight,
//             dweight: [V, E], rows at any stride.
// Dtypes      x f64 (CPU), f32, bf16, f16; weight and dx like x; dweight like x, or f32. targets
//             i32 or i64. Losses, lse and dloss f32 (f64 for f64).
// Rounding    Logits, losses and sums in f32 (f64 for f64). On CUDA with bf16 and f16, and on CPUs
//             with AMX with bf16: products on tensor cores or tiles; dl is rounded to the dtype of
//             x before it is multiplied (f16 loses what is below 6e-8: scale dloss, as training in
//             f16 does). dweight is rounded once, on CUDA once for every chunk of tokens (2048 at
//             V = 128256) where it is of 16 bits.
// Ignored     Tokens whose target is ignore_index: loss and log_probability are 0, lse is what it
//             is, and dl is 0: so is their row of dx, and they enter dweight with a factor of 0.
// Targets     Another target outside 0 <= target < V: on the CPU one error that names it, and
//             nothing is written. On CUDA targets are not read by the host: loss and
//             log_probability of the token become NaN (and mean_loss), and dl is 0.
// NaN and     As the formula says: a token whose logits hold NaN or +infinity, or nothing but
// infinity    -infinity, has lse, loss, log_probability and dx NaN. Other tokens are unaffected;
//             what is not finite in a row of x or in its dl reaches dweight.
// Aliasing    Outputs share no memory with inputs or each other. dweight with `accumulate` is read
//             and written.
// Empty       No tokens: nothing is written but mean_loss = 0 and dweight = 0 (without accumulate).
//             V = 0 is refused. E = 0: the logits are 0.
// Guarantees  What a token's loss, log_probability, lse and dx are, depends on that token and the
//             parameters alone: not on the tokens beside it, on threads or on the workspace (dx
//             with dloss given). dweight and mean_loss are the same from run to run, tokens are
//             added in their order. No float atomics. CUDA: no allocation, no synchronization; can
//             be captured in a graph; the backward needs scratch, explain() says how much.
// Cost        Flops: 2 N V E forward, three times that backward. Bytes: x and W; in the backward
//             dx, dweight and a buffer of 16-bit logits for a chunk of tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/export.h"
#include "touchstone/core/implementation_report.h"
#include "touchstone/core/tensor.h"

namespace touchstone::inline v0 {

struct CrossEntropyArgs {
  ConstTensorView x{};           // [.., E]
  ConstTensorView weight{};      // [V, E]
  ConstTensorView targets{};     // [..]
  TensorView loss{};             // [..], optional, as are the next three
  TensorView log_probability{};  // [..]
  TensorView lse{};              // [..]
  TensorView mean_loss{};        // [1]
  double label_smoothing = 0;    // 0 <= s <= 1
  double z_loss = 0;             // finite, >= 0
  double soft_cap = 0;           // finite, >= 0; 0 = none
  std::int64_t ignore_index = -100;
  std::string implementation{};  // "" = the first of explain() that accepts
};

struct CrossEntropyBackwardArgs {
  ConstTensorView x{};        // [.., E]
  ConstTensorView weight{};   // [V, E]
  ConstTensorView targets{};  // [..]
  ConstTensorView dloss{};    // [..]; absent: the gradient of mean_loss
  TensorView dx{};            // [.., E], optional
  TensorView dweight{};       // [V, E], optional
  // The outputs of the forward, each optional.
  TensorView loss{};
  TensorView log_probability{};
  TensorView lse{};
  TensorView mean_loss{};
  double label_smoothing = 0;
  double z_loss = 0;
  double soft_cap = 0;
  std::int64_t ignore_index = -100;
  bool accumulate = false;  // dweight, in f32 (f64 for f64), is added to what is there
  std::string implementation{};
};

TOUCHSTONE_API void cross_entropy(Context& context, const CrossEntropyArgs& args);
TOUCHSTONE_API void cross_entropy_backward(Context& context, const CrossEntropyBackwardArgs& args);

// See touchstone/core/implementation_report.h.
TOUCHSTONE_API std::vector<ImplementationReport> explain(Context& context,
                                                         const CrossEntropyArgs& args);
TOUCHSTONE_API std::vector<ImplementationReport> explain(Context& context,
                                                         const CrossEntropyBackwardArgs& args);

}  // namespace touchstone::inline v0
