// rope_append on CUDA in a build without CUDA. Never reached through the public operator: a context
// for a CUDA device cannot be made there.
#include "no_cuda/refusal.h"
#include "ops/rope_append/rope_append_problem.h"
#include "touchstone/core/error.h"

namespace touchstone::rope_append_op {
std::string rope_append_warps_refuses(const Context& /*context*/, const Problem& /*p*/) {
  return no_cuda::kRefusal;
}
void rope_append_warps(Context& /*context*/, const Problem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}

}  // namespace touchstone::rope_append_op
