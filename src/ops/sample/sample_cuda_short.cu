// Sampling of short rows, as many as there may be: a warp takes up to 32 of them. What each asks
// for is found by a lane, and what comes out is put by a lane; between that the warp reads row
// after row, takes its first tokens one by one and draws. Rows that are not usual, or too close to
// call, get the token kLeft.
#include <algorithm>
#include <type_traits>

#include "cuda/launch.h"
#include "ops/sample/sample_finish.cuh"
#include "ops/sample/sample_kernels.h"
#include "ops/softmax_topk/topk_maxima_launch.h"
#include "ops/softmax_topk/topk_warp.cuh"

namespace touchstone::sampling {
namespace {

constexpr int kThreads = 128;
constexpr int kFewestWaves = 4;  // so that the last one is short
constexpr int kWarps = kThreads / 32;

struct ShortParams {
  Sampling p;
  int rows_of_warp = 1;
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
constexpr int kMostTaken = 96;  // that are ranked

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
    if (takes && at < kMostTaken) taken[at] = LaneKeys<T, kEach>::key_at(keys.word[i], i, lane);
    count += __popc(votes);
  }
  if (count > kMostTaken) return 0;
  __syncwarp();
  for (int own = lane; own < count; own += 32) {
    const Key key = taken[own];
    int before = 0;
    for (int i = 0; i < count; ++i) before += taken[i] > key ? 1 : 0;
    if (before < k) sorted[before] = key;
  }
  return k;
}

__device__ float shuffled(float value, int from) { return __shfl_sync(~0U, value, from); }

// What a row asks for, in the lane that found it.
struct RowWishes {
  RowControls controls;
  double inverse = 1;
  double uniform = 0.5;
  int places = 0;  // tokens that are put in order; 0 = the row is left

  __device__ RowWishes(const Sampling& p, std::int64_t row) {
    controls = row_controls(p, row);
    if (!wants_few(p, controls)) return;
    places = wanted_places(p, controls, {kWarpTokens, kWarpTokens});
    inverse = 1 / weighing_temperature(controls);
    uniform = uniform_of(p.seed[row], p.position[row]);
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

template <class T, int kEach>
__global__ void __launch_bounds__(kThreads)
    sample_short_kernel(const __grid_constant__ ShortParams params) {
  __shared__ Key all_sorted[kWarps][kWarpTokens];
  __shared__ Key all_taken[kWarps][kMostTaken];
  const Sampling& p = params.p;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Key* const sorted = all_sorted[threadIdx.x / 32];
  if constexpr (cuda::kHopper) {
    cuda::let_next_grid_start();
    cuda::wait_for_previous_grids();
  }
  const std::int64_t warp = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const std::int64_t first = warp * params.rows_of_warp;
  if (first >= p.rows) return;
  const auto rows =
      static_cast<int>(min(static_cast<std::int64_t>(params.rows_of_warp), p.rows - first));
  const auto vocabulary = static_cast<int>(p.vocabulary);
  const auto load = [&](int r, float(&to)[kEach]) {
    const T* const row = static_cast<const T*>(p.logits) + (first + r) * p.logits_stride;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int token = i * 32 + lane;
      to[i] = token < vocabulary ? cuda::widen(row[token]) : -topk::infinity();
    }
  };
  float next[kEach];
  load(0, next);
  const RowWishes own(p, first + min(lane, rows - 1));
  const float own_scale = topk::exponent_scale(own.inverse);
  Key own_drawn = 0;
  Weights own_weights{own.inverse, own_scale, 0, {0, 0}, false};
#pragma unroll 1
  for (int r = 0; r < rows; ++r) {
    float value[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) value[i] = next[i];
    if (r + 1 < rows) load(r + 1, next);
    const int k = __shfl_sync(~0U, own.places, r);
    if (k == 0) continue;
    RowControls controls;
    controls.temperature = shuffled(own.controls.temperature, r);
    controls.top_k = __shfl_sync(~0U, own.controls.top_k, r);
    controls.top_p = shuffled(own.controls.top_p, r);
    controls.min_p = shuffled(own.controls.min_p, r);
    Weights weights{__shfl_sync(~0U, own.inverse, r), shuffled(own_scale, r), 0, {0, 0}, false};
    const double u = __shfl_sync(~0U, own.uniform, r);
    float largest = value[0];
#pragma unroll
    for (int i = 1; i < kEach; ++i) largest = topk::max_nan(largest, value[i]);
    const bool odd = __any_sync(~0U, isnan(largest));
    largest = topk::warp_max(largest);
    weights.largest = largest;
    weights.row.reference = largest * weights.scale;
    // Not for infinities either.
    if (odd || !(fabsf(weights.row.reference) < topk::kLargeExponent)) continue;
    LaneKeys<T, kEach> keys;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      keys.take(i, value[i], lane);
      sum += topk::exp2_fast(fmaf(value[i], weights.scale, -weights.row.reference));
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0U, sum, offset);
    weights.row.sum = sum;
    __syncwarp();  // the last row's are done with
    int above = k > kFewPops ? rank_first(keys, k, all_taken[threadIdx.x / 32], sorted) : 0;
    if (above == 0) {
      for (; above < k; ++above) {
        const Key key = keys.pop(lane);
        if (key == 0) break;
        if (lane == 0) sorted[above] = key;
      }
    }
    __syncwarp();
    const bool by_token = !controls.greedy() && !controls.cuts(vocabulary);
    const Key drawn = by_token ? draw_by_token_in_warp(value, weights, static_cast<float>(u))
                               : draw_quickly(sorted, k, above, vocabulary, controls, weights, u);
    if (p.top_count > 0 && drawn != 0) {
      for (int j = lane; j < p.top_count; j += 32) {
        const std::int64_t at = (first + r) * p.top_count + j;
        // Behind those above -inf come the first that are masked: rows with fewer are left.
        if (j >= above) continue;
        put_token(p.top_tokens, p.top_token_dtype, at, topk::token_of(sorted[j]));
        p.top_log_probabilities[at] = log_probability(weights, topk::value_of(sorted[j]));
      }
    }
    if (lane == r) {
      own_drawn = above < p.top_count ? 0 : drawn;
      own_weights.largest = largest;
      own_weights.row = weights.row;
    }
  }
  if (lane >= rows) return;
  if (own_drawn == 0) return put_token(p.token, p.token_dtype, first + lane, kLeft);
  put_drawn(p, first + lane, own_drawn, own_weights, 0);
}

template <class T, int kEach>
void launch(Context& context, const Sampling& p) {
  ShortParams params{p};
  const std::int64_t warps = kFewestWaves * 28 * topk::multiprocessors(context);
  params.rows_of_warp = static_cast<int>(std::clamp<std::int64_t>(p.rows / warps, 1, 32));
  const std::int64_t rows_of_block = kWarps * std::int64_t{params.rows_of_warp};
  const cuda::LaunchShape shape{
      .blocks = static_cast<unsigned>((p.rows + rows_of_block - 1) / rows_of_block),
      .threads = kThreads,
      .overlap_previous = cuda::is_hopper(context)};
  cuda::launch(context, "sample sample_short_kernel", sample_short_kernel<T, kEach>, shape, params);
}

}  // namespace

bool suits_short(const Sampling& p) {
  return is_plain(p) && p.vocabulary <= 1024 && p.top_count <= kWarpTokens;
}

void sample_short(Context& context, const Sampling& p) {
  topk::visit_logits_dtype(p.dtype, [&]<class T>() {
    if (p.vocabulary <= 128) {
      launch<T, 4>(context, p);
    } else if (p.vocabulary <= 256) {
      launch<T, 8>(context, p);
    } else {
      launch<T, 32>(context, p);
    }
  });
}

}  // namespace touchstone::sampling
