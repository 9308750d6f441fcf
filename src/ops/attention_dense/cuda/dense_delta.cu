// What the backward of dense attention needs of every row before it starts.
#include "ops/attention_common/refusal.h"
#include "ops/attention_dense/cuda/dense_cuda.cuh"

namespace touchstone::dense_attention {
namespace {

constexpr int kThreads = 256;
constexpr int kRows = kThreads / 32;  // of a block

struct DeltaWork {
  BackwardProblem p;
  float* delta = nullptr;
};

// A warp per row; every lane sums its columns in order, then halves are added.
template <class T>
__global__ void __launch_bounds__(kThreads) delta_kernel(const __grid_constant__ DeltaWork work) {
  const BackwardProblem& p = work.p;
  const std::int64_t row = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (row >= row_count(p)) return;
  const std::int64_t batch = row / (p.query_heads * p.queries);
  const int head = static_cast<int>(row / p.queries % p.query_heads);
  const T* const output = token_of<T>(p.output, batch, head, row % p.queries);
  const T* const doutput = token_of<T>(p.doutput, batch, head, row % p.queries);
  float sum = 0;
  for (std::int64_t c = lane; c < p.v_dim; c += 32) {
    sum = fmaf(cuda::widen(output[c]), cuda::widen(doutput[c]), sum);
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  if (lane != 0) return;
  if (p.dlog_sum_exp.data != nullptr) {
    sum -= *token_of<float>(p.dlog_sum_exp, batch, head, row % p.queries);
  }
  work.delta[row] = sum;
}

// A block per head; every thread sums its rows in order, then halves are added.
__global__ void __launch_bounds__(kThreads) sink_kernel(const __grid_constant__ DeltaWork work) {
  const BackwardProblem& p = work.p;
  const int head = static_cast<int>(blockIdx.x);
  const float sink = static_cast<const float*>(p.sink_logits)[head];
  const std::int64_t batches = p.query_offsets != nullptr ? 1 : p.batch;
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < batches * p.queries; i += kThreads) {
    const std::int64_t row = (i / p.queries * p.query_heads + head) * p.queries + i % p.queries;
    const float log_sum_exp = *token_of<float>(p.log_sum_exp, i / p.queries, head, i % p.queries);
    if (log_sum_exp > -INFINITY) {
      sum -= static_cast<double>(expf(sink - log_sum_exp)) * work.delta[row];
    }
  }
  __shared__ double sums[kThreads];
  sums[threadIdx.x] = sum;
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
  }
  if (threadIdx.x == 0) static_cast<float*>(p.dsink_logits)[head] = static_cast<float>(sums[0]);
}

}  // namespace

std::string attention_delta_refuses(const BackwardProblem& p) {
  constexpr std::int64_t kMaxRows = cuda::kMaxBlocks * kRows;
  const std::int64_t rows = row_count(p);
  return rows <= kMaxRows ? "" : attention_common::above("rows", rows, kMaxRows);
}

void attention_delta(Context& context, const BackwardProblem& p, float* delta) {
  const std::int64_t rows = row_count(p);
  if (rows == 0) return;
  const cuda::LaunchShape shape{.blocks = static_cast<unsigned>((rows + kRows - 1) / kRows),
                                .threads = kThreads};
  const auto kernel = p.dtype == DType::f32    ? delta_kernel<float>
                      : p.dtype == DType::bf16 ? delta_kernel<Bf16>
                                               : delta_kernel<F16>;
  cuda::launch(context, "attention delta", kernel, shape, DeltaWork{p, delta});
}

void attention_sink_gradient(Context& context, const BackwardProblem& p, const float* delta) {
  if (p.dsink_logits == nullptr) return;
  const cuda::LaunchShape shape{.blocks = static_cast<unsigned>(p.query_heads),
                                .threads = kThreads};
  cuda::launch(context, "attention sink gradient", sink_kernel, shape,
               DeltaWork{p, const_cast<float*>(delta)});
}

}  // namespace touchstone::dense_attention
