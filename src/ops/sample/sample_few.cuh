// Sampling of few long rows: one read of each by a cluster of blocks, as softmax_topk does. The
// first block, which merges what the others have found, draws.
//
// What a row asks for is known when the kernel runs. A row that wants more tokens in order than
// this puts there is scanned by the same cluster, and one that turns out to be unusual by the first
// block alone.
#pragma once

#include "cuda/launch.h"
#include "ops/sample/sample_scan.cuh"
#include "ops/softmax_topk/topk_few_launch.h"

namespace touchstone::sampling {

using FewScanMemory = topk::ScanMemory<kLargeScanThreads>;

// Of a row, until its end: in shared memory before that of the read.
struct FewState : RowState {
  float scale;
  RowSeed seed;
};

// What draws by token need: the read's memory, and more in the place of the maxima.
struct TokenDrawMemory {
  using Shape = topk::ScanShape;
  static constexpr int kThreads = topk::kFewThreads;

  topk::FewMemory few;
  DrawShared<kThreads> select;
  Mass running[topk::kMaxFewCluster * kThreads / 32 * topk::kMaxFewSegments];

  __device__ const Key* sorted() const { return few.sorted; }
  __device__ const float2* sums(const Shape& /*shape*/) const { return few.sums; }
  __device__ Mass* candidates(const Shape& /*shape*/) { return running; }
};
static_assert(kNearbyBytes + sizeof(FewState) +
                  std::max(sizeof(TokenDrawMemory),
                           sizeof(topk::FewMemory) +
                               8 * topk::kFewThreads * topk::kMaxFewSegments) <=
              topk::kFewSharedBytes);

// Whether what the row asks for can be had from so many tokens in order, or from its sums. A row
// that cuts without saying how many tokens it wants may well need more.
__device__ inline bool asks_for_few(const Sampling& p, const RowControls& controls, int most) {
  return controls.legal &&
         (controls.greedy() || controls.top_k <= most || !controls.cuts(p.vocabulary));
}

// A row by a scan of the first block, whatever is in it. Out of line: few rows come here.
template <class T>
__device__ __noinline__ void scan_alone(const ScanParams& params, std::int64_t row,
                                        unsigned char* memory) {
  __syncthreads();  // everyone is done with the memory
  sample_row<T, true, true, 2, FewScanMemory>(params, row, memory, params);
}

// Draws from what the read has left, by the first block. Whether the row is done.
template <class T>
__device__ bool draw_few(const FewParams& params, std::int64_t row, int k, const RowSum& sum,
                         unsigned char* memory, topk::FewMemory& shared, FewState& state) {
  const Sampling& p = params.alone.p;
  const Key* const sorted = shared.sorted;
  const Weights weights{state.inverse, state.scale, topk::value_of(sorted[0]), sum, false};
  const auto thread = static_cast<int>(threadIdx.x);
  if (!state.controls.greedy() && !state.controls.cuts(p.vocabulary)) {
    put_top(p, row, sorted, weights, thread, topk::kFewThreads);
    if (thread == 0) state.weights = weights;
    const ScanParams& nearby = bring_nearby(params.alone, memory);
    __syncthreads();
    draw_by_token(nearby.p, nearby.shape, row, topk::FewRows<T>::Held::kTokens,
                  reinterpret_cast<TokenDrawMemory&>(shared), state);
    return true;
  }
  if (thread >= 32) {
    put_top(p, row, sorted, weights, thread - 32, topk::kFewThreads - 32);
  } else {
    const Key drawn =
        draw_quickly(sorted, k, k, p.vocabulary, state.controls, weights, state.uniform);
    if (thread == 0) {
      state.settled = drawn != 0 ? 1 : 0;
      if (drawn != 0) put_drawn(p, row, drawn, weights, 0);
    }
  }
  __syncthreads();
  return state.settled != 0;
}

template <class T>
__global__ void __launch_bounds__(topk::kFewThreads, 1)
    sample_few_kernel(const __grid_constant__ FewParams params) {
  if constexpr (cuda::kHopper) {
    extern __shared__ __align__(16) unsigned char memory[];
    unsigned char* const rest = memory + kNearbyBytes;
    auto& state = *reinterpret_cast<FewState*>(rest);
    auto& shared = *reinterpret_cast<topk::FewMemory*>(rest + sizeof(FewState));
    const Sampling& p = params.together.p;
    const std::int64_t row = blockIdx.x >> params.shape.cluster_bits;
    topk::FewRows<T> scan(params.shape, shared, plain_values<T>(p, row).logits);
    cuda::pdl_launch_dependents();
    scan.prepare(topk::kMaxFewPlaces);
    cuda::pdl_wait();
    scan.start();
    const RowControls controls = row_controls(p, row);
    if (!asks_for_few(p, controls, params.most)) {
      if (threadIdx.x >= kLargeScanThreads) return;
      const ScanParams& nearby = bring_nearby(params.together, memory);
      __syncthreads();
      return sample_row<T, true, true, 2, FewScanMemory>(params.together, row, rest, nearby);
    }
    const int k = wanted_places(p, controls, {kWarpTokens, kWarpTokens});
    const double inverse = 1 / weighing_temperature(controls);
    const float scale = topk::exponent_scale(inverse);
    const bool first = cuda::cluster_rank() == 0;
    // Of a warp that has little to do when its part of the row has been read.
    constexpr int kUniformThread = topk::kFewThreads - 9 * 32;
    if (first && threadIdx.x == kUniformThread) {
      state.controls = controls;
      state.inverse = inverse;
      state.scale = scale;
      state.seed = {p.seed[row], p.position[row]};
    }
    scan.read(scale);
    scan.choose(k, topk::kMaxFewPlaces);
    if (!first) return;
    if (threadIdx.x == kUniformThread) {
      state.uniform = uniform_of(state.seed.seed, state.seed.position);
    }
    __syncwarp();
    RowSum sum;
    if (scan.merge(k, sum) && draw_few<T>(params, row, k, sum, memory, shared, state)) return;
    if (threadIdx.x >= kLargeScanThreads) return;
    scan_alone<T>(bring_nearby(params.alone, memory), row, rest);
  }
}

template <class T>
void sample_few(Context& context, const FewParams& params) {
  const topk::FewShape& row_shape = params.shape;
  const cuda::LaunchShape shape{
      .blocks = static_cast<unsigned>(params.together.p.rows * row_shape.cluster),
      .threads = topk::kFewThreads,
      .cluster = static_cast<unsigned>(row_shape.cluster),
      .shared_bytes =
          std::max(topk::kFewSharedBytes,
                   kNearbyBytes + std::max(history_offset<FewScanMemory>(params.together),
                                           history_offset<FewScanMemory>(params.alone))),
      .pdl = true};
  auto* kernel = sample_few_kernel<T>;
  cuda::allow_shared(context, kernel);
  cuda::launch(context, "sample sample_few_kernel", kernel, shape, params);
}

}  // namespace touchstone::sampling
