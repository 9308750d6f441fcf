// The loss of distillation over the output head: logits are computed for a chunk of tokens at a
// time.
#pragma once

#include <cstdint>

#include "touchstone/core/context.h"
#include "touchstone/core/tensor.h"
#include "touchstone/train/decoder.h"

namespace touchstone::inline v0::train {

// Grown when they are first used.
struct DistillBuffers {
  Tensor logits, dlogits, losses;
};

struct DistillArgs {
  ConstTensorView hidden{};   // [N, E]
  ConstTensorView weight{};   // [V, E] as hidden
  ConstTensorView targets{};  // [N] i32 or i64
  ConstTensorView dloss{};    // [N] f32, f64 where hidden is
  TensorView dhidden{};       // [N, E]
  TensorView dweight{};       // [V, E], added to
  TensorView mean_loss{};     // [1], as dloss
  Distillation teacher{};
};

// InvalidArgument for logits of another shape, a weight outside 0..1, a temperature not above 0.
void distill_backward(Context& context, DistillBuffers& buffers, const DistillArgs& args);

}  // namespace touchstone::inline v0::train
