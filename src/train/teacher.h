// The logits of a teacher for the tokens of a batch.
#pragma once

#include <cstdint>

#include "touchstone/core/context.h"
#include "touchstone/core/tensor.h"
#include "touchstone/decode/scorer.h"
#include "touchstone/train/data.h"

namespace touchstone::inline v0::train {

class TeacherLogits {
 public:
  // InvalidArgument where the teacher has another vocabulary, a shorter context or another device.
  TeacherLogits(Context& context, decode::Scorer& teacher, std::int64_t vocabulary,
                std::int64_t length, std::int64_t max_tokens);

  // [N, V] f32, each document of the batch on its own; valid until the next call.
  ConstTensorView score(Context& context, const HostBatch& batch);

 private:
  decode::Scorer* teacher_;
  Tensor logits_;
};

}  // namespace touchstone::inline v0::train
