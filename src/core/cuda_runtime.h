// What the rest of the library needs of the CUDA runtime, with no CUDA type in sight. Implemented
// by src/cuda/cuda_runtime.cu, or by src/no_cuda/cuda_runtime.cc in a CPU-only build.
#pragma once

#include <cstdint>
#include <vector>

#include "touchstone/core/device.h"

namespace touchstone::cuda {

bool built();
std::vector<CudaDeviceInfo> devices();

// OutOfMemory when the device has no room, DeviceError for anything else.
void* allocate(int device, std::int64_t bytes);
void release(int device, void* data) noexcept;

// Host memory that no device has to copy through a buffer of the driver.
void* allocate_page_locked(std::int64_t bytes);
void release_page_locked(void* data) noexcept;

// Queued on `stream`. A copy that touches pageable host memory has read it before returning.
void copy(Device dst_device, void* dst, Device src_device, const void* src, std::int64_t bytes,
          void* stream);
void fill_zero(int device, void* dst, std::int64_t bytes, void* stream);

void synchronize(int device, void* stream);
void synchronize_device(int device);

}  // namespace touchstone::cuda
