// One read of a row by a block, or by the blocks of a cluster: its sum of exponentials, and every
// token that may be among the k largest.
//
// The row is cut into segments, each held in the registers of a warp. A lane takes the maximum of
// its tokens first. It is the reference of the lane's exponentials, one per token, and it says
// whether the lane has any candidate at all. Lane sums are merged by a fixed butterfly and segment
// sums in index order: the bits depend on the row alone.
#pragma once

#include "ops/softmax_topk/topk_segment.cuh"
#include "ops/softmax_topk/topk_select.cuh"

namespace touchstone::topk {

inline constexpr int kScanWarps = kScanThreads / 32;
inline constexpr int kMaxUnits = 1024;  // sums kept per row; a unit is one segment or several
inline constexpr int kMaxScanCluster = 8;
inline constexpr int kSamples = kScanThreads * 4;

// Up to here the threshold is one that k tokens of the sample reach, so that it cannot be too high.
// For more, it is a guess: the scan counts, and what falls short is done again. Blocks that share a
// row cannot count alone, so that clusters never guess.
inline constexpr int kCertainK = 128;
inline constexpr int kCertainKInCluster = 256;

struct ScanShape {
  std::int64_t vocabulary = 0;
  int k = 0;
  int capacity = 0;  // candidates that fit; at least k and a segment
  int sorted = 0;    // keys that the sort has room for: a power of two, at least k
  int units = 0;
  int segments_per_unit = 1;
  int cluster = 1;  // blocks that share a row
};

// Dynamic shared memory: this, then sums, candidates and sorted keys.
struct ScanShared {
  SelectScratch select;
  std::uint32_t samples[kSamples];
  std::uint32_t count;      // candidates found, also where they did not fit
  std::uint32_t threshold;  // ordered word: tokens below cannot be of the k largest
  std::uint32_t flags;
  alignas(16) float reduction[2 * kScanWarps];
  alignas(16) unsigned char rest[16];

  static constexpr std::uint32_t kNan = 1;
  static constexpr std::uint32_t kHuge = 2;  // +inf, or v * scale overflows
  static constexpr std::uint32_t kReadTwice = 4;

  __host__ __device__ static std::int64_t bytes(const ScanShape& shape) {
    return static_cast<std::int64_t>(sizeof(ScanShared)) +
           8 * (std::int64_t{shape.units} + shape.capacity + shape.sorted);
  }
  __device__ float2* sums() { return reinterpret_cast<float2*>(rest); }
  __device__ Key* candidates(const ScanShape& shape) {
    return reinterpret_cast<Key*>(rest) + shape.units;
  }
  __device__ Key* sorted(const ScanShape& shape) { return candidates(shape) + shape.capacity; }
};

// The ordered word after that of -inf: masked tokens are never candidates.
inline constexpr std::uint32_t kAboveNothing = 0x00800000U;

// The cluster's blocks take the units in turn.
__device__ inline int units_of_block(const ScanShape& shape, int rank) {
  return (shape.units - rank + shape.cluster - 1) / shape.cluster;
}

// The exact way, for rows with more candidates than fit or with a threshold that was too high: the
// whole block goes through its part once more, keeps what beats the k-th so far, and throws out the
// rest whenever the room is used up. Rare, and out of line so that the scan keeps its registers.
template <class T>
__device__ __noinline__ void read_in_order(const ScanShape& shape, ScanShared& shared,
                                           RowValues<T> values, int segment_tokens, int rank,
                                           std::uint32_t least) {
  Key* const candidates = shared.candidates(shape);
  Key* const spare = shared.sorted(shape);
  const int thread = static_cast<int>(threadIdx.x);
  Key bound = static_cast<Key>(least) << 32;
  __syncthreads();
  if (thread == 0) shared.count = 0;
  __syncthreads();
  const std::int64_t unit_tokens = std::int64_t{shape.segments_per_unit} * segment_tokens;
  const int segments = units_of_block(shape, rank) * shape.segments_per_unit;
  for (int i = 0; i < segments; ++i) {
    const std::int64_t unit =
        static_cast<std::int64_t>(i / shape.segments_per_unit) * shape.cluster + rank;
    const std::int64_t first =
        unit * unit_tokens +
        static_cast<std::int64_t>(i % shape.segments_per_unit) * segment_tokens;
    const std::int64_t end = min(first + segment_tokens, shape.vocabulary);
    for (std::int64_t token = first + thread; token < end; token += kScanThreads) {
      const float v = values(token);
      if (!(v > -infinity())) continue;
      const Key key = key_of(v, static_cast<std::uint32_t>(token));
      if (key >= bound) candidates[atomicAdd(&shared.count, 1U)] = key;
    }
    __syncthreads();
    const auto held = static_cast<int>(shared.count);
    if (held + segment_tokens <= shape.capacity) continue;
    bound = lower_end(candidates, held, shape.k, shape.k, shared.select);
    const int kept = gather(candidates, held, bound, spare, shared.select);
    for (int j = thread; j < kept; j += kScanThreads) candidates[j] = spare[j];
    if (thread == 0) shared.count = static_cast<std::uint32_t>(kept);
    __syncthreads();
  }
}

template <class T, bool kPlain>
class RowScan {
 public:
  using Held = Segment<T, kPlain>;

  __device__ RowScan(const ScanShape& scan_shape, ScanShared& memory, const RowValues<T>& row,
                     float exponent_scale)
      : shape(scan_shape),
        shared(memory),
        candidates(memory.candidates(scan_shape)),
        values(row),
        loader(row.logits, scan_shape.vocabulary),
        scale(exponent_scale),
        lane(static_cast<int>(threadIdx.x) % 32),
        warp(static_cast<int>(threadIdx.x) / 32),
        rank(scan_shape.cluster > 1 ? static_cast<int>(cluster_block()) : 0) {}

  // Reads this block's part of the row. Afterwards the block's candidates are complete: count of
  // them, at most the capacity; all tokens above -inf where that is fewer than k.
  __device__ void run() {
    if (threadIdx.x == 0) {
      shared.count = 0;
      shared.flags = 0;
    }
    __syncthreads();
    // Runs of units, so that the first ones of the warps are a sample of the whole row.
    const int own = units_of_block(shape, rank);
    int unit = own * warp / kScanWarps;
    const int end = own * (warp + 1) / kScanWarps;
    const bool any = unit < end;
    const bool whole = shape.segments_per_unit == 1;
    Held held;
    float largest = -infinity();
    if (any) largest = read_unit(unit, held, false, 0);
    sample(held, largest, any);
    __syncthreads();
    if (warp == 0) choose_threshold();
    __syncthreads();
    const float least = unordered(shared.threshold);
    if (any && whole) {
      collect(first_token(unit, 0), held, largest, least);
      ++unit;
    }
    for (; unit < end; ++unit) read_unit(unit, held, true, least);
    __syncthreads();
    const auto found = static_cast<int>(shared.count);
    const bool guessed = shape.cluster == 1 && shape.k > kCertainK;
    if (found <= shape.capacity && (found >= shape.k || !guessed)) return;
    if (threadIdx.x == 0) shared.flags |= ScanShared::kReadTwice;
    read_in_order<T>(shape, shared, values, Held::kTokens, rank,
                     found >= shape.k ? shared.threshold : kAboveNothing);
  }

 private:
  __device__ static unsigned cluster_block() {
    if constexpr (cuda::kHopper) return cuda::cluster_rank();
    return 0;
  }

  __device__ std::int64_t first_token(int own_unit, int segment) const {
    const std::int64_t unit = static_cast<std::int64_t>(own_unit) * shape.cluster + rank;
    return (unit * shape.segments_per_unit + segment) * Held::kTokens;
  }

  // The lane's sum of exponentials; `largest` is its largest value.
  __device__ RowSum lane_sum(const Held& held, float largest) const {
    const float reference = largest * scale;
    if (fabsf(reference) < 1e38F) return {reference, held.sum(scale, reference)};
    // NaN, infinities, and products that overflow. What is far below 0 is nothing, unless the whole
    // row is; then, and above, the row is summed another way when all is known.
    if (!(largest < 0)) {
      atomicOr(&shared.flags, isnan(largest) ? ScanShared::kNan : ScanShared::kHuge);
    }
    return {-infinity(), 0};
  }

  __device__ static RowSum merged(const RowSum& a, const RowSum& b) {
    const float reference = fmaxf(a.reference, b.reference);
    if (reference == -infinity()) return a;
    return {reference, a.sum * exp2_fast(a.reference - reference) +
                           b.sum * exp2_fast(b.reference - reference)};
  }

  // Reads a unit and leaves its sum. Returns the lane's maximum of its last segment, which `held`
  // then holds.
  __device__ float read_unit(int unit, Held& held, bool collecting, float least) {
    RowSum sum{-infinity(), 0};
    float largest = 0;
    for (int segment = 0; segment < shape.segments_per_unit; ++segment) {
      const std::int64_t first = first_token(unit, segment);
      if (segment > 0 && first >= shape.vocabulary) break;
      held.load(loader, values, first, shape.vocabulary, lane);
      largest = held.template largest<1>(0);
      const RowSum own = lane_sum(held, largest);
      sum = segment == 0 ? own : merged(sum, own);
      if (collecting) collect(first, held, largest, least);
    }
    float reference = sum.reference;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      reference = fmaxf(reference, __shfl_xor_sync(~0U, reference, offset));
    }
    float total = reference == -infinity() ? 0 : sum.sum * exp2_fast(sum.reference - reference);
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) total += __shfl_xor_sync(~0U, total, offset);
    if (lane == 0) shared.sums()[unit * shape.cluster + rank] = {reference, total};
    return largest;
  }

  __device__ bool one_sample_per_lane() const { return shape.k <= 64; }

  // Maxima of parts of the sampled segments: with few to find, one per lane, else four.
  __device__ void sample(const Held& held, float largest, bool any) {
    const int thread = static_cast<int>(threadIdx.x);
    if (one_sample_per_lane()) {
      shared.samples[thread] = any && !isnan(largest) ? ordered(largest) : 0;
      return;
    }
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const float m = any ? held.template largest<4>(part) : 0.0F;
      shared.samples[part * kScanThreads + thread] = any && !isnan(m) ? ordered(m) : 0;
    }
  }

  // How far down the sample to go. A sample of n of the V tokens has n * k / V of the k largest on
  // average; five standard deviations more are almost certainly enough.
  __device__ int sample_rank() const {
    if (shape.cluster > 1 || shape.k <= kCertainK) return shape.k;
    const auto tokens = static_cast<float>(kScanWarps * Held::kTokens);
    const float mean =
        static_cast<float>(shape.k) * fminf(1.0F, tokens / static_cast<float>(shape.vocabulary));
    return static_cast<int>(mean + 5 * sqrtf(mean)) + 8;
  }

  // For one warp: the largest sample that as many as wanted reach.
  __device__ void choose_threshold() {
    const int n = one_sample_per_lane() ? kScanThreads : kSamples;
    const int wanted = sample_rank();
    std::uint32_t threshold = 0;
    // The upper bits do: a threshold that is a little low costs a few candidates.
    for (int bit = 31; bit >= 12; --bit) {
      const std::uint32_t tried = threshold | 1U << bit;
      int reached = 0;
      for (int i = lane; i < n; i += 32) reached += shared.samples[i] >= tried ? 1 : 0;
      if (__reduce_add_sync(~0U, reached) >= wanted) threshold = tried;
    }
    // A value that occurs, which 16-bit comparisons can hold.
    std::uint32_t least = 0xffffffffU;
    for (int i = lane; i < n; i += 32) {
      if (shared.samples[i] >= threshold) least = min(least, shared.samples[i]);
    }
    least = __reduce_min_sync(~0U, least);
    if (lane == 0) shared.threshold = max(least, kAboveNothing);
  }

  // Adds the candidates of a segment. Those that do not fit are counted all the same.
  __device__ void collect(std::int64_t first, const Held& held, float largest, float least) {
    const bool some = largest >= least;
    if (!__any_sync(~0U, some)) return;
    std::uint64_t bits = held.reaching(least);
    if (!some) return;
    const int count = __popcll(bits);
    auto place = static_cast<int>(atomicAdd(&shared.count, static_cast<std::uint32_t>(count)));
    if (place + count > shape.capacity) return;
    while (bits != 0) {
      const int element = Held::element_of(__ffsll(static_cast<long long>(bits)) - 1);
      bits &= bits - 1;
      const std::int64_t token =
          first + static_cast<std::int64_t>(element / Held::kN * 32 + lane) * Held::kN +
          element % Held::kN;
      candidates[place++] = key_of(values(token), static_cast<std::uint32_t>(token));
    }
  }

  const ScanShape& shape;
  ScanShared& shared;
  Key* candidates;
  RowValues<T> values;
  typename Held::Loader loader;
  float scale;
  int lane, warp;
  int rank;  // of this block in its cluster
};

}  // namespace touchstone::topk
