// Sampling of short rows, up to 16 per warp, in shared memory. Rows that need at most eight tokens
// are drawn all at once, each by its thread group as in softmax_topk, if there are enough of them.
// The others, and those that are too close to call, are drawn one by one by the whole warp. Rows
// that need the slow path are deferred.
#include <algorithm>
#include <type_traits>

#include "cuda/launch.h"
#include "ops/sample/cuda/sample_epilogue.cuh"
#include "ops/sample/cuda/sample_launch.h"
#include "ops/selection/launch_params.h"
#include "ops/selection/row_sum.cuh"
#include "ops/selection/subwarp_select.cuh"

namespace touchstone::sampling {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;

// CTAs per SM, by the tokens per lane of a whole-warp draw, which are in registers.
template <int kEach>
constexpr int kBlocksPerSm = kEach == 4    ? 6
                             : kEach == 8  ? 5
                             : kEach == 16 ? 4
                                           : 3;

struct SubwarpArgs {
  SampleProblem p;
  selection::SubwarpParams rows{};
  int rows_of_warp = 1;
  bool by_groups = false;
};

// The tokens of a lane, every 32nd of a row, as ordered words: for 16-bit values with the
// complement of the token below them, for f32 without. 0 = none.
template <class T, int kEach>
struct LaneKeys {
  static constexpr bool kNarrow = sizeof(T) == 2;
  std::uint32_t word[kEach];

  __device__ void take(int i, float value, int lane) {
    word[i] = 0;
    if (!(value > -selection::infinity())) return;
    word[i] = selection::ordered(value);
    if constexpr (kNarrow) word[i] = narrowed(word[i]) << 16 | (0xffffU ^ (i * 32U + lane));
  }

  // The key of the i-th word of a lane.
  __device__ static Key key_at(std::uint32_t word, int i, int lane) {
    if constexpr (!kNarrow) return static_cast<Key>(word) << 32 | ~(i * 32U + lane);
    return static_cast<Key>(widened(word >> 16)) << 32 | ~(0xffffU ^ (word & 0xffffU));
  }

  // Removes and returns the largest key of the warp; 0 if none is left. In every lane.
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
  // 16 bits of an ordered word: the upper ones for bf16, those of the f16 value itself for f16.
  __device__ static std::uint32_t narrowed(std::uint32_t word) {
    if constexpr (std::is_same_v<T, Bf16>) return word >> 16;
    const std::uint32_t bits =
        __half_as_ushort(__float2half_rn(selection::unordered(word))) & 0xffffU;
    return (bits & 0x8000U) != 0 ? 0xffffU ^ bits : bits | 0x8000U;
  }
  __device__ static std::uint32_t widened(std::uint32_t word) {
    if constexpr (std::is_same_v<T, Bf16>) {
      return (word & 0x8000U) != 0 ? word << 16 : word << 16 | 0xffffU;
    }
    const std::uint32_t bits = (word & 0x8000U) != 0 ? word & 0x7fffU : 0xffffU ^ word;
    return selection::ordered(__half2float(__ushort_as_half(static_cast<unsigned short>(bits))));
  }
};

constexpr int kMaxTaken = 96;  // for rank_first()

// Shared memory of a warp.
struct SortSmem {
  Key sorted[kWarpTokens];
  Key taken[kMaxTaken];
};

// Ranks the first k; returns k, or 0 if fewer are above -inf or too many are equal.
template <class T, int kEach>
__device__ int rank_first(const LaneKeys<T, kEach>& keys, int k, Key* taken, Key* sorted) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint32_t bound = selection::warp_threshold(k, keys.word);
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

// Orders the first k, or all above -inf, by popping or ranking; returns their number.
template <class T, int kEach>
__device__ int sort_first(LaneKeys<T, kEach>& keys, int k, SortSmem& memory) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  __syncwarp();  // the previous row's keys have been read
  int above = k > kMaxPops ? rank_first(keys, k, memory.taken, memory.sorted) : 0;
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

__device__ void store_top_token(const SampleProblem& p, std::int64_t row, int source, Key key,
                                const Weights& weights) {
  if (source >= p.top_count) return;
  const std::int64_t at = row * p.top_count + source;
  store_token(p.top_tokens, p.top_token_dtype, at, selection::token_of(key));
  p.top_log_probabilities[at] = log_probability(weights, selection::value_of(key));
}

__device__ float shuffled(float value, int from) { return __shfl_sync(~0U, value, from); }

// The controls and the uniform of a row.
struct RowRequest {
  RowControls controls;
  double inverse = 1;
  double uniform;
  int slots = 0;  // sorted tokens; 0 = the row is deferred

  __device__ RowRequest(const SampleProblem& p, std::int64_t row) {
    const std::int64_t seed = p.seed[row];  // all loads are issued before the first is used
    const std::int64_t position = p.position[row];
    controls = row_controls(p, row);
    uniform = random_uniform(seed, position);
    if (!fits_warp_draw(p, controls)) return;
    slots = wanted_slots(p, controls, {kWarpTokens, kWarpTokens});
    inverse = 1 / log_prob_temperature(controls);
  }

  // Whether the eight tokens of a thread group suffice.
  __device__ bool fits_group(std::int64_t vocabulary) const {
    return slots > 0 && slots <= selection::kListSize &&
           (controls.greedy() || controls.cuts(vocabulary));
  }
  __device__ float scale() const { return selection::exponent_scale(inverse); }

  // The request of another lane, as far as raw logits need it.
  __device__ RowRequest of_lane(int lane) const {
    RowRequest other = *this;
    other.controls.temperature = shuffled(controls.temperature, lane);
    other.controls.top_k = __shfl_sync(~0U, controls.top_k, lane);
    other.controls.top_p = shuffled(controls.top_p, lane);
    other.controls.min_p = shuffled(controls.min_p, lane);
    other.inverse = __shfl_sync(~0U, inverse, lane);
    other.uniform = __shfl_sync(~0U, uniform, lane);
    other.slots = __shfl_sync(~0U, slots, lane);
    return other;
  }
};

// The result of a row.
struct DrawResult {
  Key drawn = 0;  // 0 = the row is deferred
  float largest = 0;
  RowSum row{};

  __device__ Weights weights(const RowRequest& request) const {
    return {request.inverse, request.scale(), largest, row, false};
  }
};

// The draw of a row without a cut, in f32 like segment sums.
template <int kEach>
__device__ Key draw_by_token_in_warp(const float (&value)[kEach], const Weights& weights, float u) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float sums[kEach];
  float before = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    float sum = selection::exp2_fast((value[i] - weights.largest) * weights.scale);
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
    // Sums are rounded; a token without weight must not be drawn.
    const bool counts = selection::exp2_fast((value[i] - weights.largest) * weights.scale) > 0;
    if (counts && sums[i] > target) {
      token = static_cast<unsigned>(i * 32 + lane);
      drawn = value[i];
    }
  }
  const unsigned first = __reduce_min_sync(~0U, token);
  if (first == ~0U) return 0;
  const unsigned owner = __ballot_sync(~0U, token == first);
  return selection::key_of(shuffled(drawn, __ffs(static_cast<int>(owner)) - 1), first);
}

// As draw_by_warp_f32(), from up to eight tokens in one lane: the slot of the token, or -1.
__device__ int draw_in_lane(const float (&value)[selection::kListSize], int limit, float row,
                            const RowControls& controls, const Weights& weights, double u) {
  float weight[selection::kListSize];
  float sums[selection::kListSize];
  float all = 0;
#pragma unroll
  for (int i = 0; i < selection::kListSize; ++i) {
    weight[i] =
        i < limit ? selection::exp2_fast((value[i] - weights.largest) * weights.scale) : 0.0F;
    sums[i] = all += weight[i];
  }
  const float base = row > 0 ? row : all;
  const float error = kWarpError * fmaxf(base, all);
  const float needed = controls.top_p * base;
  int kept = row > 0 ? limit + 1 : limit;
  bool close = false;
#pragma unroll
  for (int i = selection::kListSize - 1; i >= 0; --i) {
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
  for (int i = 1; i < selection::kListSize; ++i) kept_sum = i < kept ? sums[i] : kept_sum;
  const float target = static_cast<float>(u) * kept_sum;
  int drawn = kept - 1;
#pragma unroll
  for (int i = selection::kListSize - 1; i >= 0; --i) {
    if (i >= kept - 1) continue;
    if (sums[i] > target) drawn = i;
    close = close || fabsf(sums[i] - target) <= error;
  }
  return close ? -1 : drawn;
}

// The slot that is drawn from the first eight, or -1. Sets `alone` if the row needs the whole warp.
__device__ int draw_slot(const SampleProblem& p, const RowRequest& request, const Weights& weights,
                         const float (&value)[selection::kListSize], bool& alone) {
  if (!request.fits_group(p.vocabulary)) return -1;
  alone = false;
  // NaN propagates to the sum.
  if (!(fabsf(weights.row.reference) < selection::kLargeExponent && weights.row.sum < 0x1p100F)) {
    return -1;
  }
  int above = 0;
#pragma unroll
  for (int i = 0; i < selection::kListSize; ++i) {
    above += i < request.slots && value[i] > -selection::infinity() ? 1 : 0;
  }
  if (above < p.top_count) return -1;
  if (request.controls.greedy()) return 0;
  const CutBounds facts = cut_bounds(request.controls, request.slots, above, p.vocabulary);
  const int drawn = draw_in_lane(value, facts.limit, facts.whole ? 0.0F : scanned_weight(weights),
                                 request.controls, weights, request.uniform);
  alone = drawn < 0;
  return drawn;
}

// The sum of a row's weights, by its thread group or by a warp with every 32nd token per lane, with
// the same bits: tokens that are equal modulo 32 are summed in order, in stripes where several
// lanes hold some, then these sums by a butterfly.
template <class Row, int kLanes, int kChunks>
__device__ float sum_by_group(const selection::ThreadGroup<Row, kLanes, kChunks>& group,
                              const Row& row, float scale, float reference) {
  constexpr int kHalves = kLanes == 2 ? 2 : 1;
  float sums[kHalves][selection::kChunk] = {};
  int i = 0;
  row.each_value([&](float v) {
    sums[i / selection::kChunk % kHalves][i % selection::kChunk] +=
        selection::exp2_fast(fmaf(v, scale, -reference));
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
  return group.sum(kHalves == 2 ? sums[0][0] + sums[kHalves - 1][0] : sums[0][0]);
}
template <int kLanes, int kEach>
__device__ float sum_by_warp(const float (&value)[kEach], float scale, float reference) {
  constexpr int kStripes = kLanes > 4 ? kLanes / 4 : 1;
  float sums[kStripes] = {};
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    sums[i % kStripes] += selection::exp2_fast(fmaf(value[i], scale, -reference));
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

// By the thread group of a row.
template <class ThreadGroup, class Source, class Row>
__device__ DrawResult draw_by_group(const SampleProblem& p, const ThreadGroup& group,
                                    const Source& source, const Row& row, const RowRequest& request,
                                    bool& alone) {
  selection::SelectedSlots<ThreadGroup::kLaneSlots> selected;
  float largest;
  group.select(row, source, selected, largest);
  const float scale = request.scale();
  const float reference = __fmul_rn(largest, scale);
  DrawResult result{0, largest, {reference, sum_by_group(group, row, scale, reference)}};
  float value[selection::kListSize];
  group.all_values(selected, value);
  const Weights weights = result.weights(request);
  const int drawn = draw_slot(p, request, weights, value, alone);
  const Key key = group.key_at(selected, max(drawn, 0));
  if (drawn < 0) return result;
  result.drawn = key;
  if (p.top_count == 0 || !group.writes()) return result;
#pragma unroll
  for (int j = 0; j < ThreadGroup::kLaneSlots; ++j) {
    const auto of_place = static_cast<std::uint32_t>(selected.token[j]);
    store_top_token(p, source.row, group.first_slot() + j,
                    selection::key_of(selected.value[j], of_place), weights);
  }
  return result;
}

// By the whole warp, with every 32nd token per lane.
template <int kEach, class T, int kLanes>
__device__ void load_every_32nd(const selection::SharedRow<T, kLanes>& source,
                                float (&value)[kEach]) {
#pragma unroll
  for (int i = 0; i < kEach; ++i)
    value[i] = source.value(i * 32 + static_cast<int>(threadIdx.x % 32));
}
template <int kEach, class T, int kLanes>
__device__ DrawResult draw_by_warp_alone(const SampleProblem& p,
                                         const selection::SharedRow<T, kLanes>& source,
                                         const RowRequest& request, SortSmem& memory) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float value[kEach];
  load_every_32nd(source, value);
  float largest = value[0];
#pragma unroll
  for (int i = 1; i < kEach; ++i) largest = selection::max_nan(largest, value[i]);
  const bool odd = __any_sync(~0U, isnan(largest));
  largest = selection::warp_max(largest);
  const float scale = request.scale();
  const float reference = __fmul_rn(largest, scale);
  // Neither NaN nor infinities.
  if (odd || !(fabsf(reference) < selection::kLargeExponent)) return {};
  DrawResult result{0, largest, {reference, sum_by_warp<kLanes>(value, scale, reference)}};
  const Weights weights = result.weights(request);
  LaneKeys<T, kEach> keys;
#pragma unroll
  for (int i = 0; i < kEach; ++i) keys.take(i, value[i], lane);
  const int above = sort_first(keys, request.slots, memory);
  if (above < p.top_count) return result;
  if (!request.controls.greedy() && !request.controls.cuts(p.vocabulary)) {
    load_every_32nd(source, value);
    result.drawn = draw_by_token_in_warp(value, weights, static_cast<float>(request.uniform));
  } else {
    result.drawn = draw_by_warp(memory.sorted, request.slots, above, p.vocabulary, request.controls,
                                weights, request.uniform);
  }
  if (result.drawn == 0) return result;
  for (int j = lane; j < p.top_count; j += 32) {
    store_top_token(p, source.row, j, memory.sorted[j], weights);
  }
  return result;
}

template <class Row, int kLanes, int kChunks>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm<kLanes * kChunks / 4>)
    sample_subwarp_kernel(const __grid_constant__ SubwarpArgs args) {
  using T = typename Row::Logit;
  using Tile = selection::RowTile<T, kLanes>;
  constexpr int kEach = kLanes * kChunks / 4;
  __shared__ __align__(128) unsigned char tiles[kWarps][Tile::kBytes];
  __shared__ SortSmem memory[kWarps];
  const SampleProblem& p = args.p;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto warp = static_cast<int>(threadIdx.x / 32);
  const selection::ThreadGroup<Row, kLanes, kChunks> group{lane % kLanes};
  const std::int64_t first =
      (std::int64_t{blockIdx.x} * kWarps + warp) * std::int64_t{args.rows_of_warp};
  if (first >= p.rows) return;
  const auto rows =
      static_cast<int>(min(static_cast<std::int64_t>(args.rows_of_warp), p.rows - first));
  const int own = min(lane / kLanes, rows - 1);  // lanes without a row repeat the last one
  const selection::SharedRow<T, kLanes> source(args.rows, static_cast<int>(first) + own,
                                               {cuda::shared_address(tiles[warp])}, own);
  if constexpr (cuda::kHopper) {
    cuda::pdl_launch_dependents();
    selection::prefetch_l2(source, group.lane);
    cuda::pdl_wait();
  }
  source.tile.fill(args.rows, static_cast<int>(first), rows, lane);
  const RowRequest request(p, source.row);
  cuda::wait_copies<0>();
  __syncwarp();
  DrawResult result;
  bool alone = request.slots > 0;
  if (args.by_groups && __any_sync(~0U, request.fits_group(p.vocabulary))) {
    Row row;
    row.load(source, group.lane);
    result = draw_by_group(p, group, source, row, request, alone);
  }
  const bool leads = group.lane == 0 && lane / kLanes < rows;
#pragma unroll 1
  for (unsigned left = __ballot_sync(~0U, leads && alone); left != 0; left &= left - 1) {
    const int owner = __ffs(static_cast<int>(left)) - 1;
    const selection::SharedRow<T, kLanes> one(args.rows, static_cast<int>(first) + owner / kLanes,
                                              source.tile, owner / kLanes);
    const DrawResult came = draw_by_warp_alone<kEach>(p, one, request.of_lane(owner), memory[warp]);
    if (lane == owner) result = came;
  }
  if (!leads) return;
  if (result.drawn == 0) return store_token(p.token, p.token_dtype, source.row, kDeferred);
  store_drawn(p, source.row, result.drawn, result.weights(request), RowStatus::ok);
}

template <class Row, int kLanes, int kChunks>
void launch(Context& context, const SampleProblem& p) {
  SubwarpArgs args{p};
  args.rows.input.logits = p.logits;
  args.rows.input.logits_stride = p.logits_stride;
  args.rows.vocabulary = static_cast<int>(p.vocabulary);
  args.rows.vectors = selection::rows_aligned16(p);
  args.rows.packed = args.rows.vectors && p.logits_stride == p.vocabulary &&
                     p.vocabulary == selection::kChunk * kChunks * kLanes;
  constexpr int kMaxRows = 32 / kLanes;
  const std::int64_t warps = std::int64_t{kBlocksPerSm<kLanes * kChunks / 4>} * kWarps *
                             selection::multiprocessors(context);
  args.rows_of_warp =
      static_cast<int>(std::clamp<std::int64_t>(p.rows / (kSubwarpMinWaves * warps), 1, kMaxRows));
  // A thread group takes as long for one row as for all rows of the warp.
  args.by_groups = p.rows >= warps && args.rows_of_warp >= std::min(kMaxRows, 8);
  const std::int64_t rows_of_block = kWarps * std::int64_t{args.rows_of_warp};
  const cuda::LaunchShape grid{
      .blocks = static_cast<unsigned>((p.rows + rows_of_block - 1) / rows_of_block),
      .threads = kThreads,
      .pdl = cuda::is_hopper(context)};
  cuda::launch(context, "sample subwarp_kernel", sample_subwarp_kernel<Row, kLanes, kChunks>, grid,
               args);
}

// The smallest thread group that holds a row.
template <class T, int kLanes>
void launch_for_width(Context& context, const SampleProblem& p) {
  constexpr bool kNarrow = sizeof(T) == 2;
  constexpr int kChunks = kNarrow ? 8 : 4;
  if constexpr (kLanes < (kNarrow ? 16 : 32)) {
    if (p.vocabulary > selection::kChunk * kChunks * kLanes) {
      return launch_for_width<T, 2 * kLanes>(context, p);
    }
  }
  using Part = selection::SharedPart<T, kLanes, kChunks>;
  using Row = std::conditional_t<
      kNarrow, selection::NarrowRow<T, kLanes, kChunks, Part>,
      selection::PrefixRow<selection::SharedWideRow<T, kLanes, kChunks>, kLanes, kChunks>>;
  launch<Row, kLanes, kChunks>(context, p);
}

}  // namespace

void launch_subwarp(Context& context, const SampleProblem& p) {
  cuda::visit_dtype(p.dtype,
                    [&]<class T>() { launch_for_width<T, sizeof(T) == 2 ? 2 : 4>(context, p); });
}

}  // namespace touchstone::sampling
