// Layer norm and RMS norm on CUDA in a build without CUDA. Never reached through the public
// operators: a context for a CUDA device cannot be made there.
#include "ops/norm/norm.h"

#include "no_cuda/refusal.h"
#include "touchstone/core/error.h"

namespace touchstone::norm {

std::string persistent_refuses_forward(const Context& /*context*/, const Forward& /*p*/) {
  return no_cuda::kRefusal;
}
std::string registers_refuses_forward(const Context& /*context*/, const Forward& /*p*/) {
  return no_cuda::kRefusal;
}
std::string persistent_refuses_backward(const Context& /*context*/, const Backward& /*p*/) {
  return no_cuda::kRefusal;
}
void forward_persistent(Context& /*context*/, const Forward& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}
void forward_registers(Context& /*context*/, const Forward& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}
void backward_persistent(Context& /*context*/, const Backward& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}
void forward_portable(Context& /*context*/, const Forward& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}
void backward_portable(Context& /*context*/, const Backward& /*p*/) {
  throw Unsupported(no_cuda::kRefusal);
}

}  // namespace touchstone::norm
