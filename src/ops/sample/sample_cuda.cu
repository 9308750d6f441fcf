// Sampling by one scan of each row, shared with softmax_topk: one launch, a block per row, or a
// cluster of blocks where there are few rows. The scan leaves the first tokens in order and the sum
// of every segment; the block that finishes the row draws from those. Only rows whose cut is
// further down, or too close to call, or whose values overflow f32, are read again.
#include <algorithm>
#include <limits>
#include <string>
#include <type_traits>

#include "cuda/launch.h"
#include "ops/sample/sample_draw.cuh"
#include "ops/sample/sample_values.cuh"
#include "ops/softmax_topk/topk_scan_launch.h"

namespace touchstone::sampling {
namespace {

// Tokens that are put in order for a row that asks for a cut without saying how many it wants. More
// would slow down every such row, fewer would send more of them to the search: most nuclei are
// smaller.
constexpr std::int64_t kCandidates = 256;

struct SampleParams {
  Sampling p;
  ScanShape shape;
};

template <class Values>
inline constexpr bool kIsPenalised =
    std::is_same_v<Values, PenalisedValues<typename Values::Logit>>;

// So many fit beside each other, with the bitmaps of penalties in shared memory, or with twice as
// much on its way for few rows.
template <class Values, int kDepth>
inline constexpr int kBlocksPerSm = kIsPenalised<Values> || kDepth == 4 ? 2 : 4;

// A greedy row has log-probabilities too.
__device__ double weighing_temperature(const RowControls& controls) {
  return controls.greedy() ? 1 : static_cast<double>(controls.temperature);
}

// How many tokens of a row are put in order.
__device__ int wanted_places(const Sampling& p, const RowControls& controls) {
  std::int64_t wanted = max(p.top_count, std::int64_t{1});
  if (!controls.greedy() && controls.cuts(p.vocabulary)) {
    wanted = max(wanted, min(controls.top_k, kCandidates));
  }
  return static_cast<int>(min(wanted, p.vocabulary));
}

// Where things are in dynamic shared memory: the scan's, the draw's, the history's.
__host__ __device__ std::int64_t draw_offset(const ScanShape& shape) {
  return (ScanShared::bytes(shape) + 15) / 16 * 16;
}
__host__ __device__ std::int64_t history_offset(const ScanShape& shape) {
  return draw_offset(shape) + static_cast<std::int64_t>(sizeof(DrawShared));
}

template <class T>
__device__ topk::RowValues<T> unpenalised_values(const Sampling& p, std::int64_t row) {
  return {static_cast<const T*>(p.logits) + row * p.logits_stride,
          p.bias == nullptr ? nullptr : p.bias + row * p.bias_stride,
          p.allowed == nullptr
              ? nullptr
              : reinterpret_cast<const std::uint32_t*>(p.allowed) + row * p.allowed_stride};
}

__device__ HistoryTable& history_table(const ScanShape& shape, unsigned char* memory) {
  return *reinterpret_cast<HistoryTable*>(memory + history_offset(shape));
}

// Of a row whose history table, if it has one, is filled.
template <class Values>
__device__ Values make_values(const SampleParams& params, std::int64_t row, unsigned char* memory) {
  using T = typename Values::Logit;
  if constexpr (kIsPenalised<Values>) {
    return {unpenalised_values<T>(params.p, row), &history_table(params.shape, memory)};
  } else {
    return unpenalised_values<T>(params.p, row);
  }
}

// ---- outputs ----------------------------------------------------------------------------------

__device__ void put_token(void* tokens, DType dtype, std::int64_t at, std::int64_t token) {
  if (dtype == DType::i32) {
    static_cast<std::int32_t*>(tokens)[at] = static_cast<std::int32_t>(token);
  } else {
    static_cast<std::int64_t*>(tokens)[at] = token;
  }
}

// A row without a distribution.
__device__ void refuse_row(const Sampling& p, std::int64_t row, std::int32_t status) {
  for (std::int64_t j = threadIdx.x; j < p.top_count; j += kScanThreads) {
    const std::int64_t at = row * p.top_count + j;
    put_token(p.top_tokens, p.top_token_dtype, at, -1);
    p.top_log_probabilities[at] = topk::not_a_number();
  }
  if (threadIdx.x != 0) return;
  put_token(p.token, p.token_dtype, row, -1);
  if (p.log_probability != nullptr) p.log_probability[row] = topk::not_a_number();
  if (p.status != nullptr) p.status[row] = status;
}

// The largest and the sum come by different roundings: no more than 0.
__device__ float log_probability(const Weights& weights, float value) {
  return fminf(weights.log_probability(value, weights.row.sum), 0.0F);
}

__device__ void put_top(const Sampling& p, std::int64_t row, const Key* sorted,
                        const Weights& weights) {
  for (std::int64_t j = threadIdx.x; j < p.top_count; j += kScanThreads) {
    const std::int64_t at = row * p.top_count + j;
    put_token(p.top_tokens, p.top_token_dtype, at, topk::token_of(sorted[j]));
    p.top_log_probabilities[at] = log_probability(weights, topk::value_of(sorted[j]));
  }
}

// ---- the kernel -------------------------------------------------------------------------------

// All that follows the scan.
template <class Held, class Values>
__device__ void finish_row(const SampleParams& params, std::int64_t row, unsigned char* memory) {
  auto& shared = *reinterpret_cast<ScanShared*>(memory);
  auto& draw = *reinterpret_cast<DrawShared*>(memory + draw_offset(params.shape));
  const Sampling& p = params.p;
  const ScanShape& shape = params.shape;
  const RowControls& controls = draw.controls;
  if ((shared.flags & ScanShared::kNan) != 0) return refuse_row(p, row, kRowHasNan);
  const Values values = make_values<Values>(params, row, memory);
  const int k = wanted_places(p, controls);
  const int above = topk::sort_candidates<Held>(shape, k, shared, values);
  const Weights weights =
      topk::row_weights(shape, shared, values, 1 / weighing_temperature(controls));
  std::int32_t status = above < p.top_count ? kRowFewerThanK : 0;
  if (weights.masked()) return refuse_row(p, row, status | kRowAllMasked);
  if (weights.infinite()) status |= kRowHasInfinity;
  const Key* const sorted = shared.sorted();
  put_top(p, row, sorted, weights);
  bool read_again = weights.huge || (shared.flags & ScanShared::kReadTwice) != 0;
  Key drawn = sorted[0];
  if (!controls.greedy()) {
    drawn = RowDraw<Values, Held::kTokens>(shape, k, shared, draw, values, controls, weights, above)
                .run(draw.uniform, read_again);
  }
  if (threadIdx.x != 0) return;
  put_token(p.token, p.token_dtype, row, topk::token_of(drawn));
  if (p.log_probability != nullptr) {
    p.log_probability[row] = log_probability(weights, topk::value_of(drawn));
  }
  if (p.status != nullptr) p.status[row] = status | (read_again ? kRowReadTwice : 0);
}

template <class Values, bool kPlain, bool kOnGrid, int kDepth>
__global__ void __launch_bounds__(kScanThreads, kBlocksPerSm<Values, kDepth>)
    sample_scan_kernel(const __grid_constant__ SampleParams params) {
  extern __shared__ __align__(16) unsigned char memory[];
  const ScanShape& shape = params.shape;
  if constexpr (cuda::kHopper) {
    cuda::let_next_grid_start();
    cuda::wait_for_previous_grids();
  }
  const std::int64_t row = blockIdx.x / static_cast<unsigned>(shape.cluster);
  using Scan = topk::RowScan<Values, kPlain, kOnGrid, kDepth>;
  const RowControls controls = row_controls(params.p, row);
  if (!controls.legal) {  // all blocks of the cluster leave
    const bool first = blockIdx.x % static_cast<unsigned>(shape.cluster) == 0;
    if (first) refuse_row(params.p, row, kRowBadParameter);
    return;
  }
  // For what comes after the scan, whose barriers make it known to all.
  if (threadIdx.x == 0) {
    auto& draw = *reinterpret_cast<DrawShared*>(memory + draw_offset(shape));
    draw.controls = controls;
    draw.uniform = uniform_of(params.p.seed[row], params.p.position[row]);
  }
  if constexpr (kIsPenalised<Values>) history_table(shape, memory).fill(params.p, row, controls);
  const Values values = make_values<Values>(params, row, memory);
  auto& shared = *reinterpret_cast<ScanShared*>(memory);
  Scan(shape, wanted_places(params.p, controls), shared, values,
       topk::exponent_scale(1 / weighing_temperature(controls)))
      .run();
  if (!topk::gather_cluster(shape, shared)) return;
  finish_row<typename Scan::Held, Values>(params, row, memory);
}

// ---- the host ---------------------------------------------------------------------------------

bool penalises(const Sampling& p) {
  const bool any = p.repetition_penalty != nullptr || p.frequency_penalty != nullptr ||
                   p.presence_penalty != nullptr;
  return any && p.history_length > 0;
}

bool is_plain(const Sampling& p) {
  return p.bias == nullptr && p.allowed == nullptr && !penalises(p);
}

SampleParams params_of(const Context& context, const Sampling& p) {
  const bool may_cut = p.top_k != nullptr || p.top_p != nullptr || p.min_p != nullptr;
  const std::int64_t wanted = std::max<std::int64_t>(p.top_count, may_cut ? kCandidates : 1);
  const auto k = static_cast<int>(std::min(wanted, p.vocabulary));
  SampleParams params{p, topk::scan_shape(context, p.dtype, p.rows, p.vocabulary, k, is_plain(p))};
  // The draw keeps a weight and a running sum, of candidates or of segments, in their room.
  params.shape.candidates = std::max({params.shape.candidates, 2 * k, 2 * params.shape.segments});
  return params;
}

std::int64_t shared_bytes(const SampleParams& params) {
  return history_offset(params.shape) +
         (penalises(params.p) ? HistoryTable::bytes(params.p.vocabulary) : 0);
}

template <class Values, bool kPlain, bool kOnGrid, int kDepth>
void launch(Context& context, const SampleParams& params) {
  auto* kernel = sample_scan_kernel<Values, kPlain, kOnGrid, kDepth>;
  const cuda::LaunchShape shape{
      .blocks = static_cast<unsigned>(params.p.rows * params.shape.cluster),
      .threads = kScanThreads,
      .cluster = static_cast<unsigned>(params.shape.cluster),
      .shared_bytes = topk::scan_shared_bytes(params.shape, shared_bytes(params), kDepth == 4),
      .overlap_previous = cuda::is_hopper(context)};
  cuda::allow_shared(context, kernel);
  cuda::launch(context, "sample sample_scan_kernel", kernel, shape, params);
}

template <class Values, bool kPlain, bool kOnGrid>
void launch(Context& context, const SampleParams& params) {
  topk::scans_deep(context, params.p.rows, params.shape)
      ? launch<Values, kPlain, kOnGrid, 4>(context, params)
      : launch<Values, kPlain, kOnGrid, 2>(context, params);
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
  const SampleParams params = params_of(context, p);
  topk::visit_logits_dtype(p.dtype, [&]<class T>() {
    if (penalises(p)) {
      launch<PenalisedValues<T>, false, false>(context, params);
    } else if (!is_plain(p)) {
      launch<topk::RowValues<T>, false, false>(context, params);
    } else if (topk::rows_on_grid(p.logits, p.logits_stride * size_of(p.dtype))) {
      launch<topk::RowValues<T>, true, true>(context, params);
    } else {
      launch<topk::RowValues<T>, true, false>(context, params);
    }
  });
}

}  // namespace touchstone::sampling
