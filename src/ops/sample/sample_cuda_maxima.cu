// Sampling of many long rows: one read of each, a block per row, as softmax_topk does. Here is what
// almost all rows need; any other gets the token kLeft, and a second launch reads it once more.
#include "cuda/launch.h"
#include "ops/sample/sample_kernels.h"
#include "ops/sample/sample_scan.cuh"
#include "ops/softmax_topk/topk_maxima_launch.h"

namespace touchstone::sampling {
namespace {

struct MaximaParams {
  ScanParams scan;
  topk::MaximaShape shape;
  topk::HeadStart head_start;
};

// Rows that come in one wave are not left to another kernel: their block scans them.
template <class Layout>
inline constexpr bool kScansItself = Layout::kThreads == topk::kScanThreads;

// Whether the row, which wants few tokens in order, is done.
template <class Scan, class Memory>
__device__ bool sample_usual_row(const MaximaParams& params, std::int64_t row, const RowSeed& seed,
                                 const RowControls& controls, Scan& scan, Memory& shared,
                                 RowState& state) {
  const Sampling& p = params.scan.p;
  const int k = wanted_places(p, controls, {kWarpTokens, kWarpTokens});
  const double inverse = 1 / weighing_temperature(controls);
  keep_state<Memory::kThreads>(seed, controls, inverse, state);
  scan.read(topk::exponent_scale(inverse));
  topk::RowSum sum;
  if (!scan.answer_usual(k, sum)) return false;
  const Key* const sorted = shared.sorted();
  const Weights weights{state.inverse, topk::exponent_scale(state.inverse),
                        topk::value_of(sorted[0]), sum, false};
  put_top(p, row, sorted, weights, threadIdx.x, blockDim.x);
  if (!state.controls.greedy() && !state.controls.cuts(p.vocabulary)) {
    if (threadIdx.x == 0) state.weights = weights;
    __syncthreads();
    draw_by_token(p, params.shape, row, Scan::Held::kTokens, shared, state);
    return true;
  }
  if (threadIdx.x < 32) {
    const Key drawn =
        draw_quickly(sorted, k, k, p.vocabulary, state.controls, weights, state.uniform);
    if (threadIdx.x == 0) {
      state.settled = drawn != 0 ? 1 : 0;
      if (drawn != 0) put_drawn(p, row, drawn, weights, 0);
    }
  }
  __syncthreads();
  return state.settled != 0;
}

template <class T, bool kOnGrid, class Layout>
__global__ void __launch_bounds__(Layout::kThreads, Layout::kBlocksPerSm)
    sample_maxima_kernel(const __grid_constant__ MaximaParams params) {
  extern __shared__ __align__(16) unsigned char memory[];
  if constexpr (cuda::kHopper) {
    cuda::pdl_launch_dependents();
    cuda::pdl_wait();
  }
  topk::give_head_start(params.head_start);
  using Memory = topk::MaximaMemory<Layout::kThreads>;
  const Sampling& p = params.scan.p;
  const std::int64_t row = blockIdx.x;
  auto& state = *reinterpret_cast<RowState*>(memory);
  auto& shared = *reinterpret_cast<Memory*>(memory + sizeof(RowState));
  topk::RowMaxima<T, kOnGrid, Layout::kThreads, Layout::kDepth> scan(
      params.shape, shared, plain_values<T>(p, row).logits);
  scan.start();
  // Asked for before anything is waited for.
  const RowSeed seed = row_seed<Layout::kThreads>(p, row);
  const RowControls controls = row_controls(p, row);
  const bool few = wants_few(p, controls);
  if (few && sample_usual_row(params, row, seed, controls, scan, shared, state)) return;
  if constexpr (!kScansItself<Layout>) {
    leave_row(p, row);
  } else if (few) {
    sample_rare_row<T, kOnGrid>(params.scan, row, memory);
  } else {
    sample_wide_row<T, kOnGrid>(params.scan, row, memory, controls, scan);
  }
}

template <class T, bool kOnGrid, class Layout>
void launch(Context& context, const ScanParams& scan) {
  const Sampling& p = scan.p;
  const auto places =
      static_cast<int>(std::min<std::int64_t>(topk::kMaxMaximaPlaces, p.vocabulary));
  MaximaParams params{scan, topk::maxima_shape<Layout::kThreads>(p.dtype, p.vocabulary, places),
                      topk::head_start(p.dtype, p.rows, p.vocabulary,
                                       Layout::kBlocksPerSm * topk::multiprocessors(context))};
  // The draw keeps the running sums of segments in the room of candidates.
  params.shape.candidates = std::max(params.shape.candidates, params.shape.segments);
  const std::int64_t bytes = static_cast<std::int64_t>(sizeof(RowState)) +
                             topk::MaximaMemory<Layout::kThreads>::bytes(params.shape);
  const cuda::LaunchShape shape{
      .blocks = static_cast<unsigned>(p.rows),
      .threads = Layout::kThreads,
      .shared_bytes = kScansItself<Layout> ? std::max(bytes, scan_shared_bytes(scan)) : bytes,
      .pdl = cuda::is_hopper(context)};
  auto* kernel = sample_maxima_kernel<T, kOnGrid, Layout>;
  cuda::allow_shared(context, kernel);
  cuda::launch(context, "sample sample_maxima_kernel", kernel, shape, params);
}

}  // namespace

bool suits_maxima(const Context& context, const Sampling& p) {
  return is_plain(p) && p.top_count <= topk::kMaxMaximaPlaces &&
         p.vocabulary * size_of(p.dtype) <= topk::kMaxMaximaBytes &&
         p.rows > 3 * topk::multiprocessors(context);
}

bool sample_by_maxima(Context& context, const ScanParams& scan) {
  const Sampling& p = scan.p;
  bool all = false;
  topk::visit_logits_dtype(p.dtype, [&]<class T>() {
    if (!scan.on_grid) {
      launch<T, false, topk::WavesOffGrid>(context, scan);
    } else if (p.rows > topk::OneWave::kBlocksPerSm * topk::multiprocessors(context)) {
      launch<T, true, topk::Waves>(context, scan);
    } else {
      launch<T, true, topk::OneWave>(context, scan);
      all = true;
    }
  });
  return all;
}

}  // namespace touchstone::sampling
