// The training operators on CUDA: grids that stride over the elements, sums by fixed trees.
#include <algorithm>
#include <cstdint>

#include "core/context_access.h"
#include "cuda/launch.h"
#include "cuda/vector.cuh"
#include "cuda/visit_dtype.h"
#include "touchstone/core/checked.h"
#include "train/operators/problem.h"

namespace touchstone::inline v0::train {
namespace {

constexpr unsigned kThreads = 256;

unsigned blocks_for(std::int64_t threads) {
  return static_cast<unsigned>(
      std::clamp<std::int64_t>(ceil_div(threads, std::int64_t{kThreads}), 1, 1 << 16));
}

__device__ std::int64_t first_index() { return std::int64_t{blockIdx.x} * kThreads + threadIdx.x; }
__device__ std::int64_t index_step() { return std::int64_t{gridDim.x} * kThreads; }

template <class From, class To>
__global__ void __launch_bounds__(kThreads) cast_kernel(const __grid_constant__ CastProblem p) {
  const std::int64_t all = p.rows * p.cols;
  for (std::int64_t i = first_index(); i < all; i += index_step()) {
    const std::int64_t row = i / p.cols;
    const std::int64_t col = i % p.cols;
    static_cast<To*>(p.y.data)[row * p.y.stride + col] =
        cuda::narrow<To>(cuda::widen(static_cast<const From*>(p.x.data)[row * p.x.stride + col]));
  }
}

// One matrix without gaps, in vectors of 16 bytes of the narrower type.
template <class To>
__global__ void __launch_bounds__(kThreads)
    cast_from_f32_kernel(const __grid_constant__ CastProblem p) {
  constexpr int kN = cuda::kPerVector<To>;
  const std::int64_t vectors = p.rows * p.cols / kN;
  const auto* const x = static_cast<const float*>(p.x.data);
  auto* const y = static_cast<uint4*>(p.y.data);
  for (std::int64_t i = first_index(); i < vectors; i += index_step()) {
    float values[kN];
    cuda::load_floats<float, kN>(x + i * kN, values);
    y[i] = cuda::pack_as<To>(values);
  }
}

__global__ void __launch_bounds__(kThreads) add_kernel(const __grid_constant__ AddProblem p) {
  for (std::int64_t i = first_index(); i < p.count; i += index_step()) {
    static_cast<float*>(p.y)[i] += static_cast<const float*>(p.x)[i];
  }
}

// A thread per draw: kDropoutColumns columns of a row.
template <class T>
__global__ void __launch_bounds__(kThreads)
    dropout_kernel(const __grid_constant__ DropoutProblem p) {
  const auto scale = static_cast<float>(p.scale);
  const std::int64_t all = p.rows * p.positions_per_row;
  for (std::int64_t at = first_index(); at < all; at += index_step()) {
    const std::int64_t row = at / p.positions_per_row;
    const std::int64_t first = at % p.positions_per_row * kDropoutColumns;
    const PhiloxWords words =
        random_words(p.seed, p.first_position + at, RandomPurpose::dropout, p.draw);
    const T* const x = static_cast<const T*>(p.x.data) + row * p.x.stride;
    T* const y = static_cast<T*>(p.y.data) + row * p.y.stride;
#pragma unroll
    for (int i = 0; i < kDropoutColumns; ++i) {
      const std::int64_t c = first + i;
      if (c >= p.cols) break;
      const float value = cuda::widen(x[c]);
      y[c] = cuda::narrow<T>(dropout_bits(words, c) < p.threshold ? 0.0F : __fmul_rn(value, scale));
    }
  }
}

// The sum of one value per thread, by a tree; in thread 0.
__device__ double block_sum(double value) {
  __shared__ double sums[kThreads];
  sums[threadIdx.x] = value;
  __syncthreads();
#pragma unroll
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  return sums[0];
}

struct SquareSums {
  const float* gradient;
  double* sums;  // one per chunk
  double* norm;
  std::int64_t count;
};

__global__ void __launch_bounds__(kThreads)
    square_sum_kernel(const __grid_constant__ SquareSums p) {
  const std::int64_t begin = std::int64_t{blockIdx.x} * kNormChunk;
  const std::int64_t end = begin + kNormChunk < p.count ? begin + kNormChunk : p.count;
  double sum = 0;
  for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const double value = p.gradient[i];
    sum += value * value;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) p.sums[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads) norm_kernel(const __grid_constant__ SquareSums p) {
  const std::int64_t chunks = (p.count + kNormChunk - 1) / kNormChunk;
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < chunks; i += kThreads) sum += p.sums[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *p.norm = sqrt(sum);
}

__global__ void __launch_bounds__(kThreads) adamw_kernel(const __grid_constant__ AdamWProblem p) {
  const double factor = clip_factor(p.norm, p.clip);
  if (p.norm != nullptr && factor == 0) return;
  const AdamWCoefficients<float> c = adamw_coefficients<float>(p, factor);
  auto* const weight = static_cast<float*>(p.weight);
  auto* const m = static_cast<float*>(p.m);
  auto* const v = static_cast<float*>(p.v);
  auto* const average = static_cast<float*>(p.average);
  for (std::int64_t i = first_index(); i < p.count; i += index_step()) {
    const AdamWElement<float> e =
        adamw_element<float>(c, static_cast<const float*>(p.gradient)[i], {weight[i], m[i], v[i]});
    weight[i] = e.weight;
    m[i] = e.m;
    v[i] = e.v;
    if (average != nullptr) average[i] = e.weight + c.average_decay * (average[i] - e.weight);
  }
}

bool aligned(const void* data) { return reinterpret_cast<std::uintptr_t>(data) % 16 == 0; }

}  // namespace

void cast_cuda(Context& context, const CastProblem& p) {
  const cuda::DeviceScope scope(context.device().index);
  const bool whole = p.x.stride == p.cols && p.y.stride == p.cols && p.rows * p.cols % 8 == 0 &&
                     aligned(p.x.data) && aligned(p.y.data);
  if (whole && p.from == DType::f32) {
    cuda::visit_dtype(p.to, [&]<class To>() {
      cuda::launch(
          context, "cast from_f32_kernel", cast_from_f32_kernel<To>,
          {.blocks = blocks_for(p.rows * p.cols / cuda::kPerVector<To>), .threads = kThreads}, p);
    });
    return;
  }
  cuda::visit_dtype(p.from, [&]<class From>() {
    cuda::visit_dtype(p.to, [&]<class To>() {
      cuda::launch(context, "cast kernel", cast_kernel<From, To>,
                   {.blocks = blocks_for(p.rows * p.cols), .threads = kThreads}, p);
    });
  });
}

void add_cuda(Context& context, const AddProblem& p) {
  const cuda::DeviceScope scope(context.device().index);
  cuda::launch(context, "add_to kernel", add_kernel,
               {.blocks = blocks_for(p.count), .threads = kThreads}, p);
}

void dropout_cuda(Context& context, const DropoutProblem& p) {
  const cuda::DeviceScope scope(context.device().index);
  cuda::visit_dtype(p.dtype, [&]<class T>() {
    cuda::launch(context, "dropout kernel", dropout_kernel<T>,
                 {.blocks = blocks_for(p.rows * p.positions_per_row), .threads = kThreads}, p);
  });
}

void norm_cuda(Context& context, const NormProblem& p) {
  const cuda::DeviceScope scope(context.device().index);
  const std::int64_t chunks = ceil_div(p.count, kNormChunk);
  auto* const sums = static_cast<double*>(
      detail::ContextAccess::workspace(context, std::max<std::int64_t>(chunks, 1) * 8));
  const SquareSums sum{static_cast<const float*>(p.gradient), sums, p.norm, p.count};
  if (chunks > 0) {
    cuda::launch(context, "gradient_norm square_sum_kernel", square_sum_kernel,
                 {.blocks = static_cast<unsigned>(chunks), .threads = kThreads}, sum);
  }
  cuda::launch(context, "gradient_norm kernel", norm_kernel, {.blocks = 1, .threads = kThreads},
               sum);
}

void adamw_cuda(Context& context, const AdamWProblem& p) {
  const cuda::DeviceScope scope(context.device().index);
  cuda::launch(context, "adamw kernel", adamw_kernel,
               {.blocks = blocks_for(p.count), .threads = kThreads}, p);
}

}  // namespace touchstone::inline v0::train
