// Attention on CUDA in a build without CUDA. Never reached through the public operator: a context
// for a CUDA device cannot be made there.
#include "ops/attention_paged/paged_problem.h"
#include "touchstone/core/error.h"

namespace touchstone::paged_attention {
namespace {

constexpr char kRefusal[] = "this build has no CUDA code";

}  // namespace

std::string cached_attention_tensor_core_refuses(const Context& /*context*/,
                                                 const PagedAttentionProblem& /*p*/) {
  return kRefusal;
}
std::string cached_attention_mla_refuses(const Context& /*context*/,
                                         const PagedAttentionProblem& /*p*/) {
  return kRefusal;
}
std::string cached_attention_simt_refuses(const Context& /*context*/,
                                          const PagedAttentionProblem& /*p*/) {
  return kRefusal;
}
std::string cached_attention_portable_refuses(const Context& /*context*/,
                                              const PagedAttentionProblem& /*p*/) {
  return kRefusal;
}
void cached_attention_tensor_core(Context& /*context*/, const PagedAttentionProblem& /*p*/) {
  throw Unsupported(kRefusal);
}
void cached_attention_mla(Context& /*context*/, const PagedAttentionProblem& /*p*/) {
  throw Unsupported(kRefusal);
}
void cached_attention_simt(Context& /*context*/, const PagedAttentionProblem& /*p*/) {
  throw Unsupported(kRefusal);
}
void cached_attention_portable(Context& /*context*/, const PagedAttentionProblem& /*p*/) {
  throw Unsupported(kRefusal);
}

}  // namespace touchstone::paged_attention
