// softmax_topk on CUDA in a build without CUDA. Never reached through the public operator: a
// context for a CUDA device cannot be made there.
#include "ops/softmax_topk/topk.h"
#include "touchstone/core/error.h"

namespace touchstone::topk {
namespace {

constexpr char kRefusal[] = "this build has no CUDA code";

}  // namespace

std::string softmax_topk_short_refuses(const Context& /*context*/, const Topk& /*p*/) {
  return kRefusal;
}
std::string softmax_topk_few_refuses(const Context& /*context*/, const Topk& /*p*/) {
  return kRefusal;
}
std::string softmax_topk_maxima_refuses(const Context& /*context*/, const Topk& /*p*/) {
  return kRefusal;
}
std::string softmax_topk_scan_refuses(const Context& /*context*/, const Topk& /*p*/) {
  return kRefusal;
}
std::string softmax_topk_sort_refuses(const Context& /*context*/, const Topk& /*p*/) {
  return kRefusal;
}
void softmax_topk_short(Context& /*context*/, const Topk& /*p*/) { throw Unsupported(kRefusal); }
void softmax_topk_few(Context& /*context*/, const Topk& /*p*/) { throw Unsupported(kRefusal); }
void softmax_topk_maxima(Context& /*context*/, const Topk& /*p*/) { throw Unsupported(kRefusal); }
void softmax_topk_scan(Context& /*context*/, const Topk& /*p*/) { throw Unsupported(kRefusal); }
void softmax_topk_sort(Context& /*context*/, const Topk& /*p*/) { throw Unsupported(kRefusal); }

}  // namespace touchstone::topk
