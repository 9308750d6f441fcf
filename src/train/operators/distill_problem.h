// The rows of distillation: of one token the loss and the gradient of its logits.
//
//   loss = (1 - w) (lse(l) - l[target]) + w T^2 sum of q (log q - log p)
//   dl   = g ((1 - w) (softmax(l) - [target]) + w T (p - q))      p = softmax(l / T), q = softmax(t
//        / T)
//
// for logits l, the teacher's t, the gradient g of the loss; all 0 for a target to ignore.
#pragma once

#include <cstdint>

#include "touchstone/core/context.h"
#include "touchstone/core/dtype.h"

namespace touchstone::inline v0::train {

struct DistillProblem {
  std::int64_t rows = 0;
  std::int64_t vocabulary = 0;
  const void* logits = nullptr;    // f32, f64 where compute is
  const float* teacher = nullptr;  // [rows, vocabulary]
  const void* targets = nullptr;
  const void* dloss = nullptr;  // as logits
  void* losses = nullptr;       // as logits
  void* dlogits = nullptr;      // compute
  DType compute{};
  bool wide_targets = false;  // i64
  std::int64_t ignore = 0;
  double weight = 0;
  double temperature = 1;
};

// The mean of the losses of tokens with a target; 0 without any.
struct MeanProblem {
  std::int64_t count = 0;
  const void* losses = nullptr;
  const void* targets = nullptr;
  void* mean = nullptr;
  DType dtype{};  // f32, f64
  bool wide_targets = false;
  std::int64_t ignore = 0;
};

void distill_rows_cpu(Context& context, const DistillProblem& p);
void mean_loss_cpu(Context& context, const MeanProblem& p);
void distill_rows_cuda(Context& context, const DistillProblem& p);
void mean_loss_cuda(Context& context, const MeanProblem& p);

}  // namespace touchstone::inline v0::train
