// Sampling of very many rows that are not long: one read of each, one launch, a small block per
// row.
#include "cuda/launch.h"
#include "ops/sample/sample_finish.cuh"
#include "ops/sample/sample_kernels.h"
#include "ops/softmax_topk/topk_maxima_launch.h"

namespace touchstone::sampling {
namespace {

struct MaximaParams {
  Sampling p;
  topk::MaximaShape shape;
  Places places;
};

template <class T, bool kOnGrid, class Layout>
__global__ void __launch_bounds__(Layout::kThreads, Layout::kBlocksPerSm)
    sample_maxima_kernel(const __grid_constant__ MaximaParams params) {
  extern __shared__ __align__(16) unsigned char memory[];
  using Memory = topk::MaximaMemory<Layout::kThreads>;
  using Scan = topk::RowMaxima<T, kOnGrid, Layout::kThreads, Layout::kDepth>;
  auto& state = *reinterpret_cast<RowState*>(memory);
  auto& shared = *reinterpret_cast<Memory*>(memory + sizeof(RowState));
  const Sampling& p = params.p;
  if constexpr (cuda::kHopper) {
    cuda::let_next_grid_start();
    cuda::wait_for_previous_grids();
  }
  const std::int64_t row = blockIdx.x;
  const topk::RowValues<T> values = unpenalised_values<T>(p, row);
  Scan scan(params.shape, shared, values.logits);
  scan.start();
  const RowControls controls = row_controls(p, row);
  if (!controls.legal) return refuse_row(p, row, kRowBadParameter);
  const int k = wanted_places(p, controls, params.places);
  const double inverse = 1 / weighing_temperature(controls);
  keep_state(p, row, controls, inverse, state);
  scan.read(topk::exponent_scale(inverse));
  finish_maxima(p, params.shape, row, k, scan, shared, state);
}

// Places that are put in order. Few rows want more than usual, and are read once more for them.
constexpr std::int64_t kPlaces = 256;
// Longer rows are read as fast by the scan, which can put more places in order.
constexpr std::int64_t kMostBytes = 224 << 10;

template <class T, bool kOnGrid, class Layout>
void launch(Context& context, const Sampling& p) {
  const auto places = static_cast<int>(std::min(kPlaces, p.vocabulary));
  MaximaParams params{p,
                      topk::maxima_shape<Layout::kThreads>(p.dtype, p.vocabulary, places),
                      {places, kWarpTokens}};
  // The draw keeps a weight and a running sum, of candidates or of segments, in their room.
  params.shape.candidates =
      std::max({params.shape.candidates, 2 * places, 2 * params.shape.segments});
  const cuda::LaunchShape shape{
      .blocks = static_cast<unsigned>(p.rows),
      .threads = Layout::kThreads,
      .shared_bytes = static_cast<std::int64_t>(sizeof(RowState)) +
                      topk::MaximaMemory<Layout::kThreads>::bytes(params.shape),
      .overlap_previous = cuda::is_hopper(context)};
  auto* kernel = sample_maxima_kernel<T, kOnGrid, Layout>;
  cuda::allow_shared(context, kernel);
  cuda::launch(context, "sample sample_maxima_kernel", kernel, shape, params);
}

}  // namespace

bool suits_maxima(const Context& context, const Sampling& p) {
  return is_plain(p) && p.top_count <= kPlaces && p.vocabulary * size_of(p.dtype) <= kMostBytes &&
         p.rows > topk::OneWave::kBlocksPerSm * topk::multiprocessors(context);
}

void sample_by_maxima(Context& context, const Sampling& p) {
  topk::visit_logits_dtype(p.dtype, [&]<class T>() {
    topk::rows_on_grid(p.logits, p.logits_stride * size_of(p.dtype))
        ? launch<T, true, topk::Waves>(context, p)
        : launch<T, false, topk::WavesOffGrid>(context, p);
  });
}

}  // namespace touchstone::sampling
