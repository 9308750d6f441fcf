// Sampling of many long rows by two-phase selection, one CTA per row. Rows that 64 sorted tokens do
// not suffice for are deferred to a second launch, or streamed by the same CTA where all rows are
// resident.
#include "cuda/launch.h"
#include "ops/sample/cuda/sample_launch.h"
#include "ops/sample/cuda/sample_streaming.cuh"
#include "ops/selection/launch_params.h"

namespace touchstone::sampling {
namespace {

struct TwoPhaseArgs {
  StreamingArgs streaming;  // for rows that the kernel cannot finish
  selection::TwoPhaseParams params;
};

// Where all rows are resident at once, their CTA streams the rows that it cannot finish.
template <class Layout>
inline constexpr bool kHandlesDeferred = Layout::kThreads == selection::kStreamingThreads;

// A row that 64 sorted tokens may suffice for. Returns whether it is done.
template <class Select, class Smem>
__device__ bool sample_row_fast_path(const TwoPhaseArgs& args, std::int64_t row,
                                     const RowSeed& seed, const RowControls& controls,
                                     Select& select, Smem& smem, RowState& state) {
  const SampleProblem& p = args.streaming.p;
  const int k = wanted_slots(p, controls, {kWarpTokens, kWarpTokens});
  const double inverse = 1 / log_prob_temperature(controls);
  store_state<Smem::kThreads>(seed, controls, inverse, state);
  select.read(selection::exponent_scale(inverse));
  selection::RowSum sum;
  if (!select.select(k, sum)) return false;
  const Key* const sorted = smem.sorted();
  const Weights weights{state.inverse, selection::exponent_scale(state.inverse),
                        selection::value_of(sorted[0]), sum, false};
  store_top(p, row, sorted, weights, threadIdx.x, blockDim.x);
  if (!state.controls.greedy() && !state.controls.cuts(p.vocabulary)) {
    if (threadIdx.x == 0) state.weights = weights;
    __syncthreads();
    draw_by_token(p, args.params, row, Select::Held::kTokens, smem, state);
    return true;
  }
  if (threadIdx.x < 32) {
    const Key drawn =
        draw_by_warp(sorted, k, k, p.vocabulary, state.controls, weights, state.uniform);
    if (threadIdx.x == 0) {
      state.drawn = drawn != 0 ? 1 : 0;
      if (drawn != 0) store_drawn(p, row, drawn, weights, RowStatus::ok);
    }
  }
  __syncthreads();
  return state.drawn != 0;
}

template <class T, bool kAligned16, class Layout>
__global__ void __launch_bounds__(Layout::kThreads, Layout::kBlocksPerSm)
    sample_two_phase_kernel(const __grid_constant__ TwoPhaseArgs args) {
  extern __shared__ __align__(16) unsigned char memory[];
  if constexpr (cuda::kHopper) {
    cuda::pdl_launch_dependents();
    cuda::pdl_wait();
  }
  using Smem = selection::TwoPhaseSmem<Layout::kThreads>;
  const SampleProblem& p = args.streaming.p;
  const std::int64_t row = blockIdx.x;
  auto& state = *reinterpret_cast<RowState*>(memory);
  auto& smem = *reinterpret_cast<Smem*>(memory + sizeof(RowState));
  selection::TwoPhaseSelect<T, kAligned16, Layout::kThreads, Layout::kPrefetchDepth> select(
      args.params, smem, raw_values<T>(p, row).logits);
  select.start();
  // Issued before anything waits.
  const RowSeed seed = row_seed<Layout::kThreads>(p, row);
  const RowControls controls = row_controls(p, row);
  const bool fits = fits_warp_draw(p, controls);
  if (fits && sample_row_fast_path(args, row, seed, controls, select, smem, state)) return;
  if constexpr (!kHandlesDeferred<Layout>) {
    defer_row(p, row);
  } else if (fits) {
    sample_row_slow_path<T, kAligned16>(args.streaming, row, memory);
  } else {
    sample_row_many_slots<T, kAligned16>(args.streaming, row, memory, controls, select);
  }
}

template <class T, bool kAligned16, class Layout>
void launch(Context& context, const StreamingArgs& streaming) {
  const SampleProblem& p = streaming.p;
  const auto slots =
      static_cast<int>(std::min<std::int64_t>(selection::kMaxTwoPhaseK, p.vocabulary));
  TwoPhaseArgs args{streaming,
                    selection::two_phase_params<Layout::kThreads>(p.dtype, p.vocabulary, slots)};
  // The draw keeps running sums of segments in the memory of the candidates.
  args.params.candidates = std::max(args.params.candidates, args.params.segments);
  const std::int64_t bytes = static_cast<std::int64_t>(sizeof(RowState)) +
                             selection::TwoPhaseSmem<Layout::kThreads>::bytes(args.params);
  const cuda::LaunchShape grid{
      .blocks = static_cast<unsigned>(p.rows),
      .threads = Layout::kThreads,
      .shared_bytes = kHandlesDeferred<Layout> ? std::max(bytes, row_smem_bytes(streaming)) : bytes,
      .pdl = cuda::is_hopper(context)};
  auto* kernel = sample_two_phase_kernel<T, kAligned16, Layout>;
  cuda::allow_shared(context, kernel);
  cuda::launch(context, "sample two_phase_kernel", kernel, grid, args);
}

}  // namespace

bool launch_two_phase(Context& context, const StreamingArgs& args) {
  const bool one_wave = args.aligned16 && selection::fits_one_wave(context, args.p.rows);
  cuda::visit_dtype(args.p.dtype, [&]<class T>() {
    if (one_wave) {
      launch<T, true, selection::OneWave>(context, args);
    } else if (args.aligned16) {
      launch<T, true, selection::Waves<true>>(context, args);
    } else {
      launch<T, false, selection::Waves<false>>(context, args);
    }
  });
  return one_wave;
}

}  // namespace touchstone::sampling
