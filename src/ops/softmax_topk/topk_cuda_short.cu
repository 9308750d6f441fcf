// Rows of few tokens, very many of them: expert routing. A row is loaded once into the registers of
// 1 to 32 neighbouring lanes and is finished there.
//
// What limits these rows is not memory but comparisons, so few tokens are compared in full. A row
// is cut into groups of four neighbouring tokens. The eight best tokens lie in the eight groups
// with the best maxima (of equal maxima the earlier group has the earlier token), so groups are
// ranked first and only the tokens of eight groups after that. Those are loaded again, 8 bytes per
// group, out of the first-level cache.
//
// Lists of keys are merged across lanes in halves: after the first merge the even lane of a pair
// has the better four of its eight keys and the odd lane the others. That is half the comparisons
// of two lanes with all eight.
#include <algorithm>
#include <string>
#include <type_traits>

#include "cuda/launch.h"
#include "ops/softmax_topk/topk_cuda.cuh"
#include "ops/softmax_topk/topk_cuda_short.cuh"

namespace touchstone::topk {
namespace {

constexpr unsigned kAllLanes = 0xffffffffU;
constexpr std::int64_t kLongestRow = 1024;
constexpr std::int64_t kMostRows = std::int64_t{1} << 30;  // with room for a step of the whole grid

template <class K>
__device__ K from_lane_xor(K key, int offset) {
  return __shfl_xor_sync(kAllLanes, key, offset);
}

// The lanes that share one row, and how they find its best tokens. `Row` holds its values.
template <class Row, int kLanes, int kChunks>
struct Team {
  using K = typename Row::K;
  using Place = RowPlace<typename Row::Logit>;
  // Of the eight places a lane ends up with these; beyond four lanes the others have copies.
  static constexpr int kPlaces = kLanes >= 4 ? 2 : kList / kLanes;
  static constexpr bool kRankGroups = kLanes * kChunks >= 16;
  static constexpr int kPicks = kLanes == 2 ? 4 : 2;  // of the eight best groups

  int lane;  // within the row

  __device__ int first_place() const {
    if constexpr (kLanes == 1) return 0;
    return kLanes == 2 ? 4 * lane : 4 * (lane & 1) + (lane & 2);
  }
  __device__ bool writes() const { return lane < 4; }

  // Two lanes' sorted eight become their best eight: four sorted keys in each lane.
  __device__ void share_in_pair(const K (&list)[kList], K (&half)[4]) const {
    K best[kList];
#pragma unroll
    for (int i = 0; i < kList; ++i) {
      best[i] = larger(list[i], from_lane_xor(list[kList - 1 - i], 1));
    }
    // One lane has this bitonic sequence reversed, which pairs the same keys.
#pragma unroll
    for (int i = 0; i < 4; ++i) half[i] = one_of((lane & 1) == 0, best[i], best[i + 4]);
    sort_bitonic_four(half);
  }

  // The best eight of two pairs of lanes, `offset` lanes apart: four keys in each, bitonic.
  __device__ void merge_pairs(K (&half)[4], int offset) const {
    K best[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) best[i] = larger(half[i], from_lane_xor(half[3 - i], offset ^ 1));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      half[i] = one_of((lane & 1) == 0, best[i], from_lane_xor(best[i], 1));
    }
  }

  // The best eight groups of a lane, sorted.
  __device__ void own_groups(const Row& row, K (&list)[kList]) const {
    row.group_keys(0, lane, list);
    sort_eight(list);
    if constexpr (kChunks > 4) {
      K more[kList];
      row.group_keys(4, lane, more);
      sort_eight(more);
      keep_best(list, more);
    }
  }

  // For every lane of a pair or a quad its share of the eight best groups, and the best of all.
  __device__ void rank_groups(const Row& row, K (&picked)[kPicks], K& best) const {
    K list[kList];
    own_groups(row, list);
    // Of the last merge only the set counts. The even lane of a pair has the better half of the
    // pair's best in the order in which the odd lane has the other half, so that the first of each
    // are all of them.
    if constexpr (kLanes == 2) {
#pragma unroll
      for (int i = 0; i < kPicks; ++i) {
        picked[i] = larger(list[i], from_lane_xor(list[kList - 1 - i], 1));
      }
      best = larger(list[0], from_lane_xor(list[0], 1));
    } else {
      K half[4];
      share_in_pair(list, half);
#pragma unroll
      for (int offset = 4; offset < kLanes; offset *= 2) {
        merge_pairs(half, offset);
        sort_bitonic_four(half);
      }
      // The even lane of one pair and the odd lane of the other.
      picked[0] = larger(half[0], from_lane_xor(half[3], 3));
      picked[1] = larger(half[1], from_lane_xor(half[2], 3));
      best = larger(half[0], from_lane_xor(half[0], 2));
      best = __shfl_sync(kAllLanes, best, 0, 4);
    }
  }

  // This lane's places, sorted, and the value of the row's best token.
  __device__ void select(const Row& row, const Place& place, K (&mine)[kPlaces],
                         float& largest) const {
    if constexpr (kRankGroups) {
      K picked[kPicks];
      K best;
      rank_groups(row, picked, best);
      largest = Row::value_of(best);
      K lists[kPicks / 2][kList];
      Row::group_token_keys(place, picked, lists);
      sort_eight(lists[0]);
      if constexpr (kLanes == 2) {
        sort_eight(lists[1]);
        keep_best(lists[0], lists[1]);
        share_in_pair(lists[0], mine);
      } else {
        K half[4];
        share_in_pair(lists[0], half);
        merge_pairs(half, 2);
        mine[0] = one_of((lane & 2) == 0, half[0], half[2]);
        mine[1] = one_of((lane & 2) == 0, half[1], half[3]);
        order(mine[0], mine[1]);
      }
    } else {
      K list[kList];
      row.chunk_keys(0, lane, list);
      sort_eight(list);
#pragma unroll
      for (int c = 1; c < kChunks; ++c) {
        K more[kList];
        row.chunk_keys(c, lane, more);
        sort_eight(more);
        keep_best(list, more);
      }
      if constexpr (kLanes == 1) {
#pragma unroll
        for (int i = 0; i < kList; ++i) mine[i] = list[i];
        largest = Row::value_of(list[0]);
      } else {
        share_in_pair(list, mine);
        largest = Row::value_of(__shfl_sync(kAllLanes, mine[0], 0, 2));
      }
    }
  }

  __device__ float sum(float part) const {
#pragma unroll
    for (int offset = 1; offset < kLanes; offset *= 2) part += from_lane_xor(part, offset);
    return part;
  }
};

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
                           const RowPlace<typename Row::Logit>& place, float scale, bool there) {
  constexpr int kPlaces = Team<Row, kLanes, kChunks>::kPlaces;
  const ShortArgs& args = place.args;
  typename Row::K mine[kPlaces];
  float largest;
  team.select(row, place, mine, largest);

  // Rounded here and now, so that all exponents are against the same reference.
  const float reference = __fmul_rn(largest, scale);
  float parts[2] = {0, 0};  // even and odd tokens
  int i = 0;
  row.each_value([&](float v) { parts[i++ & 1] += exp2_fast(fmaf(v, scale, -reference)); });
  Answer<kPlaces> answer;
  answer.sum = team.sum(parts[0] + parts[1]);
  answer.huge = false;
  answer.status = 0;
  float values[kPlaces];
#pragma unroll
  for (int j = 0; j < kPlaces; ++j) {
    values[j] = Row::value_of(mine[j]);
    answer.token[j] = static_cast<std::int32_t>(id_of(mine[j]));
    answer.exponent[j] = fmaf(values[j], scale, -reference);
  }
  // Any NaN shows in the sum. Written so that NaN is rare.
  const bool rare = !(fabsf(reference) < kLargeExponent && answer.sum < 0x1p100F && scale > 0);
  if (__any_sync(kAllLanes, rare)) {
    answer_rare(team, row, scale, largest, rare, values, answer);
  }

  const int first = team.first_place();
  float weights[kPlaces];
#pragma unroll
  for (int j = 0; j < kPlaces; ++j) weights[j] = exp2f(answer.exponent[j]);
  float total = answer.sum;
  if (args.p.renormalise) {
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

// How a grid is laid out. Lanes with 64 tokens have no registers for the next row: each warp does
// its rows and is gone, in small blocks.
template <class Row, int kChunks>
struct Layout {
  static constexpr bool kOnce = kChunks == 8;
  static constexpr int kThreads = kOnce ? 64 : 256;
  static constexpr int kBlocksPerSm = kOnce ? 10 : sizeof(typename Row::K) == 4 ? 3 : 2;
};

// Has a lane's part of a row brought to the L2 cache: a line, as a lane has no more.
template <class T>
__device__ void ask_ahead(const RowPlace<T>& place, int lane) {
  const int at = lane * (128 / static_cast<int>(sizeof(T)));
  if (at < place.args.vocabulary) asm volatile("prefetch.global.L2 [%0];" ::"l"(place.logits + at));
}

template <class Row, int kLanes, int kChunks>
__global__ void __launch_bounds__(Layout<Row, kChunks>::kThreads,
                                  Layout<Row, kChunks>::kBlocksPerSm)
    short_kernel(const __grid_constant__ ShortArgs args) {
  using Place = RowPlace<typename Row::Logit>;
  constexpr int kRows = 32 / kLanes;  // of a warp
  constexpr int kThreads = Layout<Row, kChunks>::kThreads;
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const Team<Row, kLanes, kChunks> team{lane % kLanes};
  // A warp takes its rows together: rows behind the last one are copies of it, not written.
  const int last = args.rows - 1;
  const int step = static_cast<int>(gridDim.x) * (kThreads / 32) * kRows;
  int first = static_cast<int>(blockIdx.x * (kThreads / 32) + threadIdx.x / 32) * kRows;
  const int offset = lane / kLanes;
  if (first > last) return;
  if constexpr (cuda::kHopper) {
    cuda::let_next_grid_start();
    ask_ahead(Place(args, min(first + offset, last)), team.lane);
    cuda::wait_for_previous_grids();
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

bool aligned(const void* pointer, std::int64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % static_cast<std::uintptr_t>(bytes) == 0;
}

template <class Row, int kLanes, int kChunks>
void launch_lanes(Context& context, ShortArgs args) {
  constexpr int kPlaces = Team<Row, kLanes, kChunks>::kPlaces;
  constexpr int kTogether = kPlaces >= 4 ? 4 : 2;  // places in one store
  const Topk& p = args.p;
  args.full = args.vectors && p.vocabulary == kChunk * kChunks * kLanes;
  args.wide_places = p.k % kTogether == 0 && aligned(p.probabilities, 4 * kTogether) &&
                     aligned(p.log_probabilities, 4 * kTogether) &&
                     aligned(p.indices, p.wide_indices ? 16 : 4 * kTogether);
  using ThisLayout = Layout<Row, kChunks>;
  constexpr std::int64_t kBlockRows = ThisLayout::kThreads / kLanes;
  const std::int64_t needed = (p.rows + kBlockRows - 1) / kBlockRows;
  const std::int64_t resident =
      std::int64_t{cuda::device_attribute(context, cudaDevAttrMultiProcessorCount)} *
      ThisLayout::kBlocksPerSm;
  const cuda::LaunchShape shape{
      .blocks = static_cast<unsigned>(ThisLayout::kOnce ? needed : std::min(needed, resident)),
      .threads = ThisLayout::kThreads,
      .overlap_previous = cuda::device_attribute(context, cudaDevAttrComputeCapabilityMajor) >= 9};
  cuda::launch(context, "softmax_topk short_kernel", short_kernel<Row, kLanes, kChunks>, shape,
               args);
}

// The fewest lanes that hold a row, 32 tokens each.
template <class T, bool kNarrow, int kLanes>
void launch_for_width(Context& context, const ShortArgs& args) {
  if constexpr (kLanes < 32) {
    if (args.p.vocabulary > kChunk * 4 * kLanes) {
      // Wide rows have no kernel of two lanes: one less to compile.
      constexpr int kNext = kNarrow || kLanes != 1 ? 2 * kLanes : 4;
      return launch_for_width<T, kNarrow, kNext>(context, args);
    }
  }
  if constexpr (kNarrow && kLanes == 1) {
    if (args.p.vocabulary <= kChunk) {
      return launch_lanes<NarrowRow<T, 1, 1>, 1, 1>(context, args);
    }
  }
  if constexpr (kNarrow && kLanes >= 4) {  // half as many lanes need fewer instructions for a row
    launch_lanes<NarrowRow<T, kLanes / 2, 8>, kLanes / 2, 8>(context, args);
  } else if constexpr (kNarrow) {
    launch_lanes<NarrowRow<T, kLanes, 4>, kLanes, 4>(context, args);
  } else {
    launch_lanes<WideRow<T, kLanes, 4>, kLanes, 4>(context, args);
  }
}

}  // namespace

std::string softmax_topk_short_refuses(const Context& /*context*/, const Topk& p) {
  if (p.vocabulary > kLongestRow) return "rows have more than 1024 tokens";
  if (p.k > kList) return "k is more than 8";
  if (p.rows > kMostRows) return "rows are counted in 32 bits";
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
    if constexpr (sizeof(T) == 2) {
      if (p.bias == nullptr && p.allowed == nullptr) {
        return launch_for_width<T, true, 1>(context, args);
      }
    }
    if constexpr (sizeof(T) <= 4) launch_for_width<T, false, 1>(context, args);
  });
}

}  // namespace touchstone::topk
