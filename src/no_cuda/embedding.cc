// Embedding on CUDA in a build without CUDA. Never reached through the public operator: a context
// for a CUDA device cannot be made there.
#include "no_cuda/refusal.h"
#include "ops/embedding/embedding_problem.h"
#include "touchstone/core/error.h"

namespace touchstone::embedding_op {

std::string forward_vectorized_refuses(const Context& /*context*/, const Forward& /*p*/) {
  return no_cuda::kRefusal;
}
void forward_vectorized(Context& /*context*/, const Forward& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}
void forward_portable(Context& /*context*/, const Forward& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}
std::string backward_sorted_refuses(const Context& /*context*/, const Backward& /*p*/) {
  return no_cuda::kRefusal;
}
void backward_sorted(Context& /*context*/, const Backward& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}
void backward_portable(Context& /*context*/, const Backward& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}

}  // namespace touchstone::embedding_op
