// Sampling by one scan of each row, shared with softmax_topk: one launch, a block per row, or a
// cluster of blocks where there are few rows. The scan leaves the first tokens in order and the sum
// of every segment; the block that finishes the row draws from those. Only rows whose cut is
// further down, or too close to call, or whose values overflow f32, are read again.
//
// Where there are many rows, those that want few places are read as topk_maxima.cuh does. What a
// row wants is known on the device alone.
#include <algorithm>
#include <limits>
#include <string>
#include <type_traits>

#include "cuda/launch.h"
#include "ops/sample/sample_finish.cuh"
#include "ops/sample/sample_kernels.h"
#include "ops/softmax_topk/topk_maxima_launch.h"

namespace touchstone::sampling {
namespace {

struct ScanParams {
  Sampling p;
  ScanShape shape;
  topk::MaximaShape maxima;  // of no vocabulary where that way is closed
  Places places;
  bool penalises = false;
  HistorySizes history{};
};

// So many fit beside each other: plain rows off the grid need some more registers, deep scans twice
// as many.
template <bool kPlain, bool kOnGrid, int kDepth>
inline constexpr int kBlocksPerSm = kDepth == 4          ? 2
                                    : kOnGrid || !kPlain ? 4
                                                         : 3;

using Maxima = topk::MaximaMemory<topk::kScanThreads>;

// Where things are in dynamic shared memory: the scan's, the row's, the history's.
__host__ __device__ std::int64_t state_offset(const ScanParams& params) {
  const std::int64_t scan = ScanShared::bytes(params.shape);
  const std::int64_t maxima = params.maxima.vocabulary > 0 ? Maxima::bytes(params.maxima) : 0;
  return ((scan > maxima ? scan : maxima) + 15) / 16 * 16;
}
__host__ __device__ std::int64_t history_offset(const ScanParams& params) {
  return state_offset(params) + (static_cast<std::int64_t>(sizeof(RowState)) + 15) / 16 * 16;
}

// From the first segments on, which are loaded already.
template <class T, bool kOnGrid, class Raw>
__device__ void read_by_maxima(const ScanParams& params, std::int64_t row, int k, double inverse,
                               const Raw& loaded, unsigned char* memory, const RowState& state) {
  using Scan = topk::RowMaxima<T, kOnGrid, topk::kScanThreads, 2>;
  auto& shared = *reinterpret_cast<Maxima*>(memory);
  const topk::RowValues<T> values = unpenalised_values<T>(params.p, row);
  Scan scan(params.maxima, shared, values.logits);
  scan.start_with(loaded);
  scan.read(topk::exponent_scale(inverse));
  finish_maxima(params.p, params.maxima, row, k, scan, shared, state);
}

// The history of a row that is penalised.
__device__ HistoryTable* history_table(const ScanParams& params, unsigned char* memory) {
  return params.penalises ? reinterpret_cast<HistoryTable*>(memory + history_offset(params))
                          : nullptr;
}

template <class T, bool kPlain, bool kOnGrid, int kDepth>
__global__ void __launch_bounds__(topk::kScanThreads, kBlocksPerSm<kPlain, kOnGrid, kDepth>)
    sample_scan_kernel(const __grid_constant__ ScanParams params) {
  extern __shared__ __align__(16) unsigned char memory[];
  using Values = std::conditional_t<kPlain, topk::RowValues<T>, PenalisedValues<T>>;
  using Scan = topk::RowScan<Values, kPlain, kOnGrid, kDepth>;
  constexpr bool kMayTakeMaxima = kPlain && kOnGrid && kDepth == 2;
  const Sampling& p = params.p;
  const ScanShape& shape = params.shape;
  auto& state = *reinterpret_cast<RowState*>(memory + state_offset(params));
  auto& shared = *reinterpret_cast<ScanShared*>(memory);
  if constexpr (cuda::kHopper) {
    cuda::let_next_grid_start();
    cuda::wait_for_previous_grids();
  }
  const std::int64_t row = blockIdx.x / static_cast<unsigned>(shape.cluster);
  // The first loads come before the controls are read.
  const topk::RowValues<T> logits = unpenalised_values<T>(p, row);
  const bool may_take_maxima = kMayTakeMaxima && params.maxima.vocabulary > 0;
  topk::RowScan<topk::RowValues<T>, kPlain, kOnGrid, kDepth> early(shape, shared, logits);
  kPlain ? early.start() : early.ask_ahead();
  const RowControls controls = row_controls(p, row);
  if (!controls.legal) {  // all blocks of the cluster leave
    const bool first = blockIdx.x % static_cast<unsigned>(shape.cluster) == 0;
    if (first) refuse_row(p, row, kRowBadParameter);
    return;
  }
  const int k = wanted_places(p, controls, params.places);
  const double inverse = 1 / weighing_temperature(controls);
  keep_state(p, row, controls, inverse, state);
  HistoryTable* const table = kPlain ? nullptr : history_table(params, memory);
  if constexpr (kMayTakeMaxima) {
    if (may_take_maxima && k <= topk::kMostMaximaPlaces) {
      return read_by_maxima<T, kOnGrid>(params, row, k, inverse, early.loaded(), memory, state);
    }
  }
  if constexpr (kPlain) {
    early.run(k, topk::exponent_scale(inverse));
  } else {
    if (table != nullptr) table->fill(p, row, controls, params.history);
    Scan scan(shape, shared, Values(logits, table));
    scan.start();
    scan.run(k, topk::exponent_scale(inverse));
  }
  if (!topk::gather_cluster(shape, shared)) return;
  finish_row(p, shape, row, k, SegmentFacts::of<typename Scan::Held>(), nullptr, shared, state,
             table);
}

// ---- the host ---------------------------------------------------------------------------------

// Tokens that are put in order for a row that does not say how many it wants: most nuclei are
// smaller.
constexpr int kUnasked = 256;

bool on_grid(const Sampling& p) {
  return topk::rows_on_grid(p.logits, p.rows > 1 ? p.logits_stride * size_of(p.dtype) : 0);
}

ScanParams params_of(const Context& context, const Sampling& p) {
  const bool may_cut = p.top_k != nullptr || p.top_p != nullptr || p.min_p != nullptr;
  const std::int64_t wanted = std::max<std::int64_t>(p.top_count, may_cut ? kUnasked : 1);
  const auto k = static_cast<int>(std::min(wanted, p.vocabulary));
  ScanParams params;
  params.p = p;
  params.penalises = penalises(p);
  params.history = HistorySizes::of(p);
  params.shape = topk::scan_shape(context, p.dtype, p.rows, p.vocabulary, k, is_plain(p));
  // With a history beside them, four blocks fit on a multiprocessor.
  if (params.penalises && params.shape.cluster == 1 && k <= kUnasked)
    params.shape.candidates = 1536;
  // The draw keeps a mass and a running sum, of candidates or of segments, in their room.
  params.shape.candidates = std::max({params.shape.candidates, 2 * k, 2 * params.shape.segments});
  // What is put in order must leave room for a step of read_in_order.
  const int room = params.shape.room();
  params.places = {std::clamp(std::min(room - 4 * topk::kScanThreads, room / 2), k,
                              int{ScanShared::kMostSorted}),
                   kUnasked};
  if (p.rows <= 3 * topk::multiprocessors(context)) return params;
  params.places.unasked = kWarpTokens;
  if (is_plain(p) && on_grid(p) && p.vocabulary * size_of(p.dtype) <= topk::kMostMaximaBytes) {
    params.maxima = topk::maxima_shape<topk::OneWave::kThreads>(
        p.dtype, p.vocabulary, static_cast<int>(topk::kMostMaximaPlaces));
    params.maxima.candidates = std::max(params.maxima.candidates, 2 * params.maxima.segments);
  }
  return params;
}

std::int64_t shared_bytes(const ScanParams& params) {
  return history_offset(params) + (params.penalises ? HistoryTable::bytes(params.history) : 0);
}

template <class T, bool kPlain, bool kOnGrid, int kDepth>
void launch(Context& context, const ScanParams& params) {
  auto* kernel = sample_scan_kernel<T, kPlain, kOnGrid, kDepth>;
  const cuda::LaunchShape shape{
      .blocks = static_cast<unsigned>(params.p.rows * params.shape.cluster),
      .threads = topk::kScanThreads,
      .cluster = static_cast<unsigned>(params.shape.cluster),
      .shared_bytes = topk::scan_shared_bytes(params.shape, shared_bytes(params), kDepth == 4),
      .overlap_previous = cuda::is_hopper(context)};
  cuda::allow_shared(context, kernel);
  cuda::launch(context, "sample sample_scan_kernel", kernel, shape, params);
}

void sample_by_scan(Context& context, const Sampling& p) {
  const ScanParams params = params_of(context, p);
  topk::visit_logits_dtype(p.dtype, [&]<class T>() {
    if (!is_plain(p)) {
      launch<T, false, false, 2>(context, params);
    } else if (!on_grid(p)) {
      launch<T, true, false, 2>(context, params);
    } else if (topk::scans_deep(context, p.rows, params.shape)) {
      launch<T, true, true, 4>(context, params);
    } else {
      launch<T, true, true, 2>(context, params);
    }
  });
}

}  // namespace

std::string sample_cuda_refuses(const Context& context, const Sampling& p) {
  if (p.top_count > ScanShared::kMostSorted) {
    return "more than " + std::to_string(ScanShared::kMostSorted) + " top tokens";
  }
  if (topk::segments_of(p.dtype, p.vocabulary, is_plain(p)) > topk::kMostSegments) {
    return "too many tokens";
  }
  if (p.rows > std::numeric_limits<std::int32_t>::max()) return "too many rows";
  if (shared_bytes(params_of(context, p)) >
      cuda::device_attribute(context, cudaDevAttrMaxSharedMemoryPerBlockOptin)) {
    return "not enough shared memory";
  }
  return "";
}

void sample_cuda(Context& context, const Sampling& p) {
  const cuda::DeviceScope scope(context.device().index);
  suits_maxima(context, p) ? sample_by_maxima(context, p) : sample_by_scan(context, p);
}

}  // namespace touchstone::sampling
