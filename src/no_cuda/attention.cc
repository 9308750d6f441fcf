// Dense attention on CUDA in a build without CUDA. Never reached through the public operators: a
// context for a CUDA device cannot be made there.
#include "no_cuda/refusal.h"
#include "ops/attention_dense/dense_problem.h"
#include "touchstone/core/error.h"

namespace touchstone::dense_attention {

std::string attention_wgmma_refuses(const Context& /*context*/, const ForwardProblem& /*p*/) {
  return no_cuda::kRefusal;
}
std::string attention_mma_refuses(const Context& /*context*/, const ForwardProblem& /*p*/) {
  return no_cuda::kRefusal;
}
std::string attention_portable_refuses(const Context& /*context*/, const ForwardProblem& /*p*/) {
  return no_cuda::kRefusal;
}
std::string attention_backward_wgmma_refuses(const Context& /*context*/,
                                             const BackwardProblem& /*p*/) {
  return no_cuda::kRefusal;
}
std::string attention_backward_mma_refuses(const Context& /*context*/,
                                           const BackwardProblem& /*p*/) {
  return no_cuda::kRefusal;
}
std::string attention_backward_portable_refuses(const Context& /*context*/,
                                                const BackwardProblem& /*p*/) {
  return no_cuda::kRefusal;
}
void attention_wgmma(Context& /*context*/, const ForwardProblem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}
void attention_mma(Context& /*context*/, const ForwardProblem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}
void attention_portable(Context& /*context*/, const ForwardProblem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}
void attention_backward_wgmma(Context& /*context*/, const BackwardProblem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}
void attention_backward_mma(Context& /*context*/, const BackwardProblem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}
void attention_backward_portable(Context& /*context*/, const BackwardProblem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}

}  // namespace touchstone::dense_attention
