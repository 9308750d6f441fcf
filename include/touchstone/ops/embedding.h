// Token embedding: rows of a table, picked by token, and the gradient of the table.
//
//   y[n] = scale * W[tokens[n]]
//
// Backward: dweight[v] = scale * (sum over the n with tokens[n] = v of dy[n]), in the order of n.
//
// Shapes      tokens: any shape, contiguous. y, dy: that shape and [.., E]; the last dimension has
//             stride 1 and the leading ones collapse to one row stride. weight, dweight: [V, E],
//             rows at any stride; of a block format u8 [V, bytes of a row].
// Dtypes      tokens i32 or i64. y f64 (CPU), f32, bf16, f16. weight: f64 with y f64 only; else
//             f32, bf16, f16, f8_e4m3, or bytes of a format of weight_format.h (on CUDA at even
//             addresses). dy like y; dweight like dy, or f32.
// Rounding    W decodes to f32 (f64 stays f64) and is multiplied in it; y is rounded once. Sums of
//             the backward are f32 (f64 for f64): one addition per occurrence, the product with the
//             scale, with accumulate one more addition, and one rounding to the dtype of dweight.
// Tokens      A token outside 0 <= token < V: on the CPU one error that names it, and nothing is
//             written. On CUDA tokens are not read by the host: its row of y becomes NaN, and it
//             adds nothing to dweight; no memory outside the table is touched.
// NaN and     Stay in their row of y. In dy they reach the row of dweight of their token.
// infinity
// Aliasing    Outputs share no memory with inputs. dweight with `accumulate` is read and written.
// Empty       No tokens: nothing is written but dweight = 0 (without accumulate). V = 0: allowed
//             only without tokens. E = 0: nothing is written.
// Guarantees  A row of y has bits that depend on its token, W and the scale alone; those of a row
//             of dweight on the tokens and rows of dy that belong to it: CPU and CUDA give the same
//             bits. No float atomics. CUDA: no allocation, no synchronization; can be captured in a
//             graph.
// Cost        Forward: reads and writes one row per token. Backward: reads dy once; writes all of
//             dweight, or with `accumulate` reads and writes the rows of tokens that occur.
#pragma once

#include <string>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/export.h"
#include "touchstone/core/implementation_report.h"
#include "touchstone/core/tensor.h"
#include "touchstone/core/weight_format.h"

namespace touchstone::inline v0 {

struct EmbeddingArgs {
  ConstTensorView tokens{};      // [..]
  ConstTensorView weight{};      // [V, E], or bytes [V, bytes of a row]
  std::string weight_format{};   // of bytes, as weight_format.h names it; "" = the dtype of weight
  TensorView y{};                // [.., E]
  double scale = 1;              // finite; sqrt(E) in Gemma
  std::string implementation{};  // "" = the first of explain() that accepts
};

struct EmbeddingBackwardArgs {
  ConstTensorView tokens{};  // [..]
  ConstTensorView dy{};      // [.., E]
  TensorView dweight{};      // [V, E]
  double scale = 1;
  // dweight, in f32 (f64 for f64), is added to; rows of tokens that do not occur stay as they are.
  bool accumulate = false;
  std::string implementation{};
};

TOUCHSTONE_API void embedding(Context& context, const EmbeddingArgs& args);
TOUCHSTONE_API void embedding_backward(Context& context, const EmbeddingBackwardArgs& args);

// See touchstone/core/implementation_report.h.
TOUCHSTONE_API std::vector<ImplementationReport> explain(Context& context,
                                                         const EmbeddingArgs& args);
TOUCHSTONE_API std::vector<ImplementationReport> explain(Context& context,
                                                         const EmbeddingBackwardArgs& args);

}  // namespace touchstone::inline v0
