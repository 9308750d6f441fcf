// The last step of every CUDA backward, and what the vector kernels ask before they accept.
#include <initializer_list>

#include "ops/norm/norm_cuda.cuh"

namespace touchstone::norm {
namespace {

constexpr int kColumns = 16;  // a block's: few, so that there is one for every multiprocessor
constexpr int kLanes = 16;    // partial rows read side by side
constexpr int kThreads = kColumns * kLanes;

// Loads in flight per thread: with 132 partial rows of f32 all of them.
template <class Partial>
inline constexpr int kBatch = sizeof(Partial) == 4 ? 10 : 5;

// 32 registers, so that it fits beside the backward.
template <class Partial>
__global__ void __launch_bounds__(kThreads, 8) finish_kernel(const Finish f) {
  __shared__ double sums[kLanes][kColumns];
  const int lane = static_cast<int>(threadIdx.x) / kColumns;
  const std::int64_t index =
      static_cast<std::int64_t>(blockIdx.x) * kColumns + threadIdx.x % kColumns;
  if constexpr (cuda::kHopper) {
    cuda::let_next_grid_start();
    cuda::wait_for_previous_grids();
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

void launch_finish(Context& context, const Finish& params, bool overlap_previous) {
  const cuda::LaunchShape shape{
      .blocks = static_cast<unsigned>((2 * params.cols + kColumns - 1) / kColumns),
      .threads = kThreads,
      .overlap_previous = overlap_previous};
  auto* kernel = params.wide ? finish_kernel<double> : finish_kernel<float>;
  prefer_shared(kernel);
  cuda::launch(context, "norm finish_kernel", kernel, shape, params);
}

std::string vectors_refuse(std::int64_t cols, DType dtype,
                           std::initializer_list<ConstRows> matrices,
                           std::initializer_list<const void*> weights) {
  const std::int64_t size = size_of(dtype);
  if (cols * size % 16 != 0) return "rows are not a multiple of 16 bytes";
  for (const ConstRows& rows : matrices) {
    if (rows.data == nullptr) continue;
    if (reinterpret_cast<std::uintptr_t>(rows.data) % 16 != 0 || rows.stride * size % 16 != 0) {
      return "rows do not start on 16-byte boundaries";
    }
  }
  for (const void* weight : weights) {
    if (reinterpret_cast<std::uintptr_t>(weight) % 16 != 0) {
      return "weights do not start on a 16-byte boundary";
    }
  }
  return "";
}

}  // namespace touchstone::norm
