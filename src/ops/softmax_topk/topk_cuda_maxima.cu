// softmax_topk of many long rows by one read of each: one launch, a block per row.
#include <bit>
#include <string>

#include "cuda/launch.h"
#include "ops/softmax_topk/topk_maxima.cuh"
#include "ops/softmax_topk/topk_scan_launch.h"

namespace touchstone::topk {
namespace {

// What a kernel is compiled for: threads of a block, segments of a warp in registers, and blocks
// that are to fit on a multiprocessor.
template <int kBlockThreads, int kSegments, int kBlocks>
struct MaximaLayout {
  static constexpr int kThreads = kBlockThreads;
  static constexpr int kDepth = kSegments;
  static constexpr int kBlocksPerSm = kBlocks;
};

// For rows that want up to k places.
template <class Layout>
MaximaShape maxima_shape(DType dtype, std::int64_t vocabulary, int k) {
  constexpr int kWarps = Layout::kThreads / 32;
  constexpr int kMostGroups = 80;  // of segments
  MaximaShape shape;
  shape.vocabulary = vocabulary;
  shape.token_bits = std::bit_width(static_cast<std::uint64_t>(vocabulary - 1));
  shape.segments = static_cast<int>(segments_of(dtype, vocabulary, true));
  shape.places = k;
  shape.candidates = k + 4 * Layout::kThreads;
  shape.merged = (shape.segments + kMostGroups - 1) / kMostGroups;
  const int most = (shape.segments + kWarps - 1) / kWarps;
  shape.maxima = (most + shape.merged - 1) / shape.merged;
  return shape;
}

struct MaximaArgs {
  Topk p;
  MaximaShape shape;
};

template <class T, bool kOnGrid, class Layout>
__global__ void __launch_bounds__(Layout::kThreads, Layout::kBlocksPerSm)
    topk_maxima_kernel(const __grid_constant__ MaximaArgs args) {
  extern __shared__ __align__(16) unsigned char memory[];
  using Memory = MaximaMemory<Layout::kThreads>;
  using Scan = RowMaxima<T, kOnGrid, Layout::kThreads, Layout::kDepth>;
  auto& shared = *reinterpret_cast<Memory*>(memory);
  const Topk& p = args.p;
  if constexpr (cuda::kHopper) {
    cuda::let_next_grid_start();
    cuda::wait_for_previous_grids();
  }
  const std::int64_t row = blockIdx.x;
  const RowValues<T> values = values_of<T>(p, row);
  const auto k = static_cast<int>(p.k);
  Scan scan(args.shape, shared, values.logits);
  scan.start();
  const double inverse = inverse_temperature(p, row);
  if (inverse == 0) return put_bad_row<Layout::kThreads>(p, row, kRowBadParameter);
  scan.read(exponent_scale(inverse));
  if ((shared.flags & Memory::kNan) != 0) {
    return put_bad_row<Layout::kThreads>(p, row, kRowHasNan);
  }
  scan.collect(k);
  const int above = sort_candidates<typename Scan::Held>(args.shape, k, shared, values);
  const Weights weights = row_weights(args.shape, shared, values, inverse);
  put_row(p, row, shared, above, weights);
}

template <class T, bool kOnGrid, class Layout>
void launch(Context& context, const Topk& p) {
  const MaximaArgs args{p, maxima_shape<Layout>(p.dtype, p.vocabulary, static_cast<int>(p.k))};
  const cuda::LaunchShape shape{.blocks = static_cast<unsigned>(p.rows),
                                .threads = Layout::kThreads,
                                .shared_bytes = MaximaMemory<Layout::kThreads>::bytes(args.shape),
                                .overlap_previous = cuda::is_hopper(context)};
  auto* kernel = topk_maxima_kernel<T, kOnGrid, Layout>;
  cuda::allow_shared(context, kernel);
  cuda::launch(context, "softmax_topk topk_maxima_kernel", kernel, shape, args);
}

// For more places, the lanes that have to be looked at again are too many; longer rows have time to
// choose while they are read.
constexpr std::int64_t kMostPlaces = 64;
constexpr std::int64_t kMostBytes = 320 << 10;

// Rows that come in one wave need many threads each. Where more are to come, many small blocks hide
// how each of them ends; rows off the grid need so many registers that a segment at a time is best.
using OneWave = MaximaLayout<256, 2, 4>;
using OneWaveOffGrid = MaximaLayout<256, 2, 3>;
using Waves = MaximaLayout<128, 2, 8>;
using WavesOffGrid = MaximaLayout<128, 1, 8>;

std::int64_t multiprocessors(const Context& context) {
  return cuda::device_attribute(context, cudaDevAttrMultiProcessorCount);
}

}  // namespace

std::string softmax_topk_maxima_refuses(const Context& context, const Topk& p) {
  if (p.k > kMostPlaces) return "more than " + std::to_string(kMostPlaces) + " places";
  if (p.bias != nullptr || p.allowed != nullptr) return "has a bias or a mask";
  if (p.vocabulary * size_of(p.dtype) > kMostBytes) return "rows are long";
  // Clusters are made for so many (scan_cluster).
  if (p.rows <= 3 * multiprocessors(context)) return "rows are few";
  return "";
}

void softmax_topk_maxima(Context& context, const Topk& p) {
  const cuda::DeviceScope scope(context.device().index);
  const bool one_wave = p.rows <= OneWave::kBlocksPerSm * multiprocessors(context);
  const bool on_grid = rows_on_grid(p.logits, p.logits_stride * size_of(p.dtype));
  visit_logits_dtype(p.dtype, [&]<class T>() {
    if (one_wave) {
      on_grid ? launch<T, true, OneWave>(context, p) : launch<T, false, OneWaveOffGrid>(context, p);
    } else {
      on_grid ? launch<T, true, Waves>(context, p) : launch<T, false, WavesOffGrid>(context, p);
    }
  });
}

}  // namespace touchstone::topk
