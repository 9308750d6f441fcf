// softmax_topk of many rows by two-phase selection: one launch, one CTA per row.
#include <string>

#include "cuda/launch.h"
#include "ops/selection/launch_params.h"
#include "ops/softmax_topk/softmax_topk_epilogue.cuh"

namespace touchstone::topk {
namespace {

struct TwoPhaseArgs {
  SoftmaxTopkProblem p;
  TwoPhaseParams params;
};

template <class T, bool kAligned16, class Layout>
__global__ void __launch_bounds__(Layout::kThreads, Layout::kBlocksPerSm)
    softmax_topk_two_phase_kernel(const __grid_constant__ TwoPhaseArgs args) {
  extern __shared__ __align__(16) unsigned char memory[];
  constexpr int kThreads = Layout::kThreads;
  auto& smem = *reinterpret_cast<TwoPhaseSmem<kThreads>*>(memory);
  const SoftmaxTopkProblem& p = args.p;
  if constexpr (cuda::kHopper) {
    cuda::pdl_launch_dependents();
    cuda::pdl_wait();
  }
  const std::int64_t row = blockIdx.x;
  selection::TwoPhaseSelect<T, kAligned16, kThreads, Layout::kPrefetchDepth> select(
      args.params, smem, static_cast<const T*>(p.logits) + row * p.logits_stride);
  select.start();
  const double inverse = inverse_temperature(p, row);
  RowSum sum;
  if (inverse != 0) {
    const auto k = static_cast<int>(p.k);
    select.read(exponent_scale(inverse));
    if (select.select(k, sum)) {
      const auto thread = static_cast<int>(threadIdx.x);
      const Key* const sorted = smem.sorted();
      const Weights weights{inverse, exponent_scale(inverse), value_of(sorted[0]), sum, false};
      if (thread < (k + 31) / 32 * 32) {
        store_row_by_warps(p, row, sorted, weights, thread, kThreads);
      }
      return;
    }
  }
  process_row_slow_path<T, kAligned16, kThreads>(p, args.params, row, smem);
}

template <class T, bool kAligned16, class Layout>
void launch(Context& context, const SoftmaxTopkProblem& p) {
  const TwoPhaseArgs args{p, selection::two_phase_params<Layout::kThreads>(p.dtype, p.vocabulary,
                                                                           static_cast<int>(p.k))};
  const cuda::LaunchShape grid{.blocks = static_cast<unsigned>(p.rows),
                               .threads = Layout::kThreads,
                               .shared_bytes = TwoPhaseSmem<Layout::kThreads>::bytes(args.params),
                               .pdl = cuda::is_hopper(context)};
  auto* kernel = softmax_topk_two_phase_kernel<T, kAligned16, Layout>;
  cuda::allow_shared(context, kernel);
  cuda::launch(context, "softmax_topk two_phase_kernel", kernel, grid, args);
}

}  // namespace

std::string softmax_topk_two_phase_refuses(const Context& context, const SoftmaxTopkProblem& p) {
  if (p.k > selection::kMaxTwoPhaseK) {
    return selection::too_large("k", p.k, selection::kMaxTwoPhaseK);
  }
  return selection::two_phase_refusal(context, p);
}

void softmax_topk_two_phase(Context& context, const SoftmaxTopkProblem& p) {
  const cuda::DeviceScope scope(context.device().index);
  cuda::visit_dtype(p.dtype, [&]<class T>() {
    if (!selection::rows_aligned16(p)) {
      launch<T, false, selection::Waves<false>>(context, p);
    } else if (selection::fits_one_wave(context, p.rows)) {
      launch<T, true, selection::OneWave>(context, p);
    } else {
      launch<T, true, selection::Waves<true>>(context, p);
    }
  });
}

}  // namespace touchstone::topk
