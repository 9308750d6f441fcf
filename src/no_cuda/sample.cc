// sample on CUDA in a build without CUDA. Never reached through the public operator: a context for
// a CUDA device cannot be created there.
#include "no_cuda/refusal.h"
#include "ops/sample/sample_problem.h"
#include "touchstone/core/error.h"

namespace touchstone::sampling {

std::string sample_subwarp_refuses(const Context& /*context*/, const SampleProblem& /*p*/) {
  return no_cuda::kRefusal;
}
std::string sample_cluster_refuses(const Context& /*context*/, const SampleProblem& /*p*/) {
  return no_cuda::kRefusal;
}
std::string sample_two_phase_refuses(const Context& /*context*/, const SampleProblem& /*p*/) {
  return no_cuda::kRefusal;
}
std::string sample_streaming_block_refuses(const Context& /*context*/, const SampleProblem& /*p*/) {
  return no_cuda::kRefusal;
}
std::string sample_streaming_refuses(const Context& /*context*/, const SampleProblem& /*p*/) {
  return no_cuda::kRefusal;
}
void sample_subwarp(Context& /*context*/, const SampleProblem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}
void sample_cluster(Context& /*context*/, const SampleProblem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}
void sample_two_phase(Context& /*context*/, const SampleProblem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}
void sample_streaming_block(Context& /*context*/, const SampleProblem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}
void sample_streaming(Context& /*context*/, const SampleProblem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}

}  // namespace touchstone::sampling
