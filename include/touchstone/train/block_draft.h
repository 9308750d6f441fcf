// A block draft (DFlash, io/block_draft.h) in training: loss and gradients of blocks of masked
// positions, over the operators of this library and the layers of Decoder.
//
//   features   rms_norm(fc [hidden states of chosen target layers]) of the context tokens; every
//              layer projects them to keys and values
//   blocks     embedding of [token, mask, mask, ..]: position j of a block predicts the token at
//              its own position; the first, which is known, predicts nothing
//   attention  a block attends to the context before its first token and to itself in both
//              directions, not to other blocks (BlockBatch::keys lists the keys of each)
//   loss       sum over the masked positions of weight * cross entropy by the target's head
//
// Embedding and head are the target's and stay as they are. Dtypes, dropout, activation checkpoints
// and guarantees are those of Decoder. In f32 the logits have the bits of model::DFlash with the
// same weights, where the target's head is f32 too.
#pragma once

#include <cstdint>
#include <memory>

#include "touchstone/core/context.h"
#include "touchstone/core/export.h"
#include "touchstone/core/tensor.h"
#include "touchstone/io/block_draft.h"
#include "touchstone/train/decoder.h"
#include "touchstone/train/parameters.h"

namespace touchstone::inline v0::train {

// The tensors that a draft shares with its target, on the device, in `compute`. Outlives the draft.
struct SharedTables {
  ConstTensorView embedding{};  // [V, width]
  ConstTensorView head{};       // [V, width]
  double embedding_scale = 1;
  double soft_cap = 0;  // of the logits; 0 = none
};

struct BlockDraftOptions {
  DType compute = DType::f32;
  std::int64_t max_context = 0;  // tokens with features in a pass
  std::int64_t max_blocks = 0;   // of a pass
  std::int64_t max_keys = 0;     // that the blocks of a pass attend to, counted once per block
  bool average = false;
  bool checkpoint_activations = false;
  double dropout = 0;
  double attention_dropout = 0;
};

// Tensors on the device. C context tokens, N = blocks * block positions, M keys.
struct BlockBatch {
  ConstTensorView hidden{};     // [C, taps * width] in `compute`: states of the target
  ConstTensorView tokens{};     // [N] i32: the first of a block, then mask tokens
  ConstTensorView targets{};    // [N] i32; -100: no loss
  ConstTensorView weights{};    // [N] f32 (f64): of the losses; 0 where there is no target
  ConstTensorView positions{};  // [C + N] i64: of the context, then of the blocks
  ConstTensorView keys{};       // [M] i32: rows below C are context, C + n is position n of a block
  ConstTensorView query_offsets{};  // [blocks + 1] i64, from 0 to N
  ConstTensorView key_offsets{};    // [blocks + 1] i64, from 0 to M
};

class TOUCHSTONE_API BlockDraft {
 public:
  // InvalidArgument, OutOfMemory. The parameters are allocated, not initialized.
  BlockDraft(Context& context, const io::BlockDraftDescription& description,
             const SharedTables& tables, const BlockDraftOptions& options);
  ~BlockDraft();
  BlockDraft(BlockDraft&&) noexcept;
  BlockDraft& operator=(BlockDraft&&) noexcept;

  // Named as those of a decoder, and fc.weight, hidden_norm.weight.
  Parameters& parameters();
  const Parameters& parameters() const;
  const io::BlockDraftDescription& description() const;

  // loss [1] f32 (f64): the weighted sum. Without dropout.
  void loss(Context& context, const BlockBatch& batch, const TensorView& loss);
  // Forward and backward: adds to the gradients.
  void backward(Context& context, const BlockBatch& batch, const StepSeed& seed,
                const TensorView& loss);
  // The logits [count, V] f32 (f64) of positions [first, first + count) of the last batch.
  void logits(Context& context, std::int64_t first, std::int64_t count, const TensorView& out);

  // Floating point operations of forward and backward per position of a block that attends to
  // `keys`, in a pass with `context_tokens` per block.
  double flops_per_position(double context_tokens, double keys) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace touchstone::inline v0::train
