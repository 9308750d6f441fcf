// Rope on CUDA in a build without CUDA. Never reached through the public operator: a context for a
// CUDA device cannot be made there.
#include "ops/rope/rope_problem.h"
#include "touchstone/core/error.h"

namespace touchstone::rope_op {
namespace {

constexpr char kRefusal[] = "this build has no CUDA code";

}  // namespace

std::string rope_vectorized_refuses(const Context& /*context*/, const Problem& /*p*/) {
  return kRefusal;
}
void rope_vectorized(Context& /*context*/, const Problem& /*p*/) { throw Unsupported(kRefusal); }
void rope_portable(Context& /*context*/, const Problem& /*p*/) { throw Unsupported(kRefusal); }

}  // namespace touchstone::rope_op
