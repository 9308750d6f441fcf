// The CUDA runtime behind core/cuda_runtime.h.
#include "core/cuda_runtime.h"
#include "cuda/check.h"

namespace touchstone::cuda {

bool built() { return true; }

std::vector<CudaDeviceInfo> devices() {
  std::vector<CudaDeviceInfo> result;
  int count = 0;
  // No driver and no device are ordinary answers here, not errors.
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return result;
  }
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, i), "cudaGetDeviceProperties");
    result.push_back({.name = properties.name,
                      .compute_major = properties.major,
                      .compute_minor = properties.minor,
                      .multiprocessors = properties.multiProcessorCount,
                      .memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem),
                      .l2_bytes = properties.l2CacheSize});
  }
  return result;
}

void* allocate(int device, std::int64_t bytes) {
  const DeviceScope scope(device);
  void* data = nullptr;
  const std::string what = "cudaMalloc of " + std::to_string(bytes) + " bytes";
  check(cudaMalloc(&data, static_cast<std::size_t>(bytes)), what.c_str());
  return data;
}

void release(int device, void* data) noexcept {
  int previous = 0;
  cudaGetDevice(&previous);
  cudaSetDevice(device);
  cudaFree(data);
  cudaSetDevice(previous);
}

void* allocate_page_locked(std::int64_t bytes) {
  void* data = nullptr;
  const std::string what = "cudaHostAlloc of " + std::to_string(bytes) + " bytes";
  // Portable: for every device of the process.
  check(cudaHostAlloc(&data, static_cast<std::size_t>(bytes), cudaHostAllocPortable), what.c_str());
  return data;
}

void release_page_locked(void* data) noexcept { cudaFreeHost(data); }

void copy(Device dst_device, void* dst, Device src_device, const void* src, std::int64_t bytes,
          void* stream) {
  const DeviceScope scope(dst_device.is_cuda() ? dst_device.index : src_device.index);
  check(cudaMemcpyAsync(dst, src, static_cast<std::size_t>(bytes), cudaMemcpyDefault,
                        static_cast<cudaStream_t>(stream)),
        "cudaMemcpyAsync");
}

void fill_zero(int device, void* dst, std::int64_t bytes, void* stream) {
  const DeviceScope scope(device);
  check(cudaMemsetAsync(dst, 0, static_cast<std::size_t>(bytes), static_cast<cudaStream_t>(stream)),
        "cudaMemsetAsync");
}

void synchronize(int device, void* stream) {
  const DeviceScope scope(device);
  check(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "cudaStreamSynchronize");
}

void* record_event(int device, void* stream) {
  const DeviceScope scope(device);
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  const cudaError_t recorded = cudaEventRecord(event, static_cast<cudaStream_t>(stream));
  if (recorded != cudaSuccess) cudaEventDestroy(event);
  check(recorded, "cudaEventRecord");
  return event;
}

bool event_done(int device, void* event) {
  const DeviceScope scope(device);
  const cudaError_t state = cudaEventQuery(static_cast<cudaEvent_t>(event));
  if (state != cudaErrorNotReady) check(state, "cudaEventQuery");
  return state == cudaSuccess;
}

void wait_event(int device, void* event) {
  const DeviceScope scope(device);
  check(cudaEventSynchronize(static_cast<cudaEvent_t>(event)), "cudaEventSynchronize");
}

void release_event(int /*device*/, void* event) noexcept {
  cudaEventDestroy(static_cast<cudaEvent_t>(event));
}

}  // namespace touchstone::cuda
