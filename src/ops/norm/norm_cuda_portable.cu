// Layer norm and RMS norm for any GPU, any row length and any alignment: plain loads, rows swept
// from memory and caches, no assumption but the contract.
#include "core/context_access.h"
#include "ops/norm/norm_cuda.cuh"
#include "ops/norm/norm_tuning.h"

namespace touchstone::norm {
namespace {

constexpr int kBlock = 256;
constexpr int kBlockWarps = kBlock / 32;

// The threads that share a row: one warp, or the whole block.
struct RowThreads {
  bool warp;
  int rank;
  int count;
  float4* scratch;  // [kBlockWarps]

  __device__ RowThreads(std::int64_t cols, float4* block_scratch)
      : warp(cols <= tuning::kWarpRowColumns),
        rank(static_cast<int>(threadIdx.x) % (warp ? 32 : kBlock)),
        count(warp ? 32 : kBlock),
        scratch(block_scratch) {}

  // Every thread gets the result, bitwise the same.
  template <class Combine>
  __device__ float4 combine(float4 v, Combine op) const {
    for (int offset = 16; offset > 0; offset /= 2) {
      v = op(v, float4{__shfl_xor_sync(~0U, v.x, offset), __shfl_xor_sync(~0U, v.y, offset),
                       __shfl_xor_sync(~0U, v.z, offset), __shfl_xor_sync(~0U, v.w, offset)});
    }
    if (warp) return v;
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
    __syncthreads();
    v = scratch[0];
    for (int i = 1; i < kBlockWarps; ++i) v = op(v, scratch[i]);
    __syncthreads();  // the next combination may write the scratch
    return v;
  }

  // The sum of term(c) over the columns. A thread adds its terms in runs of kRun, so that the error
  // of long rows grows with the square root of their length at most.
  template <class Term>
  __device__ float4 sum(std::int64_t cols, Term term) const {
    constexpr int kRun = 32;
    const auto add = [](float4 a, float4 b) {
      return float4{a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
    };
    float4 total{0, 0, 0, 0};
    for (std::int64_t start = rank; start < cols; start += std::int64_t{kRun} * count) {
      const std::int64_t end = min(cols, start + std::int64_t{kRun} * count);
      float4 run{0, 0, 0, 0};
      for (std::int64_t c = start; c < end; c += count) run = add(run, term(c));
      total = add(total, run);
    }
    return combine(total, add);
  }
};

template <class Problem>
__device__ float weight_at(const Problem& p, std::int64_t c) {
  if (p.weight == nullptr) return 1;
  return cuda::load_any(p.weight, p.weight_dtype, c) + static_cast<float>(p.weight_offset);
}

struct Statistics {
  float mean, residual, rstd;
};

// A row of x, or of x + residual rounded as it will be stored.
template <class T>
struct InputRow {
  const T* x;
  const T* residual;

  __device__ float operator[](std::int64_t c) const {
    const float value = cuda::widen(x[c]);
    return residual == nullptr ? value : cuda::rounded<T>(value + cuda::widen(residual[c]));
  }
};

// Mean, its rounding residual and rstd of h * scale, where scale is a power of two.
template <bool kRms, class Row>
__device__ Statistics scaled_statistics(const Row& h, const Forward& p, const RowThreads& group,
                                        float half_scale, float rest_scale, bool& in_range) {
  const float inverse = 1.0F / static_cast<float>(p.cols);
  float mean = 0;
  if constexpr (!kRms) {
    const float4 sums = group.sum(p.cols, [&](std::int64_t c) {
      return float4{h[c] * half_scale * rest_scale, 0, 0, 0};
    });
    // Rounded here and now: merged into the differences below, it would be another mean than the
    // one that is given back.
    mean = __fmul_rn(sums.x, inverse);
  }
  const float4 sums = group.sum(p.cols, [&](std::int64_t c) {
    const float d = h[c] * half_scale * rest_scale - mean;
    return float4{d, d * d, 0, 0};
  });
  const double scale = static_cast<double>(half_scale) * static_cast<double>(rest_scale);
  const double eps = p.eps * scale * scale;
  const double residual = kRms ? 0.0 : static_cast<double>(sums.x * inverse);
  const double mean_square = static_cast<double>(sums.y * inverse);
  const double variance = mean_square - residual * residual;
  in_range = mean_square <= 0x1p120 && mean_square + eps >= kSmallMeanSquare;
  return {static_cast<float>(static_cast<double>(mean) / scale),
          static_cast<float>(residual / scale),
          static_cast<float>(scale / sqrt((variance > 0 ? variance : 0.0) + eps))};
}

template <bool kRms, class Row>
__device__ Statistics statistics(const Row& h, const Forward& p, const RowThreads& group) {
  bool in_range = true;
  Statistics s = scaled_statistics<kRms>(h, p, group, 1.0F, 1.0F, in_range);
  if (in_range) return s;
  constexpr float kMaxFloat = 3.402823466e38F;
  float largest = 0;
  bool finite = true;
  for (std::int64_t c = group.rank; c < p.cols; c += group.count) {
    const float size = fabsf(h[c]);
    finite = finite && size <= kMaxFloat;
    largest = fmaxf(largest, size);
  }
  const float4 merged =
      group.combine({largest, finite ? 0.0F : 1.0F, 0, 0}, [](float4 a, float4 b) {
        return float4{fmaxf(a.x, b.x), fmaxf(a.y, b.y), 0, 0};
      });
  const float nan = __int_as_float(0x7fffffff);
  if (merged.y != 0) return {nan, nan, nan};
  const int exponent = merged.x > 0 ? ilogbf(merged.x) : 0;
  // 2^-k does not fit in a float for the smallest values: two steps.
  return scaled_statistics<kRms>(h, p, group, ldexpf(1.0F, -exponent / 2),
                                 ldexpf(1.0F, -exponent - (-exponent / 2)), in_range);
}

template <class T, bool kRms>
__device__ void normalize_row(std::int64_t row, const Forward& p, const RowThreads& group) {
  const InputRow<T> h{static_cast<const T*>(p.x.data) + row * p.x.stride,
                      p.residual.data == nullptr
                          ? nullptr
                          : static_cast<const T*>(p.residual.data) + row * p.residual.stride};
  const Statistics s = statistics<kRms>(h, p, group);
  T* y = static_cast<T*>(p.y.data) + row * p.y.stride;
  T* sum = p.sum.data == nullptr ? nullptr : static_cast<T*>(p.sum.data) + row * p.sum.stride;
  for (std::int64_t c = group.rank; c < p.cols; c += group.count) {
    const float value = h[c];
    float normal = (kRms ? value : value - s.mean - s.residual) * s.rstd;
    if (kRms && p.round_before_weight) normal = cuda::rounded<T>(normal);
    const float weight = weight_at(p, c);
    const float bias = p.bias == nullptr ? 0.0F : cuda::load_any(p.bias, p.weight_dtype, c);
    if (sum != nullptr) sum[c] = cuda::narrow<T>(value);
    y[c] = cuda::narrow<T>(normal * weight + bias);
  }
  if (group.rank != 0) return;
  if (p.mean != nullptr) static_cast<float*>(p.mean)[row] = s.mean + s.residual;
  if (p.rstd != nullptr) static_cast<float*>(p.rstd)[row] = s.rstd;
}

template <class T, bool kRms>
__global__ void __launch_bounds__(kBlock) forward_kernel(const __grid_constant__ Forward p) {
  __shared__ float4 scratch[kBlockWarps];
  const RowThreads group(p.cols, scratch);
  const int rows_per_block = group.warp ? kBlockWarps : 1;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * rows_per_block;
  std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * rows_per_block + (group.warp ? threadIdx.x / 32 : 0);
  for (; row < p.rows; row += step) normalize_row<T, kRms>(row, p, group);
}

struct PortableBackward {
  Backward p;
  double* partial = nullptr;  // [blocks][2][cols], null without dweight and dbias
};

// What the second sweep needs of a row.
struct RowTerms {
  float mean, rstd;
  float c1, c2;
  float residual;  // of the normalized mean: xhat = (x - mean) * rstd - residual
};

template <class T, bool kRms>
__device__ RowTerms row_terms(std::int64_t row, const Backward& p, const RowThreads& group) {
  RowTerms t{};
  t.mean = kRms ? 0.0F : static_cast<const float*>(p.mean)[row];
  t.rstd = static_cast<const float*>(p.rstd)[row];
  const T* x = static_cast<const T*>(p.x.data) + row * p.x.stride;
  const T* dy = static_cast<const T*>(p.dy.data) + row * p.dy.stride;
  const float4 sums = group.sum(p.cols, [&](std::int64_t c) {
    const float xhat = (cuda::widen(x[c]) - t.mean) * t.rstd;
    const float g = cuda::widen(dy[c]) * weight_at(p, c);
    return float4{g, g * xhat, xhat, 0};
  });
  const float inverse = 1.0F / static_cast<float>(p.cols);
  t.residual = kRms ? 0.0F : sums.z * inverse;
  t.c1 = kRms ? 0.0F : sums.x * inverse;
  t.c2 = sums.y * inverse - t.residual * t.c1;
  return t;
}

// dx of column c for `count` rows from `row` on, and those rows' share of dweight and dbias.
template <class T>
__device__ void write_column(std::int64_t row, int count, std::int64_t c, const PortableBackward& a,
                             const RowTerms* terms, bool first) {
  const Backward& p = a.p;
  const float weight = weight_at(p, c);
  float sum_weight = 0;
  float sum_bias = 0;
  for (int i = 0; i < count; ++i) {
    const RowTerms& t = terms[i];
    const std::int64_t r = row + i;
    const float x = cuda::widen(static_cast<const T*>(p.x.data)[r * p.x.stride + c]);
    const float dy = cuda::widen(static_cast<const T*>(p.dy.data)[r * p.dy.stride + c]);
    const float xhat = (x - t.mean) * t.rstd - t.residual;
    float dx = t.rstd * (dy * weight - t.c1 - xhat * t.c2);
    if (p.dsum.data != nullptr) {
      dx += cuda::widen(static_cast<const T*>(p.dsum.data)[r * p.dsum.stride + c]);
    }
    static_cast<T*>(p.dx.data)[r * p.dx.stride + c] = cuda::narrow<T>(dx);
    sum_weight += dy * xhat;
    sum_bias += dy;
  }
  if (a.partial == nullptr) return;
  double* partial = a.partial + static_cast<std::int64_t>(blockIdx.x) * 2 * p.cols + c;
  partial[0] = (first ? 0.0 : partial[0]) + static_cast<double>(sum_weight);
  partial[p.cols] = (first ? 0.0 : partial[p.cols]) + static_cast<double>(sum_bias);
}

// Each block takes a run of rows, eight at a time: first every row's two sums, then one sweep over
// the columns of all eight.
template <class T, bool kRms>
__global__ void __launch_bounds__(kBlock)
    backward_kernel(const __grid_constant__ PortableBackward a) {
  __shared__ float4 scratch[kBlockWarps];
  __shared__ RowTerms terms[kBlockWarps];
  const Backward& p = a.p;
  const RowThreads group(p.cols, scratch);
  const std::int64_t blocks = gridDim.x;
  const std::int64_t block = blockIdx.x;
  const std::int64_t begin = p.rows / blocks * block + min(p.rows % blocks, block);
  const std::int64_t end = begin + p.rows / blocks + (block < p.rows % blocks ? 1 : 0);
  for (std::int64_t row = begin; row < end; row += kBlockWarps) {
    const int count = static_cast<int>(min(end - row, std::int64_t{kBlockWarps}));
    const int warp = static_cast<int>(threadIdx.x) / 32;
    for (int i = group.warp ? warp : 0; i < count; i += group.warp ? kBlockWarps : 1) {
      const RowTerms t = row_terms<T, kRms>(row + i, p, group);
      if (group.rank == 0) terms[i] = t;
    }
    __syncthreads();
    for (std::int64_t c = threadIdx.x; c < p.cols; c += kBlock) {
      write_column<T>(row, count, c, a, terms, row == begin);
    }
    __syncthreads();
  }
}

std::int64_t at_most(std::int64_t value, std::int64_t limit) {
  return value < limit ? value : limit;
}

}  // namespace

void forward_portable(Context& context, const Forward& p) {
  const cuda::DeviceScope scope(context.device().index);
  const std::int64_t rows_per_block = p.cols <= tuning::kWarpRowColumns ? kBlockWarps : 1;
  const std::int64_t wanted = (p.rows + rows_per_block - 1) / rows_per_block;
  const cuda::LaunchShape shape{.blocks = static_cast<unsigned>(at_most(wanted, 1 << 20)),
                                .threads = kBlock};
  visit_dtype_and_kind(p.dtype, p.kind, [&]<class T, bool kRms>() {
    cuda::launch(context, "norm forward_kernel", forward_kernel<T, kRms>, shape, p);
  });
}

void backward_portable(Context& context, const Backward& p) {
  const cuda::DeviceScope scope(context.device().index);
  PortableBackward args;
  args.p = p;
  const bool sums = p.dweight != nullptr || p.dbias != nullptr;
  const std::int64_t processors = cuda::device_attribute(context, cudaDevAttrMultiProcessorCount);
  const std::int64_t partial_row = 2 * p.cols * 8;
  std::int64_t blocks = at_most((p.rows + kBlockWarps - 1) / kBlockWarps, processors * 4);
  const std::int64_t limit = tuning::kPartialBytes / partial_row;
  if (sums) blocks = at_most(blocks, limit < 1 ? 1 : limit);
  if (sums)
    args.partial =
        static_cast<double*>(detail::ContextAccess::workspace(context, blocks * partial_row));
  const cuda::LaunchShape shape{.blocks = static_cast<unsigned>(blocks), .threads = kBlock};
  visit_dtype_and_kind(p.dtype, p.kind, [&]<class T, bool kRms>() {
    cuda::launch(context, "norm backward_kernel", backward_kernel<T, kRms>, shape, args);
  });
  if (!sums) return;
  launch_reduce_partials(context,
                         {.partial = args.partial,
                          .wide = true,
                          .count = blocks,
                          .cols = p.cols,
                          .dweight = p.dweight,
                          .dbias = p.dbias,
                          .dtype = p.weight_grad_dtype},
                         false);
}

}  // namespace touchstone::norm
