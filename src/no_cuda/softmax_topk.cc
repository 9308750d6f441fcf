// softmax_topk on CUDA in a build without CUDA. Never reached through the public operator: a
// context for a CUDA device cannot be created there.
#include "no_cuda/refusal.h"
#include "ops/softmax_topk/softmax_topk_problem.h"
#include "touchstone/core/error.h"

namespace touchstone::topk {

std::string softmax_topk_subwarp_smem_refuses(const Context& /*context*/,
                                              const SoftmaxTopkProblem& /*p*/) {
  return no_cuda::kRefusal;
}
std::string softmax_topk_subwarp_refuses(const Context& /*context*/,
                                         const SoftmaxTopkProblem& /*p*/) {
  return no_cuda::kRefusal;
}
std::string softmax_topk_cluster_refuses(const Context& /*context*/,
                                         const SoftmaxTopkProblem& /*p*/) {
  return no_cuda::kRefusal;
}
std::string softmax_topk_two_phase_refuses(const Context& /*context*/,
                                           const SoftmaxTopkProblem& /*p*/) {
  return no_cuda::kRefusal;
}
std::string softmax_topk_streaming_packed_refuses(const Context& /*context*/,
                                                  const SoftmaxTopkProblem& /*p*/) {
  return no_cuda::kRefusal;
}
std::string softmax_topk_streaming_refuses(const Context& /*context*/,
                                           const SoftmaxTopkProblem& /*p*/) {
  return no_cuda::kRefusal;
}
std::string softmax_topk_sort_refuses(const Context& /*context*/, const SoftmaxTopkProblem& /*p*/) {
  return no_cuda::kRefusal;
}
void softmax_topk_subwarp_smem(Context& /*context*/, const SoftmaxTopkProblem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}
void softmax_topk_subwarp(Context& /*context*/, const SoftmaxTopkProblem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}
void softmax_topk_cluster(Context& /*context*/, const SoftmaxTopkProblem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}
void softmax_topk_two_phase(Context& /*context*/, const SoftmaxTopkProblem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}
void softmax_topk_streaming_packed(Context& /*context*/, const SoftmaxTopkProblem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}
void softmax_topk_streaming(Context& /*context*/, const SoftmaxTopkProblem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}
void softmax_topk_sort(Context& /*context*/, const SoftmaxTopkProblem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}

}  // namespace touchstone::topk
