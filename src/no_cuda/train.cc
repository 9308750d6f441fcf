// Training operators on CUDA in a build without CUDA. Never reached: a context for a CUDA device
// cannot be made there.
#include "no_cuda/refusal.h"
#include "touchstone/core/error.h"
#include "train/operators/distill_problem.h"
#include "train/operators/problem.h"

namespace touchstone::inline v0::train {

void cast_cuda(Context& /*context*/, const CastProblem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}
void add_cuda(Context& /*context*/, const AddProblem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}
void dropout_cuda(Context& /*context*/, const DropoutProblem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}
void norm_cuda(Context& /*context*/, const NormProblem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}
void adamw_cuda(Context& /*context*/, const AdamWProblem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}

void distill_rows_cuda(Context& /*context*/, const DistillProblem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}
void mean_loss_cuda(Context& /*context*/, const MeanProblem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}

}  // namespace touchstone::inline v0::train
