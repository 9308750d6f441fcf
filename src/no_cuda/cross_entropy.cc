// Cross entropy on CUDA in a build without CUDA. Never reached through the public operator: a
// context for a CUDA device cannot be made there.
#include "no_cuda/refusal.h"
#include "ops/cross_entropy/cross_entropy_problem.h"
#include "touchstone/core/error.h"

namespace touchstone::cross_entropy_op {

std::string wgmma_refuses(const Context& /*context*/, const Problem& /*p*/) {
  return no_cuda::kRefusal;
}
void run_wgmma(Context& /*context*/, const Problem& /*p*/) { throw Unsupported(no_cuda::kRefusal); }
std::string portable_refuses(const Context& /*context*/, const Problem& /*p*/) {
  return no_cuda::kRefusal;
}
void run_portable(Context& /*context*/, const Problem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}

}  // namespace touchstone::cross_entropy_op
