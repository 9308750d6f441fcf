// softmax_topk on CUDA in a build without CUDA. Never reached through the public operator: a
// context for a CUDA device cannot be made there.
#include "ops/softmax_topk/topk.h"
#include "touchstone/core/error.h"

namespace touchstone::topk {
namespace {

constexpr char kRefusal[] = "this build has no CUDA code";

}  // namespace

std::string softmax_topk_cuda_refuses(const Context& /*context*/, const Topk& /*p*/) {
  return kRefusal;
}
void softmax_topk_cuda(Context& /*context*/, const Topk& /*p*/) { throw Unsupported(kRefusal); }

}  // namespace touchstone::topk
