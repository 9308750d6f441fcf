// Activations on CUDA in a build without CUDA. Never reached through the public operators: a
// context for a CUDA device cannot be made there.
#include "no_cuda/refusal.h"
#include "ops/activation/activation_problem.h"
#include "touchstone/core/error.h"

namespace touchstone::activation_op {

std::string vectorized_refuses(const Context& /*context*/, const Problem& /*p*/) {
  return no_cuda::kRefusal;
}
void run_vectorized(Context& /*context*/, const Problem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}
void run_portable(Context& /*context*/, const Problem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}

}  // namespace touchstone::activation_op
