// A decoder-only transformer in training: loss and gradients of a batch, over the operators of this
// library. Layers are structs that list their parameters; buffers for activations are allocated
// once.
//
// Models      Of io::ModelDescription those with RMS norms, rotary positions (every scaling),
//             grouped heads, norms of q and k, windows, gated MLPs, tied or untied heads: the llama
//             and qwen3 families. Any other feature of a description (biases, post norms, soft
//             caps, learned positions, parallel blocks) is refused by name (Unsupported).
// Dtypes      Activations in `compute`: f32, bf16, f16; f64 on the CPU. Losses and sums of
//             gradients are f32 (f64).
// Dropout     Of the embedding and of the outputs of attention and MLP
//             (`dropout`), and of the weights of attention (`attention_dropout`). Masks are those
//             of DropoutMask and AttentionDropout, draw = 4 * layer + {0: embedding, 1: attention,
//             2: MLP, 3: weights}.
// Documents   With Batch::offsets attention stays within each document and the caller lets
//             positions begin anew; without, every row is a text of its own.
// Checkpoints `checkpoint_activations` keeps one [tokens, width] tensor per layer and computes the
//             rest again in the backward pass: the same bits for a third more work.
// Guarantees  Loss and gradients have the same bits from run to run, with and without activation
//             checkpoints. No synchronization: work is queued on the context's stream.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/export.h"
#include "touchstone/core/tensor.h"
#include "touchstone/io/model_description.h"
#include "touchstone/train/parameters.h"

namespace touchstone::inline v0::train {

struct DecoderOptions {
  DType compute = DType::f32;
  std::int64_t max_tokens = 0;  // of a batch
  std::int64_t max_length = 0;  // of a row
  bool average = false;         // keep an average of the weights
  bool checkpoint_activations = false;
  double dropout = 0;
  double attention_dropout = 0;
  Projection projection{};  // of matrices, embedding and head included; none: rounded to `compute`
};

// Tensors on the device of the model. N tokens are `rows` rows of N / rows.
struct Batch {
  ConstTensorView tokens{};     // [N] i32
  ConstTensorView targets{};    // [N] i32 or i64; -100: no loss
  ConstTensorView positions{};  // [N] i64
  ConstTensorView offsets{};    // [documents + 1] i64, ascending from 0 to N, optional
  std::int64_t rows = 1;
};

// The random numbers of the masks of a step; probabilities are in the options.
struct StepSeed {
  std::int64_t seed = 0;
  std::int64_t step = 0;
  std::int64_t first_token = 0;  // of this batch among the tokens of the step
};

// A teacher's logits for the tokens of a batch: loss = (1 - weight) * cross entropy + weight *
// temperature^2 * KL(softmax(teacher / temperature) || softmax(student / temperature)).
struct Distillation {
  ConstTensorView logits{};  // [N, V] f32
  double weight = 0.5;       // 0 <= weight <= 1
  double temperature = 1;    // > 0
};

class TOUCHSTONE_API Decoder {
 public:
  // InvalidArgument, Unsupported, OutOfMemory. The parameters are allocated, not initialized.
  Decoder(Context& context, const io::ModelDescription& description, const DecoderOptions& options);
  ~Decoder();
  Decoder(Decoder&&) noexcept;
  Decoder& operator=(Decoder&&) noexcept;

  Parameters& parameters();
  const Parameters& parameters() const;
  const io::ModelDescription& description() const;

  // mean_loss [1] f32 (f64): over the tokens with a target. Without dropout. `losses` [N]: that of
  // every token, optional.
  void loss(Context& context, const Batch& batch, const TensorView& mean_loss,
            const TensorView& losses = {});
  // Forward and backward: adds to the gradients. The gradient of a token's loss is dloss [N] f32
  // (f64).
  void backward(Context& context, const Batch& batch, const StepSeed& seed,
                const ConstTensorView& dloss, const TensorView& mean_loss,
                const std::optional<Distillation>& teacher = {});
  // The logits [count, V] f32 of tokens [first, first + count) of the last batch.
  void logits(Context& context, std::int64_t first, std::int64_t count, const TensorView& out);

  // Floating point operations of forward and backward per token, in rows of `length` tokens.
  double flops_per_token(std::int64_t length) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace touchstone::inline v0::train
