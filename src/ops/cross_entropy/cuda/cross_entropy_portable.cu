// Cross entropy for any GPU, any strides: as many tokens at a time as the workspace holds logits of, in
// f32, through the portable products of linear. And what every implementation on CUDA needs once a
// call: the number of tokens that count, the mean.
#include <algorithm>

#include "core/context_access.h"
#include "ops/cross_entropy/cuda/cross_entropy_cuda.cuh"
#include "ops/linear/linear_problem.h"
#include "touchstone/core/checked.h"

namespace touchstone::cross_entropy_op {
namespace {

// ---- once a call -------------------------------------------------------------------------------

struct CountParams {
  Formula formula;
  Targets targets;
  std::int64_t tokens;
  float* mean_gradient;
};

__global__ __launch_bounds__(kRowThreads) void count_kernel(const __grid_constant__ CountParams p) {
  __shared__ int counts[kRowThreads];
  int count = 0;
  for (std::int64_t n = threadIdx.x; n < p.tokens; n += kRowThreads) {
    count += p.targets[n] != p.formula.ignore_index ? 1 : 0;
  }
  counts[threadIdx.x] = count;
  __syncthreads();
  if (threadIdx.x != 0) return;
  std::int64_t total = 0;
  for (const int part : counts) total += part;
  *p.mean_gradient = total > 0 ? static_cast<float>(1.0 / static_cast<double>(total)) : 0.0F;
}

struct MeanParams {
  const float* losses;
  std::int64_t tokens;
  const float* mean_gradient;
  float* mean_loss;
};

// A thread adds a run of neighbors, the first thread the runs, in f64.
__global__ __launch_bounds__(kRowThreads) void mean_kernel(const __grid_constant__ MeanParams p) {
  __shared__ double parts[kRowThreads];
  const std::int64_t run = (p.tokens + kRowThreads - 1) / kRowThreads;
  const std::int64_t first = threadIdx.x * run;
  double sum = 0;
  for (std::int64_t n = first; n < min(p.tokens, first + run); ++n) {
    sum += static_cast<double>(p.losses[n]);
  }
  parts[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  double total = 0;
  for (const double part : parts) total += part;
  *p.mean_loss = static_cast<float>(total * static_cast<double>(*p.mean_gradient));
}

// ---- rows of logits ----------------------------------------------------------------------------

struct RowParams {
  TokenOutputs outputs;
  std::int64_t vocabulary;
  float* logits;  // [rows, vocabulary], capped; becomes dl in the dtype of x
  bool backward;
  const float* dloss;
  const float* mean_gradient;
};

// Every thread ends with the statistics of the row. The same order for every V.
__device__ Stats row_stats(const float* row, std::int64_t count) {
  __shared__ Stats parts[kRowThreads / 32];
  float largest = -INFINITY;
  for (std::int64_t i = threadIdx.x; i < count; i += kRowThreads) largest = fmaxf(largest, row[i]);
  Stats mine{largest, 0, 0};
  for (std::int64_t i = threadIdx.x; i < count; i += kRowThreads) {
    const float term = largest == -INFINITY && row[i] == -INFINITY ? 0 : exp_of(row[i] - largest);
    mine.sum = __fadd_rn(mine.sum, term);
    mine.logits = __fadd_rn(mine.logits, row[i]);
  }
  for (int offset = 1; offset < 32; offset *= 2) {
    const Stats other{__shfl_xor_sync(~0U, mine.largest, offset),
                      __shfl_xor_sync(~0U, mine.sum, offset),
                      __shfl_xor_sync(~0U, mine.logits, offset)};
    mine = joined(mine, other);
  }
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = mine;
  __syncthreads();
  Stats all = parts[0];
  for (int i = 1; i < kRowThreads / 32; ++i) all = joined(all, parts[i]);
  __syncthreads();
  return all;
}

template <class T>
__global__ __launch_bounds__(kRowThreads) void row_kernel(const __grid_constant__ RowParams p) {
  const std::int64_t n = blockIdx.x;
  float* const row = p.logits + n * p.vocabulary;
  const Stats stats = row_stats(row, p.vocabulary);
  const std::int64_t target = p.outputs.targets[n];
  const bool in_range = kind_of(p.outputs.formula, target) == TargetKind::in_range;
  if (threadIdx.x == 0) put_token(p.outputs, n, stats, in_range ? row[target] : 0.0F);
  if (!p.backward) return;
  __syncthreads();
  const float lse = lse_of(stats);
  const RowGradient<float> c =
      gradient_of<float>(p.outputs.formula, lse, dloss_of(p.outputs, p.dloss, p.mean_gradient, n));
  // A narrower type overwrites what lies before it: the loads of a step come first.
  T* const to = reinterpret_cast<T*>(row);
  for (std::int64_t base = 0; base < p.vocabulary; base += kRowThreads) {
    const std::int64_t v = base + threadIdx.x;
    const float l = v < p.vocabulary ? row[v] : 0.0F;
    __syncthreads();
    if (v >= p.vocabulary) continue;
    to[v] = cuda::narrow<T>(
        in_range ? dl_of(p.outputs.formula, c, l, __fsub_rn(l, lse), v == target) : 0.0F);
  }
}

template <class F>
void visit(DType dtype, const F& f) {
  if (dtype == DType::f32) return f.template operator()<float>();
  if (dtype == DType::bf16) return f.template operator()<Bf16>();
  return f.template operator()<F16>();
}

linear_layer::Weight weight_of(const Problem& p) {
  return {.data = static_cast<const std::byte*>(p.weight.data),
          .row_bytes = p.weight.stride * size_of(p.dtype),
          .format = weight_format(p.dtype)};
}

const std::byte* row_of(const Matrix& m, std::int64_t row, DType dtype) {
  return static_cast<const std::byte*>(m.data) + row * m.stride * size_of(dtype);
}

void fill_logits(Context& context, const Problem& p, std::int64_t first, std::int64_t rows,
                 float* logits) {
  linear_layer::Forward f;
  f.dtype = p.dtype;
  f.y_dtype = DType::f32;
  f.rows = rows;
  f.in = p.dim;
  f.out = p.vocabulary;
  f.x = {row_of(p.x, first, p.dtype), p.x.stride};
  f.weight = weight_of(p);
  f.y = {logits, p.vocabulary};
  f.soft_cap = p.soft_cap;
  linear_layer::forward_portable(context, f);
}

void multiply(Context& context, const Problem& p, std::int64_t first, std::int64_t rows,
              const float* dl) {
  linear_layer::Backward b;
  b.dtype = p.dtype;
  b.rows = rows;
  b.in = p.dim;
  b.out = p.vocabulary;
  b.dy = {dl, p.vocabulary * 4 / size_of(p.dtype)};
  if (p.dx.data != nullptr) {
    b.weight = weight_of(p);
    b.dx = {const_cast<std::byte*>(row_of(p.dx, first, p.dtype)), p.dx.stride};
  }
  if (p.dweight.data != nullptr) {
    b.x = {row_of(p.x, first, p.dtype), p.x.stride};
    b.dweight = {p.dweight.data, p.dweight.stride};
    b.dweight_dtype = p.dweight_dtype;
    b.accumulate = p.accumulate || first > 0;
  }
  linear_layer::backward_portable(context, b);
}

// Tokens whose logits the workspace holds.
std::int64_t rows_that_fit(const Context& context, const Problem& p) {
  return (context.workspace_bytes() - common_bytes(p)) / (p.vocabulary * 4);
}

}  // namespace

std::int64_t common_bytes(const Problem& p) {
  const bool losses = p.mean_loss != nullptr && p.loss == nullptr;
  return 256 + (losses ? aligned(p.tokens * 4) : 0);
}

Common common_of(const Problem& p, std::byte* memory) {
  return {reinterpret_cast<float*>(memory),
          p.loss != nullptr ? static_cast<float*>(p.loss) : reinterpret_cast<float*>(memory + 256)};
}

void count_tokens(Context& context, const Problem& p, const Common& common) {
  cuda::launch(context, "cross_entropy count", count_kernel, {.threads = kRowThreads},
               CountParams{Formula(p), p.targets, p.tokens, common.mean_gradient});
}

void put_mean(Context& context, const Problem& p, const Common& common) {
  if (p.mean_loss == nullptr) return;
  cuda::launch(
      context, "cross_entropy mean", mean_kernel, {.threads = kRowThreads},
      MeanParams{common.losses, p.tokens, common.mean_gradient, static_cast<float*>(p.mean_loss)});
}

void clear_outputs(Context& context, const Problem& p) {
  const cudaStream_t stream = cuda::stream_of(context);
  if (p.mean_loss != nullptr) {
    cuda::check(cudaMemsetAsync(p.mean_loss, 0, 4, stream), "cross_entropy: cudaMemsetAsync");
  }
  if (p.dweight.data == nullptr || p.accumulate || p.dim == 0) return;
  const auto size = static_cast<std::size_t>(size_of(p.dweight_dtype));
  cuda::check(cudaMemset2DAsync(p.dweight.data, static_cast<std::size_t>(p.dweight.stride) * size,
                                0, static_cast<std::size_t>(p.dim) * size,
                                static_cast<std::size_t>(p.vocabulary), stream),
              "cross_entropy: cudaMemset2DAsync");
}

TokenOutputs outputs_of(const Problem& p, const Common& common, std::int64_t first) {
  const auto part = [&](void* data) {
    return data == nullptr ? nullptr : static_cast<float*>(data) + first;
  };
  Targets targets = p.targets;
  targets.data = static_cast<const std::byte*>(targets.data) + first * (targets.wide ? 8 : 4);
  return {.formula = Formula(p),
          .targets = targets,
          .loss = part(p.loss),
          .log_probability = part(p.log_probability),
          .lse = part(p.lse),
          .losses = p.mean_loss == nullptr || p.loss != nullptr ? nullptr : common.losses + first};
}

std::string portable_refuses(const Context& context, const Problem& p) {
  const std::int64_t needed = common_bytes(p) + checked_mul(p.vocabulary, 4);
  const auto too_small = [&](std::int64_t bytes, const char* otherwise) {
    return "a workspace of " + std::to_string(context.workspace_bytes()) + " bytes, needs " +
           std::to_string(bytes) + otherwise;
  };
  if (needed > context.workspace_bytes()) return too_small(needed, "");
  if (p.dweight.data != nullptr && p.dweight_dtype != DType::f32 &&
      p.tokens > rows_that_fit(context, p)) {
    return too_small(common_bytes(p) + checked_mul(p.tokens, p.vocabulary * 4),
                     ", or dweight in f32");
  }
  return {};
}

void run_portable(Context& context, const Problem& p) {
  const cuda::DeviceScope scope(context.device().index);
  if (p.tokens == 0) return clear_outputs(context, p);
  const std::int64_t rows = std::min(p.tokens, rows_that_fit(context, p));
  auto* const memory = static_cast<std::byte*>(
      detail::ContextAccess::workspace(context, common_bytes(p) + rows * p.vocabulary * 4));
  const Common common = common_of(p, memory);
  auto* const logits = reinterpret_cast<float*>(memory + common_bytes(p));
  count_tokens(context, p, common);
  for (std::int64_t first = 0; first < p.tokens; first += rows) {
    const std::int64_t count = std::min(rows, p.tokens - first);
    fill_logits(context, p, first, count, logits);
    const RowParams params{
        outputs_of(p, common, first),
        p.vocabulary,
        logits,
        p.backward,
        p.dloss == nullptr ? nullptr : static_cast<const float*>(p.dloss) + first,
        common.mean_gradient};
    visit(p.dtype, [&]<class T>() {
      cuda::launch(context, "cross_entropy rows", row_kernel<T>,
                   {.blocks = static_cast<unsigned>(count), .threads = kRowThreads}, params);
    });
    if (p.backward && p.dim > 0) multiply(context, p, first, count, logits);
  }
  put_mean(context, p, common);
}

}  // namespace touchstone::cross_entropy_op
