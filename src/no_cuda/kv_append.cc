// kv_append on CUDA, in a build without CUDA. Never reached through the public functions: a context
// for a CUDA device cannot be made there.
#include "no_cuda/refusal.h"
#include "ops/kv_append/kv_append_problem.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::cache {

std::string append_copy_refuses(const Context& /*context*/, const KvAppendProblem& /*p*/) {
  return no_cuda::kRefusal;
}
void append_copy(Context& /*context*/, const KvAppendProblem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}
std::string append_paired_refuses(const Context& /*context*/, const KvAppendProblem& /*p*/) {
  return no_cuda::kRefusal;
}
void append_paired(Context& /*context*/, const KvAppendProblem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}
std::string append_registers_refuses(const Context& /*context*/, const KvAppendProblem& /*p*/) {
  return no_cuda::kRefusal;
}
void append_registers(Context& /*context*/, const KvAppendProblem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}
std::string append_portable_refuses(const Context& /*context*/, const KvAppendProblem& /*p*/) {
  return no_cuda::kRefusal;
}
void append_portable(Context& /*context*/, const KvAppendProblem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}

}  // namespace touchstone::inline v0::cache
