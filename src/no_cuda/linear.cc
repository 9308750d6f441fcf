// Linear on CUDA in a build without CUDA. Never reached through the public operators: a context for a
// CUDA device cannot be made there.
#include "no_cuda/refusal.h"
#include "ops/linear/linear_problem.h"
#include "touchstone/core/error.h"

namespace touchstone::linear_layer {

using no_cuda::kRefusal;

std::string stream_refuses(const Context& /*context*/, const Forward& /*p*/) { return kRefusal; }
void forward_stream(Context& /*context*/, const Forward& /*p*/) { throw Unsupported(kRefusal); }
std::string wgmma_refuses_forward(const Context& /*context*/, const Forward& /*p*/) {
  return kRefusal;
}
std::string wgmma_refuses_backward(const Context& /*context*/, const Backward& /*p*/) {
  return kRefusal;
}
void forward_wgmma(Context& /*context*/, const Forward& /*p*/) { throw Unsupported(kRefusal); }
void backward_wgmma(Context& /*context*/, const Backward& /*p*/) { throw Unsupported(kRefusal); }
std::string cublaslt_refuses_forward(const Context& /*context*/, const Forward& /*p*/) {
  return kRefusal;
}
std::string cublaslt_refuses_backward(const Context& /*context*/, const Backward& /*p*/) {
  return kRefusal;
}
void forward_cublaslt(Context& /*context*/, const Forward& /*p*/) { throw Unsupported(kRefusal); }
void backward_cublaslt(Context& /*context*/, const Backward& /*p*/) { throw Unsupported(kRefusal); }
std::string ternary_stream_refuses(const Context& /*context*/, const Forward& /*p*/) {
  return kRefusal;
}
std::string ternary_tiles_refuses(const Context& /*context*/, const Forward& /*p*/) {
  return kRefusal;
}
std::string ternary_portable_refuses(const Context& /*context*/, const Forward& /*p*/) {
  return kRefusal;
}
void forward_ternary_stream(Context& /*context*/, const Forward& /*p*/) {
  throw Unsupported(kRefusal);
}
void forward_ternary_tiles(Context& /*context*/, const Forward& /*p*/) {
  throw Unsupported(kRefusal);
}
void forward_ternary_portable(Context& /*context*/, const Forward& /*p*/) {
  throw Unsupported(kRefusal);
}
void forward_portable(Context& /*context*/, const Forward& /*p*/) { throw Unsupported(kRefusal); }
void backward_portable(Context& /*context*/, const Backward& /*p*/) { throw Unsupported(kRefusal); }

}  // namespace touchstone::linear_layer
