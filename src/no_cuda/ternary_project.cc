// ternary_project on CUDA in a build without CUDA. Never reached through the public operator: a
// context for a CUDA device cannot be made there.
#include "no_cuda/refusal.h"
#include "ops/ternary_project/ternary_project_problem.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::ternary_op {

void run_warp_per_group(Context& /*context*/, const Problem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}
void run_multi_pass(Context& /*context*/, const Problem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}

}  // namespace touchstone::inline v0::ternary_op
