// Sampling of few long rows: a cluster of CTAs reads a row, and its first CTA merges and draws.
//
// The controls of a row are only known on the device. A row that needs more sorted tokens than this
// kernel orders is streamed by the same cluster, and a row that needs the slow path by the first
// CTA.
#pragma once

#include "cuda/launch.h"
#include "ops/sample/cuda/sample_streaming.cuh"
#include "ops/selection/launch_params.h"

namespace touchstone::sampling {

using ClusterStreamingSmem = selection::StreamingSmemFor<kClusterStreamingThreads>;

// State of a row in shared memory, in front of the selection's.
struct ClusterRowState : RowState {
  float scale;
  RowSeed seed;
};

// Shared memory of draws by token: the selection's, with the maxima replaced by running sums.
struct TokenDrawSmem {
  using Params = selection::StreamingParams;
  static constexpr int kThreads = selection::kClusterThreads;

  selection::ClusterSmem selection_smem;
  DrawSmem<kThreads> select;
  Mass running[selection::kMaxClusterBlocks * kThreads / 32 * selection::kMaxWarpSegments];

  __device__ const Key* sorted() const { return selection_smem.sorted; }
  __device__ const float2* sums(const Params& /*params*/) const { return selection_smem.sums; }
  __device__ Mass* candidates(const Params& /*params*/) { return running; }
};
static_assert(kStagedArgsBytes + sizeof(ClusterRowState) +
                  std::max(sizeof(TokenDrawSmem),
                           sizeof(selection::ClusterSmem) +
                               8 * selection::kClusterThreads * selection::kMaxWarpSegments) <=
              selection::kClusterSmemBytes);

// Whether max_slots sorted tokens, or the segment sums, suffice for the row. A cut without top_k
// may need more.
__device__ inline bool fits_cluster_draw(const SampleProblem& p, const RowControls& controls,
                                         int max_slots) {
  return controls.legal &&
         (controls.greedy() || controls.top_k <= max_slots || !controls.cuts(p.vocabulary));
}

// Any row, streamed by the first CTA. Rare, hence __noinline__.
template <class T>
__device__ __noinline__ void sample_row_first_block(const StreamingArgs& args, std::int64_t row,
                                                    unsigned char* memory) {
  __syncthreads();  // the shared memory is reused
  sample_row<T, true, true, ClusterStreamingSmem>(args, row, memory, args);
}

// Draws from the merged selection, in the first CTA. Returns whether the row is done.
template <class T>
__device__ bool draw_from_cluster(const ClusterArgs& args, std::int64_t row, int k,
                                  const RowSum& sum, unsigned char* memory,
                                  selection::ClusterSmem& smem, ClusterRowState& state) {
  const SampleProblem& p = args.first_block_streaming.p;
  const Key* const sorted = smem.sorted;
  const Weights weights{state.inverse, state.scale, selection::value_of(sorted[0]), sum, false};
  const auto thread = static_cast<int>(threadIdx.x);
  if (!state.controls.greedy() && !state.controls.cuts(p.vocabulary)) {
    store_top(p, row, sorted, weights, thread, selection::kClusterThreads);
    if (thread == 0) state.weights = weights;
    const StreamingArgs& smem_args = stage_args_in_smem(args.first_block_streaming, memory);
    __syncthreads();
    draw_by_token(smem_args.p, smem_args.params, row, selection::ClusterSelect<T>::Held::kTokens,
                  reinterpret_cast<TokenDrawSmem&>(smem), state);
    return true;
  }
  if (thread >= 32) {
    store_top(p, row, sorted, weights, thread - 32, selection::kClusterThreads - 32);
  } else {
    const Key drawn =
        draw_by_warp(sorted, k, k, p.vocabulary, state.controls, weights, state.uniform);
    if (thread == 0) {
      state.drawn = drawn != 0 ? 1 : 0;
      if (drawn != 0) store_drawn(p, row, drawn, weights, RowStatus::ok);
    }
  }
  __syncthreads();
  return state.drawn != 0;
}

template <class T>
__global__ void __launch_bounds__(selection::kClusterThreads, 1)
    sample_cluster_kernel(const __grid_constant__ ClusterArgs args) {
  if constexpr (cuda::kHopper) {
    extern __shared__ __align__(16) unsigned char memory[];
    unsigned char* const rest = memory + kStagedArgsBytes;
    auto& state = *reinterpret_cast<ClusterRowState*>(rest);
    auto& smem = *reinterpret_cast<selection::ClusterSmem*>(rest + sizeof(ClusterRowState));
    const SampleProblem& p = args.cluster_streaming.p;
    const std::int64_t row = blockIdx.x >> args.params.cluster_bits;
    selection::ClusterSelect<T> scan(args.params, smem, raw_values<T>(p, row).logits);
    cuda::pdl_launch_dependents();
    scan.prepare(selection::kMaxClusterK);
    cuda::pdl_wait();
    scan.start();
    const RowControls controls = row_controls(p, row);
    if (!fits_cluster_draw(p, controls, args.max_slots)) {
      if (threadIdx.x >= kClusterStreamingThreads) return;
      const StreamingArgs& smem_args = stage_args_in_smem(args.cluster_streaming, memory);
      __syncthreads();
      return sample_row<T, true, true, ClusterStreamingSmem>(args.cluster_streaming, row, rest,
                                                             smem_args);
    }
    const int k = wanted_slots(p, controls, {kWarpTokens, kWarpTokens});
    const double inverse = 1 / log_prob_temperature(controls);
    const float scale = selection::exponent_scale(inverse);
    const bool first = cuda::cluster_rank() == 0;
    // In a warp that is idle once its part of the row is read.
    constexpr int kUniformThread = selection::kClusterThreads - 9 * 32;
    if (first && threadIdx.x == kUniformThread) {
      state.controls = controls;
      state.inverse = inverse;
      state.scale = scale;
      state.seed = {p.seed[row], p.position[row]};
    }
    scan.read(scale);
    scan.choose(k, selection::kMaxClusterK);
    if (!first) return;
    if (threadIdx.x == kUniformThread) {
      state.uniform = random_uniform(state.seed.seed, state.seed.position);
    }
    __syncwarp();
    RowSum sum;
    if (scan.merge(k, sum) && draw_from_cluster<T>(args, row, k, sum, memory, smem, state)) return;
    if (threadIdx.x >= kClusterStreamingThreads) return;
    sample_row_first_block<T>(stage_args_in_smem(args.first_block_streaming, memory), row, rest);
  }
}

template <class T>
void launch_cluster(Context& context, const ClusterArgs& args) {
  const selection::ClusterParams& row_params = args.params;
  const cuda::LaunchShape grid{
      .blocks = static_cast<unsigned>(args.cluster_streaming.p.rows * row_params.cluster),
      .threads = selection::kClusterThreads,
      .cluster = static_cast<unsigned>(row_params.cluster),
      .shared_bytes =
          std::max(selection::kClusterSmemBytes,
                   kStagedArgsBytes +
                       std::max(history_offset<ClusterStreamingSmem>(args.cluster_streaming),
                                history_offset<ClusterStreamingSmem>(args.first_block_streaming))),
      .pdl = true};
  auto* kernel = sample_cluster_kernel<T>;
  cuda::allow_shared(context, kernel);
  cuda::launch(context, "sample cluster_kernel", kernel, grid, args);
}

}  // namespace touchstone::sampling
