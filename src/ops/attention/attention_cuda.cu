// cached_attention on CUDA.
#include "ops/attention/attention.h"
#include "touchstone/core/error.h"

namespace touchstone::attention {
namespace {

constexpr char kRefusal[] = "there is no CUDA kernel for it yet";

}  // namespace

std::string cached_attention_cuda_refuses(const Context& /*context*/,
                                          const CachedAttention& /*p*/) {
  return kRefusal;
}
void cached_attention_cuda(Context& /*context*/, const CachedAttention& /*p*/) {
  throw Unsupported(kRefusal);
}

}  // namespace touchstone::attention
