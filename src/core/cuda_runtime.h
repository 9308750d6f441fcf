// The functions of the CUDA runtime that the library uses, without CUDA types. Implemented
// by src/cuda/cuda_runtime.cu, or by src/no_cuda/cuda_runtime.cc in a CPU-only build.
#pragma once

#include <cstdint>
#include <vector>

#include "touchstone/core/device.h"

namespace touchstone::cuda {

bool built();
std::vector<CudaDeviceInfo> devices();

// OutOfMemory when the device has too little memory, DeviceError for any other error.
void* allocate(int device, std::int64_t bytes);
void release(int device, void* data) noexcept;

// Page-locked (pinned) host memory: the driver copies it without a staging buffer.
void* allocate_page_locked(std::int64_t bytes);
void release_page_locked(void* data) noexcept;

// Queued on `stream`. A copy that touches pageable host memory has read it before returning.
void copy(Device dst_device, void* dst, Device src_device, const void* src, std::int64_t bytes,
          void* stream);
void fill_zero(int device, void* dst, std::int64_t bytes, void* stream);

void synchronize(int device, void* stream);

// A point in the work of a stream.
void* record_event(int device, void* stream);
bool event_done(int device, void* event);
void wait_event(int device, void* event);
void release_event(int device, void* event) noexcept;

}  // namespace touchstone::cuda
