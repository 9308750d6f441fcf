#include "core/copy.h"

#include <cstring>

#include "core/cuda_runtime.h"

namespace touchstone {

void wait_for(Device device) {
  if (device.is_cuda()) cuda::synchronize_device(device.index);
}

void queue_copy(Device to, void* dst, Device from, const void* src, std::int64_t bytes) {
  if (bytes == 0) return;
  if (to.is_cuda() || from.is_cuda()) {
    cuda::copy(to, dst, from, src, bytes, nullptr);
  } else {
    std::memcpy(dst, src, static_cast<std::size_t>(bytes));
  }
}

}  // namespace touchstone
