// The unfused chain on CUDA: what one gets by writing each step of the formula as its own kernel.
#include <memory>

#include "bench/cuda_dtype.cuh"
#include "bench/naive/naive.h"
#include "cuda/check.h"
#include "touchstone/core/tensor.h"

namespace touchstone::bench {
namespace {

constexpr int kThreads = 256;

__device__ void store(float* to, float value) { *to = value; }
__device__ void store(__half* to, float value) { *to = __float2half_rn(value); }
__device__ void store(__nv_bfloat16* to, float value) { *to = __float2bfloat16_rn(value); }

// The sum of `value` over the block, in every thread.
__device__ float block_sum(float value) {
  __shared__ float partial[kThreads];
  partial[threadIdx.x] = value;
  __syncthreads();
  for (unsigned width = kThreads / 2; width > 0; width /= 2) {
    if (threadIdx.x < width) partial[threadIdx.x] += partial[threadIdx.x + width];
    __syncthreads();
  }
  const float sum = partial[0];
  __syncthreads();
  return sum;
}

template <class T>
__global__ void mean_kernel(const T* x, float* mean, std::int64_t cols) {
  const T* row = x + blockIdx.x * cols;
  float sum = 0;
  for (std::int64_t i = threadIdx.x; i < cols; i += kThreads) sum += load(row + i);
  sum = block_sum(sum);
  if (threadIdx.x == 0) mean[blockIdx.x] = sum / static_cast<float>(cols);
}

// A null mean is a mean of zero: the RMS norm.
template <class T>
__global__ void rstd_kernel(const T* x, const float* mean, float* rstd, std::int64_t cols) {
  const T* row = x + blockIdx.x * cols;
  const float center = mean != nullptr ? mean[blockIdx.x] : 0.0F;
  float sum = 0;
  for (std::int64_t i = threadIdx.x; i < cols; i += kThreads) {
    const float d = load(row + i) - center;
    sum += d * d;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) {
    rstd[blockIdx.x] = rsqrtf(sum / static_cast<float>(cols) + static_cast<float>(kEpsilon));
  }
}

template <class T>
__global__ void normalize_kernel(const T* x, const float* mean, const float* rstd, const T* weight,
                                 const T* bias, T* y, std::int64_t rows, std::int64_t cols) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= rows * cols) return;
  const std::int64_t row = at / cols;
  const std::int64_t column = at % cols;
  const float center = mean != nullptr ? mean[row] : 0.0F;
  const float shift = bias != nullptr ? load(bias + column) : 0.0F;
  store(y + at, (load(x + at) - center) * rstd[row] * load(weight + column) + shift);
}

template <class T>
__global__ void row_sums_kernel(const T* dy, const T* x, const float* mean, const float* rstd,
                                const T* weight, float* sum_g, float* sum_gx, std::int64_t cols) {
  const T* dy_row = dy + blockIdx.x * cols;
  const T* x_row = x + blockIdx.x * cols;
  const float center = mean != nullptr ? mean[blockIdx.x] : 0.0F;
  float g_sum = 0;
  float gx_sum = 0;
  for (std::int64_t i = threadIdx.x; i < cols; i += kThreads) {
    const float g = load(dy_row + i) * load(weight + i);
    g_sum += g;
    gx_sum += g * (load(x_row + i) - center) * rstd[blockIdx.x];
  }
  g_sum = block_sum(g_sum);
  gx_sum = block_sum(gx_sum);
  if (threadIdx.x == 0) {
    sum_g[blockIdx.x] = mean != nullptr ? g_sum / static_cast<float>(cols) : 0.0F;
    sum_gx[blockIdx.x] = gx_sum / static_cast<float>(cols);
  }
}

template <class T>
__global__ void dx_kernel(const T* dy, const T* x, const float* mean, const float* rstd,
                          const T* weight, const float* sum_g, const float* sum_gx, T* dx,
                          std::int64_t rows, std::int64_t cols) {
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= rows * cols) return;
  const std::int64_t row = at / cols;
  const float center = mean != nullptr ? mean[row] : 0.0F;
  const float xhat = (load(x + at) - center) * rstd[row];
  const float g = load(dy + at) * load(weight + at % cols);
  store(dx + at, rstd[row] * (g - sum_g[row] - xhat * sum_gx[row]));
}

template <class T>
__global__ void column_sums_kernel(const T* dy, const T* x, const float* mean, const float* rstd,
                                   T* dweight, T* dbias, std::int64_t rows, std::int64_t cols) {
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= cols) return;
  float weight_sum = 0;
  float bias_sum = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t at = row * cols + column;
    const float center = mean != nullptr ? mean[row] : 0.0F;
    weight_sum += load(dy + at) * (load(x + at) - center) * rstd[row];
    bias_sum += load(dy + at);
  }
  store(dweight + column, weight_sum);
  if (mean != nullptr) store(dbias + column, bias_sum);
}

unsigned blocks_for(std::int64_t count) {
  return static_cast<unsigned>((count + kThreads - 1) / kThreads);
}

template <class T>
class NaiveChain {
 public:
  NaiveChain(Context& context, const NormOperands& like)
      : stream_(static_cast<cudaStream_t>(context.stream())),
        device_(context.device()),
        sum_g_(Tensor::empty({like.rows}, DType::f32, device_)),
        sum_gx_(Tensor::empty({like.rows}, DType::f32, device_)) {}

  void forward(const NormOperands& p) {
    const cuda::DeviceScope scope(device_.index);
    const T* x = static_cast<const T*>(p.x);
    float* mean = p.layer ? static_cast<float*>(p.mean) : nullptr;
    float* rstd = static_cast<float*>(p.rstd);
    const auto row_blocks = static_cast<unsigned>(p.rows);
    if (p.layer) mean_kernel<<<row_blocks, kThreads, 0, stream_>>>(x, mean, p.cols);
    rstd_kernel<<<row_blocks, kThreads, 0, stream_>>>(x, mean, rstd, p.cols);
    normalize_kernel<<<blocks_for(p.rows * p.cols), kThreads, 0, stream_>>>(
        x, mean, rstd, static_cast<const T*>(p.weight),
        p.layer ? static_cast<const T*>(p.bias) : nullptr, static_cast<T*>(p.out), p.rows, p.cols);
    cuda::check_launch("naive norm forward");
  }

  void backward(const NormOperands& p) {
    const cuda::DeviceScope scope(device_.index);
    const T* dy = static_cast<const T*>(p.dy);
    const T* x = static_cast<const T*>(p.x);
    const T* weight = static_cast<const T*>(p.weight);
    const float* mean = p.layer ? static_cast<const float*>(p.mean) : nullptr;
    const float* rstd = static_cast<const float*>(p.rstd);
    float* sum_g = static_cast<float*>(sum_g_.data());
    float* sum_gx = static_cast<float*>(sum_gx_.data());
    row_sums_kernel<<<static_cast<unsigned>(p.rows), kThreads, 0, stream_>>>(
        dy, x, mean, rstd, weight, sum_g, sum_gx, p.cols);
    dx_kernel<<<blocks_for(p.rows * p.cols), kThreads, 0, stream_>>>(
        dy, x, mean, rstd, weight, sum_g, sum_gx, static_cast<T*>(p.out), p.rows, p.cols);
    column_sums_kernel<<<blocks_for(p.cols), kThreads, 0, stream_>>>(
        dy, x, mean, rstd, static_cast<T*>(p.dweight), static_cast<T*>(p.dbias), p.rows, p.cols);
    cuda::check_launch("naive norm backward");
  }

 private:
  cudaStream_t stream_;
  Device device_;
  Tensor sum_g_;
  Tensor sum_gx_;
};

}  // namespace

NaiveNorm naive_norm_cuda(Context& context, const NormOperands& like) {
  return visit_cuda_dtype(like.dtype, [&]<class T>() -> NaiveNorm {
    auto chain = std::make_shared<NaiveChain<T>>(context, like);
    if (like.backward) return [chain](const NormOperands& p) { chain->backward(p); };
    return [chain](const NormOperands& p) { chain->forward(p); };
  });
}

}  // namespace touchstone::bench
