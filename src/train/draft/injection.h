// Attention of block drafts: every block of a pass attends to the features of the tokens before
// its anchor and to its own positions, in both directions, but not to other blocks.
//
// Keys and values of all context tokens and all block positions are rows of two tables. A list of
// rows per block, gathered by embedding(), makes each block a packed sequence of its own; the
// gradient goes back by embedding_backward(), which adds a row's gradients in the order of the
// blocks. So the sparse mask needs no kernel of its own, and only the pairs that the mask allows
// are computed.
#pragma once

#include <cstdint>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/tensor.h"
#include "touchstone/io/model_description.h"
#include "touchstone/ops/attention.h"
#include "touchstone/train/parameters.h"

namespace touchstone::inline v0::train {

struct Pass;
struct DecoderLayer;

struct InjectionSizes {
  std::int64_t max_context = 0;  // tokens with features
  std::int64_t max_tokens = 0;   // of all blocks
  std::int64_t max_keys = 0;     // of all blocks together
  DType compute = DType::f32;
};

struct Injection {
  Injection() = default;
  Injection(Context& context, const io::ModelDescription& d, const InjectionSizes& sizes);

  // Of a layer: the rows [q; k; v] of the blocks or their gradients, and what attention reads and
  // writes.
  struct Rows {
    TensorView rows{};         // [N, q + k + v]
    TensorView q{};            // [N, heads, head_size], rotated
    TensorView mixed{};        // [N, heads, head_size]
    TensorView log_sum_exp{};  // [N, heads]
    AttentionOptions options{};
  };
  // Norms and rotates the keys, of context and blocks, and attends.
  void forward(const Pass& pass, const Parameters& parameters, const DecoderLayer& layer,
               const Rows& at);
  // at.rows takes the gradients of k and v; dq those of q. Adds to dfeatures.
  void backward(const Pass& pass, const Parameters& parameters, const DecoderLayer& layer,
                const Rows& at, const ConstTensorView& dmixed, const TensorView& dq);

  // Of the pass.
  ConstTensorView features{};       // [C, width]
  ConstTensorView positions{};      // [C + N]: of the context, then of the blocks
  ConstTensorView keys{};           // [M] i32: rows of the tables, block after block
  ConstTensorView query_offsets{};  // [blocks + 1]
  ConstTensorView key_offsets{};    // [blocks + 1], into `keys`
  TensorView dfeatures{};           // [C, width], f32 (f64)

 private:
  struct Layer {
    Tensor k_raw, k_rstd, k, v;  // [C + N, ..]
  };
  void gather(Context& context, const Layer& tables);

  std::vector<Layer> layers_;
  Tensor projected_;                          // [C, k + v]
  Tensor gathered_k_, gathered_v_;            // [M, ..]
  Tensor dgathered_k_, dgathered_v_;          // [M, ..]
  Tensor dk_, dv_, dk_rows_;                  // [C + N, ..]; the last as the activations
  Tensor dprojected_, dinput_, dinput_wide_;  // [C, ..]
  std::int64_t kv_width_ = 0;
};

}  // namespace touchstone::inline v0::train
