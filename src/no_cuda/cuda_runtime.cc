// The CUDA runtime of a build without CUDA: no devices, and a clear refusal for anything else.
#include "core/cuda_runtime.h"

#include "no_cuda/refusal.h"

namespace touchstone::cuda {

using no_cuda::refuse_runtime;

bool built() { return false; }

std::vector<CudaDeviceInfo> devices() { return {}; }

void* allocate(int /*device*/, std::int64_t /*bytes*/) { refuse_runtime(); }

void release(int /*device*/, void* /*data*/) noexcept {}

void* allocate_page_locked(std::int64_t /*bytes*/) { refuse_runtime(); }

void release_page_locked(void* /*data*/) noexcept {}

void copy(Device /*dst_device*/, void* /*dst*/, Device /*src_device*/, const void* /*src*/,
          std::int64_t /*bytes*/, void* /*stream*/) {
  refuse_runtime();
}

void fill_zero(int /*device*/, void* /*dst*/, std::int64_t /*bytes*/, void* /*stream*/) {
  refuse_runtime();
}

void synchronize(int /*device*/, void* /*stream*/) { refuse_runtime(); }

void* record_event(int /*device*/, void* /*stream*/) { refuse_runtime(); }
bool event_done(int /*device*/, void* /*event*/) { refuse_runtime(); }
void wait_event(int /*device*/, void* /*event*/) { refuse_runtime(); }
void release_event(int /*device*/, void* /*event*/) noexcept {}

}  // namespace touchstone::cuda
