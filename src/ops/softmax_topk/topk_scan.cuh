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
inline constexpr int kMostSegments = 2048;  // a sum of each is kept
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
  int segments = 0;
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
           8 * (std::int64_t{shape.segments} + shape.capacity + shape.sorted);
  }
  __device__ float2* sums() { return reinterpret_cast<float2*>(rest); }
  __device__ Key* candidates(const ScanShape& shape) {
    return reinterpret_cast<Key*>(rest) + shape.segments;
  }
  __device__ Key* sorted(const ScanShape& shape) { return candidates(shape) + shape.capacity; }
};

// The ordered word after that of -inf: masked tokens are never candidates.
inline constexpr std::uint32_t kAboveNothing = 0x00800000U;

// The cluster's blocks take the segments in turn.
__device__ inline int segments_of_block(const ScanShape& shape, int rank) {
  return (shape.segments - rank + shape.cluster - 1) / shape.cluster;
}

// The exact way, for rows with more candidates than fit or with a threshold that was too high: the
// whole block goes through its part once more, keeps what beats the k-th so far, and throws out the
// rest whenever the room is used up. Rare, and out of line so that the scan keeps its registers.
template <class Values>
__device__ __noinline__ void read_in_order(const ScanShape& shape, ScanShared& shared,
                                           Values values, int segment_tokens, int rank,
                                           std::uint32_t least) {
  Key* const candidates = shared.candidates(shape);
  Key* const spare = shared.sorted(shape);
  const int thread = static_cast<int>(threadIdx.x);
  Key bound = static_cast<Key>(least) << 32;
  __syncthreads();
  if (thread == 0) shared.count = 0;
  __syncthreads();
  const int segments = segments_of_block(shape, rank);
  for (int i = 0; i < segments; ++i) {
    const std::int64_t first =
        (static_cast<std::int64_t>(i) * shape.cluster + rank) * segment_tokens;
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

// kPlain: the values are the logits as they are.
template <class Values, bool kPlain>
class RowScan {
 public:
  using Held = Segment<typename Values::Logit, kPlain>;

  __device__ RowScan(const ScanShape& scan_shape, ScanShared& memory, const Values& row,
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
    // Runs of segments, so that the first ones of the warps are a sample of the whole row.
    const int own = segments_of_block(shape, rank);
    int next = own * warp / kScanWarps;
    const int end = own * (warp + 1) / kScanWarps;
    Held a;
    Held b;
    float largest_a = -infinity();
    float largest_b = -infinity();
    const bool any = next < end;
    const bool two = next + 1 < end;
    if (any) load(a, next);
    if (two) load(b, next + 1);
    if (any) largest_a = add_up(a, next);
    if (two) largest_b = add_up(b, next + 1);
    sample(a, b, any, two, largest_a, largest_b);
    __syncthreads();
    if (warp == 0) choose_threshold();
    __syncthreads();
    least = unordered(shared.threshold);
    if (any) collect(a, next, largest_a);
    if (two) collect(b, next + 1, largest_b);
    // From here on one segment is on its way while the other is worked on.
    next += 2;
    if (next < end) load(a, next);
    while (next < end) {
      if (next + 1 < end) load(b, next + 1);
      collect(a, next, add_up(a, next));
      if (next + 1 >= end) break;
      if (next + 2 < end) load(a, next + 2);
      collect(b, next + 1, add_up(b, next + 1));
      next += 2;
    }
    __syncthreads();
    const auto found = static_cast<int>(shared.count);
    const bool guessed = shape.cluster == 1 && shape.k > kCertainK;
    if (found <= shape.capacity && (found >= shape.k || !guessed)) return;
    if (threadIdx.x == 0) shared.flags |= ScanShared::kReadTwice;
    read_in_order(shape, shared, values, Held::kTokens, rank,
                  found >= shape.k ? shared.threshold : kAboveNothing);
  }

 private:
  __device__ static unsigned cluster_block() {
    if constexpr (cuda::kHopper) return cuda::cluster_rank();
    return 0;
  }

  // The place in the row of the block's i-th segment, and its first token.
  __device__ int place_of(int i) const { return i * shape.cluster + rank; }
  __device__ std::int64_t first_token(int i) const {
    return static_cast<std::int64_t>(place_of(i)) * Held::kTokens;
  }

  __device__ void load(Held& held, int i) const {
    held.load(loader, values, first_token(i), shape.vocabulary, lane);
  }

  // The lane's sum of exponentials; `largest` is its largest value.
  __device__ RowSum lane_sum(const Held& held, float largest) const {
    const float reference = largest * scale;
    if (fabsf(reference) < kLargeExponent) return {reference, held.sum(scale, reference)};
    // NaN, infinities, and exponents that f32 rounds to whole numbers. What is twice as far below 0
    // is nothing, unless the whole row is; then, and above, the row is summed another way when all
    // is known.
    if (!(reference <= -2 * kLargeExponent)) {
      atomicOr(&shared.flags, isnan(largest) ? ScanShared::kNan : ScanShared::kHuge);
    }
    return {-infinity(), 0};
  }

  // Leaves the sum of a segment. Returns the lane's maximum.
  __device__ float add_up(const Held& held, int i) {
    const float largest = held.template largest<1>(0);
    const RowSum sum = lane_sum(held, largest);
    float reference = sum.reference;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      reference = fmaxf(reference, __shfl_xor_sync(~0U, reference, offset));
    }
    float total = reference == -infinity() ? 0 : sum.sum * exp2_fast(sum.reference - reference);
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) total += __shfl_xor_sync(~0U, total, offset);
    if (lane == 0) shared.sums()[place_of(i)] = {reference, total};
    return largest;
  }

  __device__ bool one_sample_per_lane() const { return shape.k <= 64; }

  __device__ static std::uint32_t sampled(bool there, float value) {
    return there && !isnan(value) ? ordered(value) : 0;
  }

  // Maxima of parts of the sampled segments: with few to find, one per lane, else four.
  __device__ void sample(const Held& a, const Held& b, bool any, bool two, float largest_a,
                         float largest_b) {
    std::uint32_t* const mine = shared.samples + threadIdx.x;
    if (one_sample_per_lane()) {
      mine[0] = max(sampled(any, largest_a), sampled(two, largest_b));
      return;
    }
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      mine[2 * part * kScanThreads] = sampled(any, any ? a.template largest<2>(part) : 0.0F);
      mine[(2 * part + 1) * kScanThreads] = sampled(two, two ? b.template largest<2>(part) : 0.0F);
    }
  }

  // How far down the sample to go. A sample of n of the V tokens has n * k / V of the k largest on
  // average; five standard deviations more are almost certainly enough.
  __device__ int sample_rank() const {
    if (shape.cluster > 1 || shape.k <= kCertainK) return shape.k;
    const auto tokens = static_cast<float>(2 * kScanWarps * Held::kTokens);
    const float mean =
        static_cast<float>(shape.k) * fminf(1.0F, tokens / static_cast<float>(shape.vocabulary));
    return static_cast<int>(mean + 5 * sqrtf(mean)) + 8;
  }

  // For one warp.
  __device__ void choose_threshold() {
    const std::uint32_t found =
        one_sample_per_lane() ? threshold_of<kScanThreads / 32>() : threshold_of<kSamples / 32>();
    if (lane == 0) shared.threshold = max(found, kAboveNothing);
  }

  // The largest sample that as many as wanted reach.
  template <int kEach>
  __device__ std::uint32_t threshold_of() const {
    std::uint32_t mine[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) mine[i] = shared.samples[i * 32 + lane];
    const int wanted = sample_rank();
    std::uint32_t threshold = 0;
    // The upper bits do: a threshold that is a little low costs a few candidates.
    for (int bit = 31; bit >= 12; --bit) {
      const std::uint32_t tried = threshold | 1U << bit;
      int reached = 0;
#pragma unroll
      for (int i = 0; i < kEach; ++i) reached += mine[i] >= tried ? 1 : 0;
      if (__reduce_add_sync(~0U, reached) >= wanted) threshold = tried;
    }
    // A value that occurs, which 16-bit comparisons can hold.
    std::uint32_t least_word = 0xffffffffU;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (mine[i] >= threshold) least_word = min(least_word, mine[i]);
    }
    return __reduce_min_sync(~0U, least_word);
  }

  // Adds the candidates of a segment. Those that do not fit are counted all the same.
  __device__ void collect(const Held& held, int i, float largest) {
    const bool some = largest >= least;
    if (!__any_sync(~0U, some)) return;
    std::uint32_t bits = held.reaching(least);
    if (!some) return;
    const int count = __popc(bits);
    auto place = static_cast<int>(atomicAdd(&shared.count, static_cast<std::uint32_t>(count)));
    if (place + count > shape.capacity) return;
    while (bits != 0) {
      const int element = Held::element_of(__ffs(static_cast<int>(bits)) - 1);
      bits &= bits - 1;
      const std::int64_t token =
          first_token(i) + static_cast<std::int64_t>(element / Held::kN * 32 + lane) * Held::kN +
          element % Held::kN;
      candidates[place++] = key_of(values(token), static_cast<std::uint32_t>(token));
    }
  }

  const ScanShape& shape;
  ScanShared& shared;
  Key* candidates;
  Values values;
  typename Held::Loader loader;
  float scale;
  int lane, warp;
  int rank;         // of this block in its cluster
  float least = 0;  // the threshold
};

}  // namespace touchstone::topk
