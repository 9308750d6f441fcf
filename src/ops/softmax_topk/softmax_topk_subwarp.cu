// softmax_topk of short rows (expert routing), several per warp. subwarp_smem reads rows once, by
// asynchronous copies to shared memory, where they take no registers and more of them are in
// flight; subwarp loads very short rows, and rows with a bias or a mask, to registers.
// subwarp_select.cuh has the algorithm.
#include <algorithm>
#include <string>
#include <type_traits>

#include "cuda/launch.h"
#include "cuda/tensor_core.cuh"
#include "ops/selection/launch_params.h"
#include "ops/selection/subwarp_select.cuh"
#include "ops/softmax_topk/softmax_topk_epilogue.cuh"
#include "ops/softmax_topk/softmax_topk_tuning.h"

namespace touchstone::topk {
namespace {

using selection::GlobalRow;
using selection::kChunk;
using selection::kListSize;
using selection::NarrowRow;
using selection::PrefixRow;
using selection::RowTile;
using selection::SelectedSlots;
using selection::SharedPart;
using selection::SharedRow;
using selection::SharedWideRow;
using selection::ThreadGroup;
using selection::WideRow;

struct SubwarpArgs {
  SoftmaxTopkProblem p;
  selection::SubwarpParams params;
  int k = 0;
  bool vector_stores = false;  // several slots of a lane per store
};

constexpr std::int64_t kMaxRows = std::int64_t{1}
                                  << 30;  // row indices fit 32 bits with a grid stride to spare

// A row between its selection and its outputs.
template <int kLaneSlots>
struct RowResult {
  float exponent[kLaneSlots];  // base 2, relative to the row's reference
  std::int32_t token[kLaneSlots];
  float sum;
  bool huge;  // the reference is the largest value itself
  RowStatus status;

  __device__ bool valid() const {
    return !has_any(status, RowStatus::has_nan | RowStatus::bad_parameter);
  }
};

// NaN, +inf, all masked, invalid temperature, large exponents. All lanes of a warp enter if one of
// its rows must; the other rows keep their result.
template <class Row, class Group, int kLaneSlots>
__device__ void select_slow_path_rows(const Group& group, const Row& row, float scale,
                                      float largest, bool rare, const float (&values)[kLaneSlots],
                                      RowResult<kLaneSlots>& result) {
  const bool infinite = largest == infinity();
  const bool masked = largest == -infinity();
  const auto exponent = [&](float v) {  // as in Weights
    const float finite = masked ? -infinity() : (v - largest) * scale;
    const float counted = v == infinity() ? 0.0F : -infinity();
    return infinite ? counted : finite;
  };
  float nans = 0;
  float sum = 0;
  row.each_value([&](float v) {
    nans += v != v ? 1.0F : 0.0F;
    sum += exp2_fast(exponent(v));
  });
  nans = group.sum(nans);
  sum = group.sum(sum);
  if (!rare) return;
  if (scale == 0 || nans != 0) {
    result.status = scale == 0 ? RowStatus::bad_parameter : RowStatus::has_nan;
    result.sum = not_a_number();
#pragma unroll
    for (int j = 0; j < kLaneSlots; ++j) {
      result.exponent[j] = not_a_number();
      result.token[j] = -1;
    }
    return;
  }
  result.status = infinite ? RowStatus::has_infinity
                  : masked ? RowStatus::all_masked
                           : RowStatus::ok;
  // A denominator of 1 makes probabilities 0 and logarithms -inf.
  result.sum = masked ? 1.0F : sum;
  result.huge = true;
#pragma unroll
  for (int j = 0; j < kLaneSlots; ++j) result.exponent[j] = exponent(values[j]);
}

// Stores a lane's slots, several per store where alignment permits.
template <int kLaneSlots>
__device__ void store_slots(const SubwarpArgs& args, int row, int first,
                            const std::int32_t (&token)[kLaneSlots],
                            const float (&weights)[kLaneSlots],
                            const float (&logarithms)[kLaneSlots], float total) {
  constexpr int kTogether = kLaneSlots >= 4 ? 4 : 2;
  using Floats = std::conditional_t<kTogether == 4, float4, float2>;
  using Ints = std::conditional_t<kTogether == 4, int4, int2>;
  const SoftmaxTopkProblem& p = args.p;
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(total));
#pragma unroll
  for (int j = 0; j < kLaneSlots; j += kTogether) {
    if (first + j >= args.k) return;
    const std::int64_t at = std::int64_t{row} * args.k + (first + j);
    alignas(16) float probability[kTogether];
    alignas(16) float logarithm[kTogether];
    alignas(16) std::int32_t index[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      probability[i] = weights[j + i] * inverse;
      logarithm[i] = logarithms[j + i];
      index[i] = token[j + i];
    }
    if (!args.vector_stores) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (first + j + i >= args.k) return;
        store_index(p, at + i, index[i]);
        p.probabilities[at + i] = probability[i];
        if (p.log_probabilities != nullptr) p.log_probabilities[at + i] = logarithm[i];
      }
      continue;
    }
    *reinterpret_cast<Floats*>(p.probabilities + at) =
        *reinterpret_cast<const Floats*>(probability);
    if (p.log_probabilities != nullptr) {
      *reinterpret_cast<Floats*>(p.log_probabilities + at) =
          *reinterpret_cast<const Floats*>(logarithm);
    }
    if (!p.wide_indices) {
      *reinterpret_cast<Ints*>(static_cast<std::int32_t*>(p.indices) + at) =
          *reinterpret_cast<const Ints*>(index);
      continue;
    }
#pragma unroll
    for (int i = 0; i < kTogether; i += 2) {
      *reinterpret_cast<longlong2*>(static_cast<std::int64_t*>(p.indices) + at + i) = {
          index[i], index[i + 1]};
    }
  }
}

// By the lane that holds slot k - 1 and thus knows whether it is masked.
template <int kLaneSlots>
__device__ void store_row(const SubwarpArgs& args, int row, int first,
                          const RowResult<kLaneSlots>& result, const float (&values)[kLaneSlots],
                          const Weights& weights) {
  const SoftmaxTopkProblem& p = args.p;
  if (first >= args.k || args.k > first + kLaneSlots) return;
  if (p.log_sum_exp != nullptr) {
    p.log_sum_exp[row] = result.valid() ? weights.log_sum_exp() : not_a_number();
  }
  if (p.status == nullptr) return;
  RowStatus status = result.status;
  unsigned masked = 0;  // one bit per slot: dynamic indexing would use local memory
#pragma unroll
  for (int j = 0; j < kLaneSlots; ++j) masked |= values[j] == -infinity() ? 1U << j : 0U;
  if (result.valid() && (masked >> (args.k - 1 - first) & 1U) != 0)
    status |= RowStatus::fewer_than_k;
  p.status[row] = to_int(status);
}

template <class Row, int kLanes, int kChunks>
__device__ void process_row(const ThreadGroup<Row, kLanes, kChunks>& group, const Row& row,
                            const typename Row::Source& source, const SubwarpArgs& args,
                            float scale, bool there) {
  constexpr int kLaneSlots = ThreadGroup<Row, kLanes, kChunks>::kLaneSlots;
  SelectedSlots<kLaneSlots> selected;
  float largest;
  group.select(row, source, selected, largest);

  // Rounded explicitly, so that all exponents use the same reference.
  const float reference = __fmul_rn(largest, scale);
  RowResult<kLaneSlots> result;
  result.sum = group.sum_of_weights(row, scale, reference);
  result.huge = false;
  result.status = RowStatus::ok;
#pragma unroll
  for (int j = 0; j < kLaneSlots; ++j) {
    result.token[j] = selected.token[j];
    result.exponent[j] = fmaf(selected.value[j], scale, -reference);
  }
  const auto& values = selected.value;
  // NaN propagates to the sum. Written so that NaN takes the slow path.
  const bool rare =
      !(fabsf(reference) < selection::kLargeExponent && result.sum < 0x1p100F && scale > 0);
  if (__any_sync(~0U, rare)) {
    select_slow_path_rows(group, row, scale, largest, rare, values, result);
  }

  const int first = group.first_slot();
  float weights[kLaneSlots];
#pragma unroll
  for (int j = 0; j < kLaneSlots; ++j) weights[j] = exp2f(result.exponent[j]);
  float total = result.sum;
  if (args.p.renormalize) {
    float kept = 0;
#pragma unroll
    for (int j = 0; j < kLaneSlots; ++j) kept += first + j < args.k ? weights[j] : 0.0F;
#pragma unroll
    for (int offset = 1; offset < kLanes && offset < 4; offset *= 2) {
      kept += selection::shuffle_xor(kept, offset);
    }
    total = kept > 0 ? kept : 1.0F;  // 0: all masked
  }
  if (!there || !group.writes()) return;
  const Weights against{args.p.log_probabilities != nullptr || args.p.log_sum_exp != nullptr
                            ? inverse_temperature(args.p, source.row)
                            : 1.0,
                        scale,
                        largest,
                        {result.huge ? largest : reference, result.sum},
                        result.huge};
  float logarithms[kLaneSlots] = {};
  if (args.p.log_probabilities != nullptr) {
#pragma unroll
    for (int j = 0; j < kLaneSlots; ++j) {
      logarithms[j] = result.valid() ? against.log_probability(values[j], total) : not_a_number();
    }
  }
  store_slots(args, source.row, first, result.token, weights, logarithms, total);
  if (args.p.log_sum_exp != nullptr || args.p.status != nullptr) {
    store_row(args, source.row, first, result, values, against);
  }
}

template <class Row>
using Layout = SubwarpRegisterLayout<Row::kPrefixes, sizeof(typename Row::K)>;

template <class Row, int kLanes, int kChunks>
__global__ void __launch_bounds__(Layout<Row>::kThreads, Layout<Row>::kBlocksPerSm)
    subwarp_register_kernel(const __grid_constant__ SubwarpArgs args) {
  using Source = GlobalRow<typename Row::Logit>;
  constexpr int kRows = 32 / kLanes;  // of a warp
  constexpr int kThreads = Layout<Row>::kThreads;
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const ThreadGroup<Row, kLanes, kChunks> group{lane % kLanes};
  // Lanes past the last row repeat it without storing.
  const int last = args.params.rows - 1;
  const int step = static_cast<int>(gridDim.x) * (kThreads / 32) * kRows;
  int first = static_cast<int>(blockIdx.x * (kThreads / 32) + threadIdx.x / 32) * kRows;
  const int offset = lane / kLanes;
  if (first > last) return;
  if constexpr (cuda::kHopper) {
    cuda::pdl_launch_dependents();
    prefetch_l2(Source(args.params, min(first + offset, last)), group.lane);
    cuda::pdl_wait();
  }
  const float common_scale =
      args.p.temperature == nullptr ? exponent_scale(inverse_temperature(args.p, 0)) : 0.0F;
#pragma unroll 1
  for (; first <= last; first += step) {
    const Source source(args.params, min(first + offset, last));
    Row row;
    row.load(source, group.lane);
    const float scale = args.p.temperature == nullptr
                            ? common_scale
                            : exponent_scale(inverse_temperature(args.p, source.row));
    process_row(group, row, source, args, scale, first + offset <= last);
  }
}

template <class Row, int kLanes, int kChunks>
__global__ void __launch_bounds__(32 * kSubwarpTileWarps, kSubwarpTileBlocksPerSm)
    subwarp_smem_kernel(const __grid_constant__ SubwarpArgs args) {
  using T = typename Row::Logit;
  using Tile = RowTile<T, kLanes>;
  __shared__ __align__(128) unsigned char tiles[kSubwarpTileWarps][Tile::kBytes];
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const auto warp = static_cast<int>(threadIdx.x / 32);
  const ThreadGroup<Row, kLanes, kChunks> group{lane % kLanes};
  const int first = (static_cast<int>(blockIdx.x) * kSubwarpTileWarps + warp) * Tile::kRows;
  if (first >= args.params.rows) return;
  const int rows = min(Tile::kRows, args.params.rows - first);
  // Lanes without a row repeat the last one without storing.
  const int own = min(lane / kLanes, rows - 1);
  const SharedRow<T, kLanes> source(args.params, first + own, {cuda::shared_address(tiles[warp])},
                                    own);
  if constexpr (cuda::kHopper) {
    cuda::pdl_launch_dependents();
    prefetch_l2(source, group.lane);
    cuda::pdl_wait();
  }
  source.tile.fill(args.params, first, rows, lane);
  const float scale = exponent_scale(inverse_temperature(args.p, source.row));
  cuda::wait_copies<0>();
  __syncwarp();
  Row row;
  row.load(source, group.lane);
  process_row(group, row, source, args, scale, lane / kLanes < rows);
}

bool aligned(const void* pointer, std::int64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % static_cast<std::uintptr_t>(bytes) == 0;
}

// Parameters that depend on the lanes per row.
template <class Row, int kLanes, int kChunks>
void set_layout(SubwarpArgs& args) {
  constexpr int kLaneSlots = ThreadGroup<Row, kLanes, kChunks>::kLaneSlots;
  constexpr int kTogether = kLaneSlots >= 4 ? 4 : 2;  // slots per store
  const SoftmaxTopkProblem& p = args.p;
  args.params.full = args.params.vectors && p.vocabulary == kChunk * kChunks * kLanes;
  args.params.packed = args.params.full && p.logits_stride == p.vocabulary;
  args.vector_stores = p.k % kTogether == 0 && aligned(p.probabilities, 4 * kTogether) &&
                       aligned(p.log_probabilities, 4 * kTogether) &&
                       aligned(p.indices, p.wide_indices ? 16 : 4 * kTogether);
}

template <class Row, int kLanes, int kChunks>
void launch_lanes(Context& context, SubwarpArgs args) {
  set_layout<Row, kLanes, kChunks>(args);
  using ThisLayout = Layout<Row>;
  constexpr std::int64_t kBlockRows = ThisLayout::kThreads / kLanes;
  const std::int64_t needed = (args.p.rows + kBlockRows - 1) / kBlockRows;
  const std::int64_t resident =
      std::int64_t{cuda::device_attribute(context, cudaDevAttrMultiProcessorCount)} *
      ThisLayout::kBlocksPerSm;
  const cuda::LaunchShape grid{.blocks = static_cast<unsigned>(std::min(needed, resident)),
                               .threads = ThisLayout::kThreads,
                               .pdl = cuda::is_hopper(context)};
  cuda::launch(context, "softmax_topk subwarp_register_kernel",
               subwarp_register_kernel<Row, kLanes, kChunks>, grid, args);
}

template <class Row, int kLanes, int kChunks>
void launch_tiles(Context& context, SubwarpArgs args) {
  set_layout<Row, kLanes, kChunks>(args);
  constexpr std::int64_t kBlockRows = kSubwarpTileWarps * 32 / kLanes;
  const cuda::LaunchShape grid{
      .blocks = static_cast<unsigned>((args.p.rows + kBlockRows - 1) / kBlockRows),
      .threads = 32 * kSubwarpTileWarps,
      .pdl = cuda::is_hopper(context)};
  cuda::launch(context, "softmax_topk subwarp_smem_kernel",
               subwarp_smem_kernel<Row, kLanes, kChunks>, grid, args);
}

// ---- subwarp_smem --------------------------------------------------------------------------------

// Raw 16-bit logits, 64 tokens per lane: 32 would need more instructions per row.
template <class T, int kLanes>
void launch_narrow_tiles(Context& context, const SubwarpArgs& args) {
  if constexpr (kLanes < 16) {
    if (args.p.vocabulary > 8 * kChunk * kLanes) {
      return launch_narrow_tiles<T, 2 * kLanes>(context, args);
    }
  }
  launch_tiles<NarrowRow<T, kLanes, 8, SharedPart<T, kLanes, 8>>, kLanes, 8>(context, args);
}

// Raw f32 logits: 32 tokens per lane.
template <int kLanes>
void launch_wide_tiles(Context& context, const SubwarpArgs& args) {
  if constexpr (kLanes < 32) {
    if (args.p.vocabulary > 4 * kChunk * kLanes) {
      return launch_wide_tiles<2 * kLanes>(context, args);
    }
  }
  using Row = PrefixRow<SharedWideRow<float, kLanes, 4>, kLanes, 4>;
  launch_tiles<Row, kLanes, 4>(context, args);
}

template <class T>
void launch_subwarp_smem(Context& context, const SubwarpArgs& args) {
  if constexpr (sizeof(T) == 2) {
    launch_narrow_tiles<T, 2>(context, args);
  } else {
    launch_wide_tiles<4>(context, args);
  }
}

// ---- subwarp -------------------------------------------------------------------------------------

// 32 tokens per lane.
template <class T, int kLanes>
void launch_wide(Context& context, const SubwarpArgs& args) {
  if constexpr (kLanes < 32) {
    if (args.p.vocabulary > 4 * kChunk * kLanes) return launch_wide<T, 2 * kLanes>(context, args);
  }
  launch_lanes<PrefixRow<WideRow<T, kLanes, 4>, kLanes, 4>, kLanes, 4>(context, args);
}

template <class T>
void launch_subwarp(Context& context, const SubwarpArgs& args) {
  const bool one_lane = args.p.vocabulary <= 4 * kChunk;
  if constexpr (sizeof(T) == 2) {
    if (args.p.has_raw_logits()) {
      return one_lane ? launch_lanes<NarrowRow<T, 1, 4>, 1, 4>(context, args)
                      : launch_lanes<NarrowRow<T, 2, 4>, 2, 4>(context, args);
    }
  }
  if (one_lane) return launch_lanes<WideRow<T, 1, 4>, 1, 4>(context, args);
  launch_wide<T, 4>(context, args);
}

// ---- choice --------------------------------------------------------------------------------------

// Tokens of a row of raw logits up to which it is loaded to registers: those of one lane, of two lanes
// in 16 bits.
std::int64_t max_register_tokens(const SoftmaxTopkProblem& p) {
  return (size_of(p.dtype) == 2 ? 8 : 4) * kChunk;
}

// What both kernels refuse.
std::string subwarp_refusal(const SoftmaxTopkProblem& p) {
  if (p.vocabulary > selection::kMaxSubwarpTokens) {
    return selection::too_large("V", p.vocabulary, selection::kMaxSubwarpTokens);
  }
  if (p.k > selection::kMaxSubwarpK) {
    return selection::too_large("k", p.k, selection::kMaxSubwarpK);
  }
  return p.rows > kMaxRows ? selection::too_large("rows", p.rows, kMaxRows) : "";
}

SubwarpArgs subwarp_args(const SoftmaxTopkProblem& p) {
  SubwarpArgs args;
  args.p = p;
  args.params.input = p;
  args.params.rows = static_cast<int>(p.rows);
  args.params.vocabulary = static_cast<int>(p.vocabulary);
  args.params.vectors = selection::rows_aligned16(p);
  args.k = static_cast<int>(p.k);
  return args;
}

}  // namespace

std::string softmax_topk_subwarp_smem_refuses(const Context& /*context*/,
                                              const SoftmaxTopkProblem& p) {
  if (std::string refusal = subwarp_refusal(p); !refusal.empty()) return refusal;
  if (!p.has_raw_logits()) return selection::processing_refusal(p);
  const std::int64_t min_tokens = max_register_tokens(p) + 1;
  return p.vocabulary < min_tokens ? selection::too_small("V", p.vocabulary, min_tokens) : "";
}

std::string softmax_topk_subwarp_refuses(const Context& /*context*/, const SoftmaxTopkProblem& p) {
  if (std::string refusal = subwarp_refusal(p); !refusal.empty()) return refusal;
  if (!p.has_raw_logits() || p.vocabulary <= max_register_tokens(p)) return "";
  return selection::too_large("V of raw logits", p.vocabulary, max_register_tokens(p));
}

void softmax_topk_subwarp_smem(Context& context, const SoftmaxTopkProblem& p) {
  const cuda::DeviceScope scope(context.device().index);
  cuda::visit_dtype(p.dtype, [&]<class T>() { launch_subwarp_smem<T>(context, subwarp_args(p)); });
}

void softmax_topk_subwarp(Context& context, const SoftmaxTopkProblem& p) {
  const cuda::DeviceScope scope(context.device().index);
  cuda::visit_dtype(p.dtype, [&]<class T>() { launch_subwarp<T>(context, subwarp_args(p)); });
}

}  // namespace touchstone::topk
