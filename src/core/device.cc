#include "touchstone/core/device.h"

#include "core/cuda_runtime.h"

namespace touchstone::inline v0 {

std::string name_of(Device device) {
  return device.is_cuda() ? "cuda:" + std::to_string(device.index) : "cpu";
}

bool built_with_cuda() { return cuda::built(); }

std::vector<CudaDeviceInfo> cuda_devices() { return cuda::devices(); }

}  // namespace touchstone::inline v0
