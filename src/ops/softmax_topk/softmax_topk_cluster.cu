// softmax_topk of few long rows: one launch, a cluster of CTAs per row.
#include <string>

#include "cuda/launch.h"
#include "ops/selection/launch_params.h"
#include "ops/softmax_topk/softmax_topk_epilogue.cuh"

namespace touchstone::topk {
namespace {

using selection::kClusterThreads;
using selection::kSlowPathThreads;

struct ClusterArgs {
  SoftmaxTopkProblem p;
  selection::ClusterParams params;
  TwoPhaseParams slow_path;
};

template <class T>
__global__ void __launch_bounds__(kClusterThreads, 1)
    softmax_topk_cluster_kernel(const __grid_constant__ ClusterArgs args) {
  if constexpr (cuda::kHopper) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto& smem = *reinterpret_cast<selection::ClusterSmem*>(memory);
    const SoftmaxTopkProblem& p = args.p;
    const auto k = static_cast<int>(p.k);
    const std::int64_t row = blockIdx.x >> args.params.cluster_bits;
    selection::ClusterSelect<T> select(args.params, smem,
                                       static_cast<const T*>(p.logits) + row * p.logits_stride);
    cuda::pdl_launch_dependents();
    select.prepare(k);
    cuda::pdl_wait();
    select.start();
    const bool first = cuda::cluster_rank() == 0;
    const double inverse = inverse_temperature(p, row);
    if (inverse != 0) {
      const float scale = exponent_scale(inverse);
      select.read(scale);
      select.choose(k, k);
      RowSum sum;
      if (first && select.merge(k, sum)) {
        const auto thread = static_cast<int>(threadIdx.x);
        const Weights weights{inverse, scale, value_of(smem.sorted[0]), sum, false};
        if (thread < (k + 31) / 32 * 32) {
          store_row_by_warps(p, row, smem.sorted, weights, thread, kClusterThreads);
        }
        return;
      }
    }
    if (!first || threadIdx.x >= kSlowPathThreads) return;
    process_row_slow_path<T, true, kSlowPathThreads>(
        p, args.slow_path, row, *reinterpret_cast<TwoPhaseSmem<kSlowPathThreads>*>(memory));
  }
}

template <class T>
void launch(Context& context, const SoftmaxTopkProblem& p) {
  const int cluster = selection::cluster_blocks(context, p.dtype, p.rows, p.vocabulary);
  const ClusterArgs args{
      p, selection::cluster_params(p.dtype, p.rows, p.vocabulary, cluster),
      selection::two_phase_params<kSlowPathThreads>(p.dtype, p.vocabulary, static_cast<int>(p.k))};
  const cuda::LaunchShape grid{.blocks = static_cast<unsigned>(p.rows * cluster),
                               .threads = kClusterThreads,
                               .cluster = static_cast<unsigned>(cluster),
                               .shared_bytes = selection::kClusterSmemBytes,
                               .pdl = true};
  auto* kernel = softmax_topk_cluster_kernel<T>;
  cuda::allow_shared(context, kernel);
  cuda::launch(context, "softmax_topk cluster_kernel", kernel, grid, args);
}

}  // namespace

std::string softmax_topk_cluster_refuses(const Context& context, const SoftmaxTopkProblem& p) {
  if (p.k > selection::kMaxClusterK) {
    return selection::too_large("k", p.k, selection::kMaxClusterK);
  }
  return selection::cluster_refusal(context, p, selection::kMinClusterSegments);
}

void softmax_topk_cluster(Context& context, const SoftmaxTopkProblem& p) {
  const cuda::DeviceScope scope(context.device().index);
  cuda::visit_dtype(p.dtype, [&]<class T>() { launch<T>(context, p); });
}

}  // namespace touchstone::topk
