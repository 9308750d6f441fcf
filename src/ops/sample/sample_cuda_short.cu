// Sampling of short rows, as many as there may be: a warp has up to 16 of them brought to shared
// memory. Rows that want at most eight tokens are done all at once, by the lanes that share them as
// in softmax_topk, if there are enough of them. The others, and those that are too close to call,
// are done one by one by the whole warp. Rows that are not usual get the token kLeft.
#include <algorithm>
#include <type_traits>

#include "cuda/launch.h"
#include "ops/sample/sample_finish.cuh"
#include "ops/sample/sample_kernels.h"
#include "ops/softmax_topk/topk_maxima_launch.h"
#include "ops/softmax_topk/topk_short_team.cuh"
#include "ops/softmax_topk/topk_warp.cuh"

namespace touchstone::sampling {
namespace {

constexpr int kThreads = 128;
constexpr int kMinWaves = 2;  // so that the last one is short
constexpr int kWarps = kThreads / 32;

// By the tokens of a lane of a warp that works alone: they are in registers.
template <int kEach>
constexpr int kBlocksPerSm = kEach == 4    ? 6
                             : kEach == 8  ? 5
                             : kEach == 16 ? 4
                                           : 3;

struct ShortParams {
  Sampling p;
  topk::ShortArgs rows{};
  int rows_of_warp = 1;
  bool by_teams = false;
};

// The tokens of a lane, every 32nd of a row, as words that grow with the order: of 16-bit values
// with the token below them, of f32 without. 0 is none.
template <class T, int kEach>
struct LaneKeys {
  static constexpr bool kNarrow = sizeof(T) == 2;
  std::uint32_t word[kEach];

  __device__ void take(int i, float value, int lane) {
    word[i] = 0;
    if (!(value > -topk::infinity())) return;
    word[i] = topk::ordered(value);
    if constexpr (kNarrow) word[i] = narrowed(word[i]) << 16 | (0xffffU ^ (i * 32U + lane));
  }

  // The key of a word, at this place of a lane.
  __device__ static Key key_at(std::uint32_t word, int i, int lane) {
    if constexpr (!kNarrow) return static_cast<Key>(word) << 32 | ~(i * 32U + lane);
    return static_cast<Key>(widened(word >> 16)) << 32 | ~(0xffffU ^ (word & 0xffffU));
  }

  // Takes the first of the warp out; 0 where none is left. In every lane.
  __device__ Key pop(int lane) {
    std::uint32_t best = word[0];
#pragma unroll
    for (int i = 1; i < kEach; ++i) best = max(best, word[i]);
    best = __reduce_max_sync(~0U, best);
    if (best == 0) return 0;
    if constexpr (kNarrow) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) word[i] = word[i] == best ? 0 : word[i];
      return key_at(best, 0, 0);
    } else {
      unsigned token = ~0U;
#pragma unroll
      for (int i = kEach - 1; i >= 0; --i) token = word[i] == best ? i * 32U + lane : token;
      token = __reduce_min_sync(~0U, token);
#pragma unroll
      for (int i = 0; i < kEach; ++i) word[i] = token == i * 32U + lane ? 0 : word[i];
      return static_cast<Key>(best) << 32 | ~token;
    }
  }

 private:
  // The ordered words of 16-bit values differ in 16 bits: those of bf16 in the upper ones, and
  // those of f16 are made of its own.
  __device__ static std::uint32_t narrowed(std::uint32_t word) {
    if constexpr (std::is_same_v<T, Bf16>) return word >> 16;
    const std::uint32_t bits = __half_as_ushort(__float2half_rn(topk::unordered(word))) & 0xffffU;
    return (bits & 0x8000U) != 0 ? 0xffffU ^ bits : bits | 0x8000U;
  }
  __device__ static std::uint32_t widened(std::uint32_t word) {
    if constexpr (std::is_same_v<T, Bf16>) {
      return (word & 0x8000U) != 0 ? word << 16 : word << 16 | 0xffffU;
    }
    const std::uint32_t bits = (word & 0x8000U) != 0 ? word & 0x7fffU : 0xffffU ^ word;
    return topk::ordered(__half2float(__ushort_as_half(static_cast<unsigned short>(bits))));
  }
};

// Beyond so many tokens it is quicker to rank them than to take them one by one.
constexpr int kFewPops = 12;
constexpr int kMaxTaken = 96;  // that are ranked

// Of a warp.
struct SortMemory {
  Key sorted[kWarpTokens];
  Key taken[kMaxTaken];
};

// Puts the first k in order; returns k, or 0 where fewer are above -inf, or too many are equal.
template <class T, int kEach>
__device__ int rank_first(const LaneKeys<T, kEach>& keys, int k, Key* taken, Key* sorted) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint32_t bound = topk::warp_word_reached_by(k, keys.word);
  if (bound == 0) return 0;
  int count = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const bool takes = keys.word[i] >= bound;
    const unsigned votes = __ballot_sync(~0U, takes);
    const int at = count + __popc(votes & ((1U << lane) - 1));
    if (takes && at < kMaxTaken) taken[at] = LaneKeys<T, kEach>::key_at(keys.word[i], i, lane);
    count += __popc(votes);
  }
  if (count > kMaxTaken) return 0;
  __syncwarp();
  for (int own = lane; own < count; own += 32) {
    const Key key = taken[own];
    int before = 0;
    for (int i = 0; i < count; ++i) before += taken[i] > key ? 1 : 0;
    if (before < k) sorted[before] = key;
  }
  return k;
}

// The first k, or all that are above -inf, one by one or by rank; returns how many.
template <class T, int kEach>
__device__ int put_in_order(LaneKeys<T, kEach>& keys, int k, SortMemory& memory) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  __syncwarp();  // the last row's are done with
  int above = k > kFewPops ? rank_first(keys, k, memory.taken, memory.sorted) : 0;
  if (above == 0) {
    for (; above < k; ++above) {
      const Key key = keys.pop(lane);
      if (key == 0) break;
      if (lane == 0) memory.sorted[above] = key;
    }
  }
  __syncwarp();
  return above;
}

__device__ void put_top_token(const Sampling& p, std::int64_t row, int place, Key key,
                              const Weights& weights) {
  if (place >= p.top_count) return;
  const std::int64_t at = row * p.top_count + place;
  put_token(p.top_tokens, p.top_token_dtype, at, topk::token_of(key));
  p.top_log_probabilities[at] = log_probability(weights, topk::value_of(key));
}

__device__ float shuffled(float value, int from) { return __shfl_sync(~0U, value, from); }

// What a row asks for.
struct RowWishes {
  RowControls controls;
  double inverse = 1;
  double uniform;
  int places = 0;  // tokens that are put in order; 0 = the row is left

  __device__ RowWishes(const Sampling& p, std::int64_t row) {
    const std::int64_t seed = p.seed[row];  // all loads before anything waits for one
    const std::int64_t position = p.position[row];
    controls = row_controls(p, row);
    uniform = uniform_of(seed, position);
    if (!wants_few(p, controls)) return;
    places = wanted_places(p, controls, {kWarpTokens, kWarpTokens});
    inverse = 1 / weighing_temperature(controls);
  }

  // Whether the places that a team finds are enough.
  __device__ bool for_team(std::int64_t vocabulary) const {
    return places > 0 && places <= topk::kList && (controls.greedy() || controls.cuts(vocabulary));
  }
  __device__ float scale() const { return topk::exponent_scale(inverse); }

  // Those that another lane has, of what a plain row can ask for.
  __device__ RowWishes of_lane(int lane) const {
    RowWishes other = *this;
    other.controls.temperature = shuffled(controls.temperature, lane);
    other.controls.top_k = __shfl_sync(~0U, controls.top_k, lane);
    other.controls.top_p = shuffled(controls.top_p, lane);
    other.controls.min_p = shuffled(controls.min_p, lane);
    other.inverse = __shfl_sync(~0U, inverse, lane);
    other.uniform = __shfl_sync(~0U, uniform, lane);
    other.places = __shfl_sync(~0U, places, lane);
    return other;
  }
};

// What came out of a row.
struct Outcome {
  Key drawn = 0;  // 0 = the row is left
  float largest = 0;
  RowSum row{};

  __device__ Weights weights(const RowWishes& wishes) const {
    return {wishes.inverse, wishes.scale(), largest, row, false};
  }
};

// The draw of a row that cuts nothing: in f32, as the sums of segments are.
template <int kEach>
__device__ Key draw_by_token_in_warp(const float (&value)[kEach], const Weights& weights, float u) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float sums[kEach];
  float before = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    float sum = topk::exp2_fast((value[i] - weights.largest) * weights.scale);
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const float other = __shfl_up_sync(~0U, sum, step);
      if (lane >= step) sum += other;
    }
    sums[i] = before + sum;
    before += shuffled(sum, 31);
  }
  const float target = u * before;
  unsigned token = ~0U;
  float drawn = 0;
#pragma unroll
  for (int i = kEach - 1; i >= 0; --i) {
    // Sums are rounded, and one without a weight must not be drawn.
    const bool counts = topk::exp2_fast((value[i] - weights.largest) * weights.scale) > 0;
    if (counts && sums[i] > target) {
      token = static_cast<unsigned>(i * 32 + lane);
      drawn = value[i];
    }
  }
  const unsigned first = __reduce_min_sync(~0U, token);
  if (first == ~0U) return 0;
  const unsigned owner = __ballot_sync(~0U, token == first);
  return topk::key_of(shuffled(drawn, __ffs(static_cast<int>(owner)) - 1), first);
}

// As draw_by_warp(), from up to eight tokens in one lane: the place of the token, or -1.
__device__ int draw_in_lane(const float (&value)[topk::kList], int limit, float row,
                            const RowControls& controls, const Weights& weights, double u) {
  float weight[topk::kList];
  float sums[topk::kList];
  float all = 0;
#pragma unroll
  for (int i = 0; i < topk::kList; ++i) {
    weight[i] = i < limit ? topk::exp2_fast((value[i] - weights.largest) * weights.scale) : 0.0F;
    sums[i] = all += weight[i];
  }
  const float base = row > 0 ? row : all;
  const float error = kWarpError * fmaxf(base, all);
  const float needed = controls.top_p * base;
  int kept = row > 0 ? limit + 1 : limit;
  bool close = false;
#pragma unroll
  for (int i = topk::kList - 1; i >= 0; --i) {
    if (i >= limit) continue;
    if (controls.top_p < 1) {
      if (sums[i] >= needed) kept = min(kept, i + 1);
      close = close || fabsf(sums[i] - needed) <= error;
    }
    if (controls.min_p > 0) {
      if (weight[i] < controls.min_p) kept = min(kept, i);
      close = close || fabsf(weight[i] - controls.min_p) <= kWarpError;
    }
  }
  if (kept > limit || kept < 1) return -1;
  float kept_sum = sums[0];
#pragma unroll
  for (int i = 1; i < topk::kList; ++i) kept_sum = i < kept ? sums[i] : kept_sum;
  const float target = static_cast<float>(u) * kept_sum;
  int drawn = kept - 1;
#pragma unroll
  for (int i = topk::kList - 1; i >= 0; --i) {
    if (i >= kept - 1) continue;
    if (sums[i] > target) drawn = i;
    close = close || fabsf(sums[i] - target) <= error;
  }
  return close ? -1 : drawn;
}

// The place that is drawn from the first eight, or -1. `alone`: whether the row takes a whole warp.
__device__ int draw_place(const Sampling& p, const RowWishes& wishes, const Weights& weights,
                          const float (&value)[topk::kList], bool& alone) {
  if (!wishes.for_team(p.vocabulary)) return -1;
  alone = false;
  // Any NaN shows in the sum.
  if (!(fabsf(weights.row.reference) < topk::kLargeExponent && weights.row.sum < 0x1p100F)) {
    return -1;
  }
  int above = 0;
#pragma unroll
  for (int i = 0; i < topk::kList; ++i) {
    above += i < wishes.places && value[i] > -topk::infinity() ? 1 : 0;
  }
  if (above < p.top_count) return -1;
  if (wishes.controls.greedy()) return 0;
  const CutFacts facts = cut_facts(wishes.controls, wishes.places, above, p.vocabulary);
  const int drawn = draw_in_lane(value, facts.limit, facts.whole ? 0.0F : scanned_weight(weights),
                                 wishes.controls, weights, wishes.uniform);
  alone = drawn < 0;
  return drawn;
}

// The sum of a row's weights, by the lanes that share it or by a warp that has every 32nd token in
// a lane: to the bit the same. Tokens of one remainder modulo 32 are added one after the other, in
// stripes where several lanes have some, and then these sums, neighbors first.
template <class Row, int kLanes, int kChunks>
__device__ float sum_by_team(const topk::Team<Row, kLanes, kChunks>& team, const Row& row,
                             float scale, float reference) {
  constexpr int kHalves = kLanes == 2 ? 2 : 1;
  float sums[kHalves][topk::kChunk] = {};
  int i = 0;
  row.each_value([&](float v) {
    sums[i / topk::kChunk % kHalves][i % topk::kChunk] +=
        topk::exp2_fast(fmaf(v, scale, -reference));
    ++i;
  });
#pragma unroll
  for (int step = 4; step >= 1; step /= 2) {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
#pragma unroll
      for (int j = 0; j < step; ++j) sums[h][j] += sums[h][j + step];
    }
  }
  return team.sum(kHalves == 2 ? sums[0][0] + sums[kHalves - 1][0] : sums[0][0]);
}
template <int kLanes, int kEach>
__device__ float sum_by_warp(const float (&value)[kEach], float scale, float reference) {
  constexpr int kStripes = kLanes > 4 ? kLanes / 4 : 1;
  float sums[kStripes] = {};
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    sums[i % kStripes] += topk::exp2_fast(fmaf(value[i], scale, -reference));
  }
  constexpr int kSteps[] = {4, 2, 1, kLanes == 2 ? 16 : 8, kLanes == 2 ? 8 : 16};
#pragma unroll
  for (int s = 0; s < kStripes; ++s) {
#pragma unroll
    for (const int step : kSteps) sums[s] += __shfl_xor_sync(~0U, sums[s], step);
  }
#pragma unroll
  for (int step = 1; step < kStripes; step *= 2) {
#pragma unroll
    for (int s = 0; s < kStripes; s += 2 * step) sums[s] += sums[s + step];
  }
  return sums[0];
}

// By the lanes that share a row.
template <class Team, class Place, class Row>
__device__ Outcome draw_by_team(const Sampling& p, const Team& team, const Place& place,
                                const Row& row, const RowWishes& wishes, bool& alone) {
  topk::Chosen<Team::kPlaces> chosen;
  float largest;
  team.choose(row, place, chosen, largest);
  const float scale = wishes.scale();
  const float reference = __fmul_rn(largest, scale);
  Outcome outcome{0, largest, {reference, sum_by_team(team, row, scale, reference)}};
  float value[topk::kList];
  team.all_values(chosen, value);
  const Weights weights = outcome.weights(wishes);
  const int drawn = draw_place(p, wishes, weights, value, alone);
  const Key key = team.key_at(chosen, max(drawn, 0));
  if (drawn < 0) return outcome;
  outcome.drawn = key;
  if (p.top_count == 0 || !team.writes()) return outcome;
#pragma unroll
  for (int j = 0; j < Team::kPlaces; ++j) {
    const auto of_place = static_cast<std::uint32_t>(chosen.token[j]);
    put_top_token(p, place.row, team.first_place() + j, topk::key_of(chosen.value[j], of_place),
                  weights);
  }
  return outcome;
}

// By the whole warp, with every 32nd token in a lane.
template <int kEach, class T, int kLanes>
__device__ void load_every_32nd(const topk::TilePlace<T, kLanes>& place, float (&value)[kEach]) {
#pragma unroll
  for (int i = 0; i < kEach; ++i)
    value[i] = place.value(i * 32 + static_cast<int>(threadIdx.x % 32));
}
template <int kEach, class T, int kLanes>
__device__ Outcome draw_by_warp_alone(const Sampling& p, const topk::TilePlace<T, kLanes>& place,
                                      const RowWishes& wishes, SortMemory& memory) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float value[kEach];
  load_every_32nd(place, value);
  float largest = value[0];
#pragma unroll
  for (int i = 1; i < kEach; ++i) largest = topk::max_nan(largest, value[i]);
  const bool odd = __any_sync(~0U, isnan(largest));
  largest = topk::warp_max(largest);
  const float scale = wishes.scale();
  const float reference = __fmul_rn(largest, scale);
  // Not for infinities either.
  if (odd || !(fabsf(reference) < topk::kLargeExponent)) return {};
  Outcome outcome{0, largest, {reference, sum_by_warp<kLanes>(value, scale, reference)}};
  const Weights weights = outcome.weights(wishes);
  LaneKeys<T, kEach> keys;
#pragma unroll
  for (int i = 0; i < kEach; ++i) keys.take(i, value[i], lane);
  const int above = put_in_order(keys, wishes.places, memory);
  if (above < p.top_count) return outcome;
  if (!wishes.controls.greedy() && !wishes.controls.cuts(p.vocabulary)) {
    load_every_32nd(place, value);
    outcome.drawn = draw_by_token_in_warp(value, weights, static_cast<float>(wishes.uniform));
  } else {
    outcome.drawn = draw_quickly(memory.sorted, wishes.places, above, p.vocabulary, wishes.controls,
                                 weights, wishes.uniform);
  }
  if (outcome.drawn == 0) return outcome;
  for (int j = lane; j < p.top_count; j += 32) {
    put_top_token(p, place.row, j, memory.sorted[j], weights);
  }
  return outcome;
}

template <class Row, int kLanes, int kChunks>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm<kLanes * kChunks / 4>)
    sample_short_kernel(const __grid_constant__ ShortParams params) {
  using T = typename Row::Logit;
  using RowTile = topk::Tile<T, kLanes>;
  constexpr int kEach = kLanes * kChunks / 4;
  __shared__ __align__(128) unsigned char tiles[kWarps][RowTile::kBytes];
  __shared__ SortMemory memory[kWarps];
  const Sampling& p = params.p;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto warp = static_cast<int>(threadIdx.x / 32);
  const topk::Team<Row, kLanes, kChunks> team{lane % kLanes};
  const std::int64_t first =
      (std::int64_t{blockIdx.x} * kWarps + warp) * std::int64_t{params.rows_of_warp};
  if (first >= p.rows) return;
  const auto rows =
      static_cast<int>(min(static_cast<std::int64_t>(params.rows_of_warp), p.rows - first));
  const int own = min(lane / kLanes, rows - 1);  // lanes without a row do the last one
  const topk::TilePlace<T, kLanes> place(params.rows, static_cast<int>(first) + own,
                                         {cuda::shared_address(tiles[warp])}, own);
  if constexpr (cuda::kHopper) {
    cuda::pdl_launch_dependents();
    topk::ask_ahead(place, team.lane);
    cuda::pdl_wait();
  }
  place.tile.fill(params.rows, static_cast<int>(first), rows, lane);
  const RowWishes wishes(p, place.row);
  cuda::wait_copies<0>();
  __syncwarp();
  Outcome outcome;
  bool alone = wishes.places > 0;
  if (params.by_teams && __any_sync(~0U, wishes.for_team(p.vocabulary))) {
    Row row;
    row.load(place, team.lane);
    outcome = draw_by_team(p, team, place, row, wishes, alone);
  }
  const bool leads = team.lane == 0 && lane / kLanes < rows;
#pragma unroll 1
  for (unsigned left = __ballot_sync(~0U, leads && alone); left != 0; left &= left - 1) {
    const int owner = __ffs(static_cast<int>(left)) - 1;
    const topk::TilePlace<T, kLanes> one(params.rows, static_cast<int>(first) + owner / kLanes,
                                         place.tile, owner / kLanes);
    const Outcome came = draw_by_warp_alone<kEach>(p, one, wishes.of_lane(owner), memory[warp]);
    if (lane == owner) outcome = came;
  }
  if (!leads) return;
  if (outcome.drawn == 0) return put_token(p.token, p.token_dtype, place.row, kLeft);
  put_drawn(p, place.row, outcome.drawn, outcome.weights(wishes), 0);
}

template <class Row, int kLanes, int kChunks>
void launch(Context& context, const Sampling& p) {
  ShortParams params{p};
  params.rows.p.logits = p.logits;
  params.rows.p.logits_stride = p.logits_stride;
  params.rows.vocabulary = static_cast<int>(p.vocabulary);
  params.rows.vectors = topk::rows_on_grid(p.logits, p.logits_stride * size_of(p.dtype));
  params.rows.packed = params.rows.vectors && p.logits_stride == p.vocabulary &&
                       p.vocabulary == topk::kChunk * kChunks * kLanes;
  constexpr int kMaxRows = 32 / kLanes;
  const std::int64_t warps =
      std::int64_t{kBlocksPerSm<kLanes * kChunks / 4>} * kWarps * topk::multiprocessors(context);
  params.rows_of_warp =
      static_cast<int>(std::clamp<std::int64_t>(p.rows / (kMinWaves * warps), 1, kMaxRows));
  // The lanes of one row take as long as those of all.
  params.by_teams = p.rows >= warps && params.rows_of_warp >= std::min(kMaxRows, 8);
  const std::int64_t rows_of_block = kWarps * std::int64_t{params.rows_of_warp};
  const cuda::LaunchShape shape{
      .blocks = static_cast<unsigned>((p.rows + rows_of_block - 1) / rows_of_block),
      .threads = kThreads,
      .pdl = cuda::is_hopper(context)};
  cuda::launch(context, "sample sample_short_kernel", sample_short_kernel<Row, kLanes, kChunks>,
               shape, params);
}

// The fewest lanes that hold a row.
template <class T, int kLanes>
void launch_for_width(Context& context, const Sampling& p) {
  constexpr bool kNarrow = sizeof(T) == 2;
  constexpr int kChunks = kNarrow ? 8 : 4;
  if constexpr (kLanes < (kNarrow ? 16 : 32)) {
    if (p.vocabulary > topk::kChunk * kChunks * kLanes) {
      return launch_for_width<T, 2 * kLanes>(context, p);
    }
  }
  using Part = topk::TilePart<T, kLanes, kChunks>;
  using Row =
      std::conditional_t<kNarrow, topk::NarrowRow<T, kLanes, kChunks, Part>,
                         topk::PrefixRow<topk::TileRow<T, kLanes, kChunks>, kLanes, kChunks>>;
  launch<Row, kLanes, kChunks>(context, p);
}

}  // namespace

bool suits_short(const Sampling& p) {
  return is_plain(p) && p.vocabulary <= 1024 && p.top_count <= kWarpTokens;
}

void sample_short(Context& context, const Sampling& p) {
  topk::visit_logits_dtype(
      p.dtype, [&]<class T>() { launch_for_width<T, sizeof(T) == 2 ? 2 : 4>(context, p); });
}

}  // namespace touchstone::sampling
