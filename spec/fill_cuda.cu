#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <string>

#include "cuda/check.h"
#include "spec/operand.h"
#include "touchstone/core/checked.h"

namespace touchstone::spec {
namespace {

constexpr int kThreads = 256;

__device__ std::uint64_t mix(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

__device__ void store(float* to, float value) { *to = value; }
__device__ void store(__half* to, float value) { *to = __float2half_rn(value); }
__device__ void store(__nv_bfloat16* to, float value) { *to = __float2bfloat16_rn(value); }

// Near-normal: the sum of four 16-bit uniforms.
template <class T>
__global__ void fill_random_kernel(T* values, std::int64_t count, float center, float scale,
                                   std::uint64_t seed) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += step) {
    const std::uint64_t bits = mix(seed ^ static_cast<std::uint64_t>(i));
    const float sum = static_cast<float>((bits & 0xffff) + ((bits >> 16) & 0xffff) +
                                         ((bits >> 32) & 0xffff) + (bits >> 48));
    store(values + i, center + scale * (sum / 65536.0F - 2.0F) * 1.7320508F);
  }
}

}  // namespace

void fill_random_cuda(Tensor& tensor, float center, float scale, std::uint64_t seed, void* stream) {
  const cuda::DeviceScope scope(tensor.device().index);
  const std::int64_t count = tensor.elements();
  if (count == 0) return;
  const auto blocks = static_cast<unsigned>(
      std::min<std::int64_t>(4096, ceil_div(count, std::int64_t{4} * kThreads)));
  const auto fill = [&]<class T>(T* values) {
    fill_random_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
        values, count, center, scale, seed);
    cuda::check_launch("fill_random_kernel");
  };
  switch (tensor.dtype()) {
    case DType::f32:
      return fill(static_cast<float*>(tensor.data()));
    case DType::f16:
      return fill(static_cast<__half*>(tensor.data()));
    case DType::bf16:
      return fill(static_cast<__nv_bfloat16*>(tensor.data()));
    default:
      throw Unsupported("spec: dtype: expected f32, bf16 or f16 on CUDA, got " +
                        std::string(name_of(tensor.dtype())));
  }
}

}  // namespace touchstone::spec
