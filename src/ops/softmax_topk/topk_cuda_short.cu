// Rows of few tokens, very many of them: expert routing. A row is read once and shared by 1 to 32
// neighboring lanes. It waits in shared memory, where it costs no registers and many more rows can
// be on their way; very short rows, and those with a bias or a mask, are loaded into registers.
//
// What limits these rows is not memory but comparisons, so few tokens are compared in full. A row
// is cut into groups of four neighboring tokens. The eight best tokens lie in the eight groups
// with the best maxima (of equal maxima the earlier group has the earlier token), so groups are
// ranked first and only the tokens of eight groups after that. Those are loaded again.
//
// Lists of keys are merged across lanes in halves: after the first merge the even lane of a pair
// has the better four of its eight keys and the odd lane the others. That is half the comparisons
// of two lanes with all eight.
#include <algorithm>
#include <string>
#include <type_traits>

#include "cuda/launch.h"
#include "cuda/tensor_core.cuh"
#include "ops/softmax_topk/topk_cuda.cuh"
#include "ops/softmax_topk/topk_short_team.cuh"

namespace touchstone::topk {
namespace {

constexpr std::int64_t kLongestRow = 1024;
constexpr std::int64_t kMaxRows = std::int64_t{1} << 30;  // with room for a step of the whole grid

// A row between its selection and its outputs.
template <int kPlaces>
struct Answer {
  float exponent[kPlaces];  // of the places, to base 2, against the row's reference
  std::int32_t token[kPlaces];
  float sum;
  bool huge;  // the reference is the largest value itself
  std::int32_t status;

  __device__ bool is_one() const { return (status & (kRowHasNan | kRowBadParameter)) == 0; }
};

// What the plain arithmetic cannot do: NaN, +inf, nothing allowed, no temperature, large exponents.
// All lanes of a warp come here when one row of it must; the other rows keep what they have.
template <class Row, class ThisTeam, int kPlaces>
__device__ void answer_rare(const ThisTeam& team, const Row& row, float scale, float largest,
                            bool rare, const float (&values)[kPlaces], Answer<kPlaces>& answer) {
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
  nans = team.sum(nans);
  sum = team.sum(sum);
  if (!rare) return;
  if (scale == 0 || nans != 0) {
    answer.status = scale == 0 ? kRowBadParameter : kRowHasNan;
    answer.sum = not_a_number();
#pragma unroll
    for (int j = 0; j < kPlaces; ++j) {
      answer.exponent[j] = not_a_number();
      answer.token[j] = -1;
    }
    return;
  }
  answer.status = (infinite ? kRowHasInfinity : 0) | (masked ? kRowAllMasked : 0);
  // With 1 for a sum of nothing, probabilities are 0 and logarithms -inf.
  answer.sum = masked ? 1.0F : sum;
  answer.huge = true;
#pragma unroll
  for (int j = 0; j < kPlaces; ++j) answer.exponent[j] = exponent(values[j]);
}

// A lane's neighboring places of a row, several in one store where they can be.
template <int kPlaces>
__device__ void put_places(const ShortArgs& args, int row, int first,
                           const std::int32_t (&token)[kPlaces], const float (&weights)[kPlaces],
                           const float (&logarithms)[kPlaces], float total) {
  constexpr int kTogether = kPlaces >= 4 ? 4 : 2;
  using Floats = std::conditional_t<kTogether == 4, float4, float2>;
  using Ints = std::conditional_t<kTogether == 4, int4, int2>;
  const Topk& p = args.p;
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(total));
#pragma unroll
  for (int j = 0; j < kPlaces; j += kTogether) {
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
    if (!args.wide_places) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (first + j + i >= args.k) return;
        put_index(p, at + i, index[i]);
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

// By the lane that has place k - 1, and so knows whether it is masked.
template <int kPlaces>
__device__ void put_row(const ShortArgs& args, int row, int first, const Answer<kPlaces>& answer,
                        const float (&values)[kPlaces], const Weights& weights) {
  const Topk& p = args.p;
  if (first >= args.k || args.k > first + kPlaces) return;
  if (p.log_sum_exp != nullptr) {
    p.log_sum_exp[row] = answer.is_one() ? weights.log_sum_exp() : not_a_number();
  }
  if (p.status == nullptr) return;
  std::int32_t status = answer.status;
  unsigned masked = 0;  // one bit per place: an index known at run time would need memory
#pragma unroll
  for (int j = 0; j < kPlaces; ++j) masked |= values[j] == -infinity() ? 1U << j : 0U;
  if (answer.is_one() && (masked >> (args.k - 1 - first) & 1U) != 0) status |= kRowFewerThanK;
  p.status[row] = status;
}

template <class Row, int kLanes, int kChunks>
__device__ void answer_row(const Team<Row, kLanes, kChunks>& team, const Row& row,
                           const typename Row::Place& place, float scale, bool there) {
  constexpr int kPlaces = Team<Row, kLanes, kChunks>::kPlaces;
  const ShortArgs& args = place.args;
  Chosen<kPlaces> chosen;
  float largest;
  team.choose(row, place, chosen, largest);

  // Rounded here and now, so that all exponents are against the same reference.
  const float reference = __fmul_rn(largest, scale);
  Answer<kPlaces> answer;
  answer.sum = team.sum_of_weights(row, scale, reference);
  answer.huge = false;
  answer.status = 0;
#pragma unroll
  for (int j = 0; j < kPlaces; ++j) {
    answer.token[j] = chosen.token[j];
    answer.exponent[j] = fmaf(chosen.value[j], scale, -reference);
  }
  const auto& values = chosen.value;
  // Any NaN shows in the sum. Written so that NaN is rare.
  const bool rare = !(fabsf(reference) < kLargeExponent && answer.sum < 0x1p100F && scale > 0);
  if (__any_sync(~0U, rare)) {
    answer_rare(team, row, scale, largest, rare, values, answer);
  }

  const int first = team.first_place();
  float weights[kPlaces];
#pragma unroll
  for (int j = 0; j < kPlaces; ++j) weights[j] = exp2f(answer.exponent[j]);
  float total = answer.sum;
  if (args.p.renormalize) {
    float kept = 0;
#pragma unroll
    for (int j = 0; j < kPlaces; ++j) kept += first + j < args.k ? weights[j] : 0.0F;
#pragma unroll
    for (int offset = 1; offset < kLanes && offset < 4; offset *= 2) {
      kept += from_lane_xor(kept, offset);
    }
    total = kept > 0 ? kept : 1.0F;  // 0: nothing allowed
  }
  if (!there || !team.writes()) return;
  const Weights against{args.p.log_probabilities != nullptr || args.p.log_sum_exp != nullptr
                            ? inverse_temperature(args.p, place.row)
                            : 1.0,
                        scale,
                        largest,
                        {answer.huge ? largest : reference, answer.sum},
                        answer.huge};
  float logarithms[kPlaces] = {};
  if (args.p.log_probabilities != nullptr) {
#pragma unroll
    for (int j = 0; j < kPlaces; ++j) {
      logarithms[j] = answer.is_one() ? against.log_probability(values[j], total) : not_a_number();
    }
  }
  put_places(args, place.row, first, answer.token, weights, logarithms, total);
  if (args.p.log_sum_exp != nullptr || args.p.status != nullptr) {
    put_row(args, place.row, first, answer, values, against);
  }
}

// Of rows in registers: as many blocks as fit.
template <class Row>
struct Layout {
  static constexpr int kThreads = Row::kPrefixes ? 128 : 256;
  static constexpr int kBlocksPerSm = Row::kPrefixes ? 5 : sizeof(typename Row::K) == 4 ? 3 : 2;
};

template <class Row, int kLanes, int kChunks>
__global__ void __launch_bounds__(Layout<Row>::kThreads, Layout<Row>::kBlocksPerSm)
    short_kernel(const __grid_constant__ ShortArgs args) {
  using Place = RowPlace<typename Row::Logit>;
  constexpr int kRows = 32 / kLanes;  // of a warp
  constexpr int kThreads = Layout<Row>::kThreads;
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const Team<Row, kLanes, kChunks> team{lane % kLanes};
  // A warp takes its rows together: rows behind the last one are copies of it, not written.
  const int last = args.rows - 1;
  const int step = static_cast<int>(gridDim.x) * (kThreads / 32) * kRows;
  int first = static_cast<int>(blockIdx.x * (kThreads / 32) + threadIdx.x / 32) * kRows;
  const int offset = lane / kLanes;
  if (first > last) return;
  if constexpr (cuda::kHopper) {
    cuda::pdl_launch_dependents();
    ask_ahead(Place(args, min(first + offset, last)), team.lane);
    cuda::pdl_wait();
  }
  Row next;
  if constexpr (Row::kLoadsAhead) next.load(Place(args, min(first + offset, last)), team.lane);
  const float common_scale =
      args.p.temperature == nullptr ? exponent_scale(inverse_temperature(args.p, 0)) : 0.0F;
#pragma unroll 1
  for (; first <= last; first += step) {
    const Place place(args, min(first + offset, last));
    Row row;
    if constexpr (Row::kLoadsAhead) {
      row = next;
      if (first + step <= last) {
        next.load(Place(args, min(first + step + offset, last)), team.lane);
      }
    } else {
      row.load(place, team.lane);
    }
    const float scale = args.p.temperature == nullptr
                            ? common_scale
                            : exponent_scale(inverse_temperature(args.p, place.row));
    answer_row(team, row, place, scale, first + offset <= last);
  }
}

// Of rows in shared memory: a warp does its rows and is gone.
constexpr int kTileWarps = 4;
constexpr int kTileBlocksPerSm = 8;

template <class Row, int kLanes, int kChunks>
__global__ void __launch_bounds__(32 * kTileWarps, kTileBlocksPerSm)
    tile_kernel(const __grid_constant__ ShortArgs args) {
  using T = typename Row::Logit;
  using RowTile = Tile<T, kLanes>;
  __shared__ __align__(128) unsigned char tiles[kTileWarps][RowTile::kBytes];
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const auto warp = static_cast<int>(threadIdx.x / 32);
  const Team<Row, kLanes, kChunks> team{lane % kLanes};
  const int first = (static_cast<int>(blockIdx.x) * kTileWarps + warp) * RowTile::kRows;
  if (first >= args.rows) return;
  const int rows = min(RowTile::kRows, args.rows - first);
  // Lanes without a row do the last one, and do not write.
  const int own = min(lane / kLanes, rows - 1);
  const TilePlace<T, kLanes> place(args, first + own, {cuda::shared_address(tiles[warp])}, own);
  if constexpr (cuda::kHopper) {
    cuda::pdl_launch_dependents();
    ask_ahead(place, team.lane);
    cuda::pdl_wait();
  }
  place.tile.fill(args, first, rows, lane);
  const float scale = exponent_scale(inverse_temperature(args.p, place.row));
  cuda::wait_copies<0>();
  __syncwarp();
  Row row;
  row.load(place, team.lane);
  answer_row(team, row, place, scale, lane / kLanes < rows);
}

bool aligned(const void* pointer, std::int64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % static_cast<std::uintptr_t>(bytes) == 0;
}

// What depends on how many lanes share a row.
template <class Row, int kLanes, int kChunks>
void set_layout(ShortArgs& args) {
  constexpr int kPlaces = Team<Row, kLanes, kChunks>::kPlaces;
  constexpr int kTogether = kPlaces >= 4 ? 4 : 2;  // places in one store
  const Topk& p = args.p;
  args.full = args.vectors && p.vocabulary == kChunk * kChunks * kLanes;
  args.packed = args.full && p.logits_stride == p.vocabulary;
  args.wide_places = p.k % kTogether == 0 && aligned(p.probabilities, 4 * kTogether) &&
                     aligned(p.log_probabilities, 4 * kTogether) &&
                     aligned(p.indices, p.wide_indices ? 16 : 4 * kTogether);
}

template <class Row, int kLanes, int kChunks>
void launch_lanes(Context& context, ShortArgs args) {
  set_layout<Row, kLanes, kChunks>(args);
  using ThisLayout = Layout<Row>;
  constexpr std::int64_t kBlockRows = ThisLayout::kThreads / kLanes;
  const std::int64_t needed = (args.p.rows + kBlockRows - 1) / kBlockRows;
  const std::int64_t resident =
      std::int64_t{cuda::device_attribute(context, cudaDevAttrMultiProcessorCount)} *
      ThisLayout::kBlocksPerSm;
  const cuda::LaunchShape shape{.blocks = static_cast<unsigned>(std::min(needed, resident)),
                                .threads = ThisLayout::kThreads,
                                .pdl = cuda::is_hopper(context)};
  cuda::launch(context, "softmax_topk short_kernel", short_kernel<Row, kLanes, kChunks>, shape,
               args);
}

template <class Row, int kLanes, int kChunks>
void launch_tiles(Context& context, ShortArgs args) {
  set_layout<Row, kLanes, kChunks>(args);
  constexpr std::int64_t kBlockRows = kTileWarps * 32 / kLanes;
  const cuda::LaunchShape shape{
      .blocks = static_cast<unsigned>((args.p.rows + kBlockRows - 1) / kBlockRows),
      .threads = 32 * kTileWarps,
      .pdl = cuda::is_hopper(context)};
  cuda::launch(context, "softmax_topk tile_kernel", tile_kernel<Row, kLanes, kChunks>, shape, args);
}

// 16-bit logits as they are, 64 tokens to a lane: lanes with 32 need more instructions in all.
template <class T, int kLanes>
void launch_narrow(Context& context, const ShortArgs& args) {
  if constexpr (kLanes < 16) {
    if (args.p.vocabulary > 8 * kChunk * kLanes) return launch_narrow<T, 2 * kLanes>(context, args);
  }
  launch_tiles<NarrowRow<T, kLanes, 8, TilePart<T, kLanes, 8>>, kLanes, 8>(context, args);
}

// f32 logits, or any with a bias or a mask: 32 tokens to a lane.
template <class T, int kLanes>
void launch_wide(Context& context, const ShortArgs& args) {
  if constexpr (kLanes < 32) {
    if (args.p.vocabulary > 4 * kChunk * kLanes) return launch_wide<T, 2 * kLanes>(context, args);
  }
  if constexpr (std::is_same_v<T, float>) {
    if (args.p.bias == nullptr && args.p.allowed == nullptr) {
      using Row = PrefixRow<TileRow<T, kLanes, 4>, kLanes, 4>;
      return launch_tiles<Row, kLanes, 4>(context, args);
    }
  }
  launch_lanes<PrefixRow<WideRow<T, kLanes, 4>, kLanes, 4>, kLanes, 4>(context, args);
}

template <class T>
void launch_short(Context& context, const ShortArgs& args) {
  const std::int64_t vocabulary = args.p.vocabulary;
  if constexpr (sizeof(T) == 2) {
    if (args.p.bias == nullptr && args.p.allowed == nullptr) {
      if (vocabulary <= kChunk) return launch_lanes<NarrowRow<T, 1, 1>, 1, 1>(context, args);
      if (vocabulary <= 4 * kChunk) return launch_lanes<NarrowRow<T, 1, 4>, 1, 4>(context, args);
      if (vocabulary <= 8 * kChunk) return launch_lanes<NarrowRow<T, 2, 4>, 2, 4>(context, args);
      return launch_narrow<T, 2>(context, args);
    }
  }
  if (vocabulary <= 4 * kChunk) return launch_lanes<WideRow<T, 1, 4>, 1, 4>(context, args);
  launch_wide<T, 4>(context, args);
}

}  // namespace

std::string softmax_topk_short_refuses(const Context& /*context*/, const Topk& p) {
  if (p.vocabulary > kLongestRow) return "rows have more than 1024 tokens";
  if (p.k > kList) return "k is more than 8";
  if (p.rows > kMaxRows) return "rows are counted in 32 bits";
  return "";
}

void softmax_topk_short(Context& context, const Topk& p) {
  const cuda::DeviceScope scope(context.device().index);
  ShortArgs args;
  args.p = p;
  args.rows = static_cast<int>(p.rows);
  args.vocabulary = static_cast<int>(p.vocabulary);
  args.k = static_cast<int>(p.k);
  args.vectors = aligned(p.logits, 16) && p.logits_stride * size_of(p.dtype) % 16 == 0;
  visit_float_dtype(p.dtype, [&]<class T>() {
    if constexpr (sizeof(T) <= 4) launch_short<T>(context, args);
  });
}

}  // namespace touchstone::topk
