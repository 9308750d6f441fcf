// SampleProblem on CUDA in a build without CUDA. Never reached through the public operator: a context
// for a CUDA device cannot be made there.
#include "ops/sample/sample_problem.h"
#include "touchstone/core/error.h"

namespace touchstone::sampling {
namespace {

constexpr char kRefusal[] = "this build has no CUDA code";

}  // namespace

std::string sample_cuda_refuses(const Context& /*context*/, const SampleProblem& /*p*/) {
  return kRefusal;
}
void sample_cuda(Context& /*context*/, const SampleProblem& /*p*/) { throw Unsupported(kRefusal); }

}  // namespace touchstone::sampling
