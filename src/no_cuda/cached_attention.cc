// Attention on CUDA in a build without CUDA. Never reached through the public operator: a context
// for a CUDA device cannot be made there.
#include "no_cuda/refusal.h"
#include "ops/attention_paged/paged_problem.h"
#include "touchstone/core/error.h"

namespace touchstone::paged_attention {

std::string cached_attention_wgmma_prefill_refuses(const Context& /*context*/,
                                                   const PagedAttentionProblem& /*p*/) {
  return no_cuda::kRefusal;
}
std::string cached_attention_tensor_core_cta_refuses(const Context& /*context*/,
                                                     const PagedAttentionProblem& /*p*/) {
  return no_cuda::kRefusal;
}
std::string cached_attention_tensor_core_refuses(const Context& /*context*/,
                                                 const PagedAttentionProblem& /*p*/) {
  return no_cuda::kRefusal;
}
std::string cached_attention_mla_refuses(const Context& /*context*/,
                                         const PagedAttentionProblem& /*p*/) {
  return no_cuda::kRefusal;
}
std::string cached_attention_simt_refuses(const Context& /*context*/,
                                          const PagedAttentionProblem& /*p*/) {
  return no_cuda::kRefusal;
}
std::string cached_attention_portable_refuses(const Context& /*context*/,
                                              const PagedAttentionProblem& /*p*/) {
  return no_cuda::kRefusal;
}
void cached_attention_wgmma_prefill(Context& /*context*/, const PagedAttentionProblem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}
void cached_attention_tensor_core_cta(Context& /*context*/, const PagedAttentionProblem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}
void cached_attention_tensor_core(Context& /*context*/, const PagedAttentionProblem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}
void cached_attention_mla(Context& /*context*/, const PagedAttentionProblem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}
void cached_attention_simt(Context& /*context*/, const PagedAttentionProblem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}
void cached_attention_portable(Context& /*context*/, const PagedAttentionProblem& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}

}  // namespace touchstone::paged_attention
