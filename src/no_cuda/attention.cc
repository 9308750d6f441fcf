// Dense attention on CUDA in a build without CUDA. Never reached through the public operators: a
// context for a CUDA device cannot be made there.
#include "ops/attention_dense/dense_problem.h"
#include "touchstone/core/error.h"

namespace touchstone::attend {
namespace {

constexpr char kRefusal[] = "this build has no CUDA code";

}  // namespace

std::string attention_wgmma_refuses(const Context& /*context*/, const AttentionForward& /*p*/) {
  return kRefusal;
}
std::string attention_mma_refuses(const Context& /*context*/, const AttentionForward& /*p*/) {
  return kRefusal;
}
std::string attention_portable_refuses(const Context& /*context*/, const AttentionForward& /*p*/) {
  return kRefusal;
}
std::string attention_backward_wgmma_refuses(const Context& /*context*/,
                                             const AttentionBackward& /*p*/) {
  return kRefusal;
}
std::string attention_backward_mma_refuses(const Context& /*context*/,
                                           const AttentionBackward& /*p*/) {
  return kRefusal;
}
std::string attention_backward_portable_refuses(const Context& /*context*/,
                                                const AttentionBackward& /*p*/) {
  return kRefusal;
}
void attention_wgmma(Context& /*context*/, const AttentionForward& /*p*/) {
  throw Unsupported(kRefusal);
}
void attention_mma(Context& /*context*/, const AttentionForward& /*p*/) {
  throw Unsupported(kRefusal);
}
void attention_portable(Context& /*context*/, const AttentionForward& /*p*/) {
  throw Unsupported(kRefusal);
}
void attention_backward_wgmma(Context& /*context*/, const AttentionBackward& /*p*/) {
  throw Unsupported(kRefusal);
}
void attention_backward_mma(Context& /*context*/, const AttentionBackward& /*p*/) {
  throw Unsupported(kRefusal);
}
void attention_backward_portable(Context& /*context*/, const AttentionBackward& /*p*/) {
  throw Unsupported(kRefusal);
}

}  // namespace touchstone::attend
