// Takes the place of fill_cuda.cu in a build without CUDA.
#include "spec/operand.h"
#include "touchstone/core/error.h"

namespace touchstone::spec {

void fill_random_cuda(Tensor& /*tensor*/, float /*center*/, float /*scale*/, std::uint64_t /*seed*/,
                      void* /*stream*/) {
  throw Unsupported("spec: this build has no CUDA code");
}

}  // namespace touchstone::spec
