#include "core/copy.h"

#include <cstring>

#include "core/cuda_runtime.h"

namespace touchstone::inline v0 {

void wait_for(const StreamLocation& location) {
  if (location.device.is_cuda()) cuda::synchronize(location.device.index, location.stream);
}

void queue_copy(const StreamLocation& to, void* dst, const StreamLocation& from, const void* src,
                std::int64_t bytes) {
  if (bytes == 0) return;
  if (to.device.is_cuda() || from.device.is_cuda()) {
    void* stream = to.device.is_cuda() ? to.stream : from.stream;
    cuda::copy(to.device, dst, from.device, src, bytes, stream);
  } else {
    std::memcpy(dst, src, static_cast<std::size_t>(bytes));
  }
}

}  // namespace touchstone::inline v0
