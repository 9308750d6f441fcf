// Attention on CUDA in a build without CUDA. Never reached through the public operator: a context
// for a CUDA device cannot be made there.
#include "ops/attention_paged/paged_problem.h"
#include "touchstone/core/error.h"

namespace touchstone::attend {
namespace {

constexpr char kRefusal[] = "this build has no CUDA code";

}  // namespace

std::string cached_attention_tensor_refuses(const Context& /*context*/,
                                            const CachedAttention& /*p*/) {
  return kRefusal;
}
std::string cached_attention_latent_refuses(const Context& /*context*/,
                                            const CachedAttention& /*p*/) {
  return kRefusal;
}
std::string cached_attention_registers_refuses(const Context& /*context*/,
                                               const CachedAttention& /*p*/) {
  return kRefusal;
}
std::string cached_attention_portable_refuses(const Context& /*context*/,
                                              const CachedAttention& /*p*/) {
  return kRefusal;
}
void cached_attention_tensor(Context& /*context*/, const CachedAttention& /*p*/) {
  throw Unsupported(kRefusal);
}
void cached_attention_latent(Context& /*context*/, const CachedAttention& /*p*/) {
  throw Unsupported(kRefusal);
}
void cached_attention_registers(Context& /*context*/, const CachedAttention& /*p*/) {
  throw Unsupported(kRefusal);
}
void cached_attention_portable(Context& /*context*/, const CachedAttention& /*p*/) {
  throw Unsupported(kRefusal);
}

}  // namespace touchstone::attend
