// The second kernel of every CUDA backward, and the alignment that the vectorized kernels need.
#include <initializer_list>

#include "ops/norm/norm_cuda.cuh"
#include "ops/norm/norm_tuning.h"

namespace touchstone::norm {
namespace {

constexpr int kColumns = tuning::kReduceColumns;
constexpr int kLanes = tuning::kReduceLanes;
constexpr int kThreads = kColumns * kLanes;

template <class Partial>
inline constexpr int kBatch = tuning::kReduceLoads<Partial>;

// 32 registers, so that a CTA fits beside one of the backward.
template <class Partial>
__global__ void __launch_bounds__(kThreads, 8) reduce_partials_kernel(const ReducePartials f) {
  __shared__ double sums[kLanes][kColumns];
  const int lane = static_cast<int>(threadIdx.x) / kColumns;
  const std::int64_t index =
      static_cast<std::int64_t>(blockIdx.x) * kColumns + threadIdx.x % kColumns;
  if constexpr (cuda::kHopper) {
    cuda::pdl_launch_dependents();
    cuda::pdl_wait();
  }
  double sum = 0;
  if (index < 2 * f.cols) {
    const auto* column = static_cast<const Partial*>(f.partial) + index;
    const auto count = static_cast<int>(f.count);
    for (int i = lane; i < count; i += kLanes * kBatch<Partial>) {
      Partial batch[kBatch<Partial>];
#pragma unroll
      for (int k = 0; k < kBatch<Partial>; ++k) {
        const int row = i + k * kLanes;
        batch[k] = row < count ? column[row * 2 * f.cols] : Partial{0};
      }
#pragma unroll
      for (const Partial value : batch) sum += static_cast<double>(value);
    }
  }
  sums[lane][threadIdx.x % kColumns] = sum;
  __syncthreads();
  if (lane != 0 || index >= 2 * f.cols) return;
#pragma unroll
  for (int i = 1; i < kLanes; ++i) sum += sums[i][threadIdx.x];
  const bool bias = index >= f.cols;
  void* out = bias ? f.dbias : f.dweight;
  if (out != nullptr) cuda::store_any(out, f.dtype, bias ? index - f.cols : index, sum);
}

}  // namespace

void launch_reduce_partials(Context& context, const ReducePartials& params, bool pdl) {
  const cuda::LaunchShape shape{
      .blocks = static_cast<unsigned>((2 * params.cols + kColumns - 1) / kColumns),
      .threads = kThreads,
      .pdl = pdl};
  auto* kernel = params.wide ? reduce_partials_kernel<double> : reduce_partials_kernel<float>;
  prefer_shared(kernel);
  cuda::launch(context, "norm reduce_partials_kernel", kernel, shape, params);
}

std::string vectors_refuse(std::int64_t cols, DType dtype,
                           std::initializer_list<ConstRows> matrices,
                           std::initializer_list<const void*> weights) {
  const std::int64_t size = size_of(dtype);
  if (cols * size % 16 != 0) {
    return "rows of " + std::to_string(cols * size) + " bytes: expected a multiple of 16";
  }
  for (const ConstRows& rows : matrices) {
    if (rows.data == nullptr) continue;
    const auto start = reinterpret_cast<std::uintptr_t>(rows.data) % 16;
    if (start != 0 || rows.stride * size % 16 != 0) {
      return "rows that start at " + std::to_string(start) + " modulo 16 bytes, " +
             std::to_string(rows.stride * size) + " bytes apart: expected multiples of 16";
    }
  }
  for (const void* weight : weights) {
    const auto start = reinterpret_cast<std::uintptr_t>(weight) % 16;
    if (start != 0) {
      return "weight or bias that starts at " + std::to_string(start) +
             " modulo 16 bytes: expected a multiple of 16";
    }
  }
  return "";
}

}  // namespace touchstone::norm
