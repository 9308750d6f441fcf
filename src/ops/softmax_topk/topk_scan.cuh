// One read of a row by a block, or by the blocks of a cluster: its sum of exponentials, and notes
// of where its k largest tokens must be.
//
// The row is cut into segments, each held in the registers of a warp. A lane takes the maximum of
// its tokens first. It is the reference of the lane's exponentials, one per token, and where it
// reaches a threshold, it is noted: no token of a lane that is not noted can be of the k largest.
// Lane sums are merged by a fixed butterfly and segment sums in index order: the bits depend on the
// row alone.
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
  int segments = 0;
  int notes = 0;       // that fit
  int candidates = 0;  // that fit: at least k and a segment
  int sorted = 0;      // keys that the sort has room for: a power of two, at least k
  int cluster = 1;     // blocks that share a row
};

// Dynamic shared memory: this, then sums, notes, candidates and sorted keys.
struct ScanShared {
  SelectScratch select;
  std::uint32_t samples[kSamples];
  std::uint32_t noted;      // also what did not fit
  std::uint32_t count;      // candidates, also those that did not fit
  std::uint32_t threshold;  // ordered word: tokens below cannot be of the k largest
  std::uint32_t flags;
  alignas(16) float reduction[2 * kScanWarps];
  alignas(16) unsigned char rest[16];

  static constexpr std::uint32_t kNan = 1;
  static constexpr std::uint32_t kHuge = 2;  // +inf, or v * scale overflows
  static constexpr std::uint32_t kOverflow = 4;
  static constexpr std::uint32_t kReadTwice = 8;

  __host__ __device__ static std::int64_t bytes(const ScanShape& shape) {
    return static_cast<std::int64_t>(sizeof(ScanShared)) +
           8 * (std::int64_t{shape.segments} + shape.notes + shape.candidates + shape.sorted);
  }
  __device__ float2* sums() { return reinterpret_cast<float2*>(rest); }
  // A note is the key of a lane's maximum, with segment * 32 + lane for a token.
  __device__ Key* notes(const ScanShape& shape) {
    return reinterpret_cast<Key*>(rest) + shape.segments;
  }
  __device__ Key* candidates(const ScanShape& shape) { return notes(shape) + shape.notes; }
  __device__ Key* sorted(const ScanShape& shape) { return candidates(shape) + shape.candidates; }
};

// The ordered word after that of -inf: masked tokens are never candidates.
inline constexpr std::uint32_t kAboveNothing = 0x00800000U;

__device__ inline bool guesses(const ScanShape& shape) {
  return shape.cluster == 1 && shape.k > kCertainK;
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
        notes(memory.notes(scan_shape)),
        values(row),
        loader(row.logits, scan_shape.vocabulary),
        scale(exponent_scale),
        lane(static_cast<int>(threadIdx.x) % 32),
        warp(static_cast<int>(threadIdx.x) / 32),
        rank(scan_shape.cluster > 1 ? static_cast<int>(cluster_block()) : 0) {}

  // Reads this block's part of the row, which is every segment whose number is its rank in turn.
  __device__ void run() {
    if (threadIdx.x == 0) {
      shared.noted = 0;
      shared.count = 0;
      shared.flags = 0;
    }
    __syncthreads();
    // Runs of segments, so that the first ones of the warps are a sample of the whole row.
    const int own = (shape.segments - rank + shape.cluster - 1) / shape.cluster;
    int next = own * warp / kScanWarps;
    const int end = own * (warp + 1) / kScanWarps;
    const bool any = next < end;
    const bool two = next + 1 < end;
    Held a;
    Held b;
    if (any) load(a, next);
    if (two) load(b, next + 1);
    const float first_a = any ? add_up(a, next) : -infinity();
    const float first_b = two ? add_up(b, next + 1) : -infinity();
    sample(a, b, any, two, first_a, first_b);
    // Two segments are always on their way or worked on, also while the threshold is chosen.
    if (next + 2 < end) load(a, next + 2);
    if (next + 3 < end) load(b, next + 3);
    __syncthreads();
    if (warp == 0) choose_threshold();
    __syncthreads();
    least = unordered(shared.threshold);
    note(first_a, next);
    note(first_b, next + 1);
    for (next += 2; next < end; next += 2) {
      note(add_up(a, next), next);
      if (next + 2 < end) load(a, next + 2);
      if (next + 1 >= end) break;
      note(add_up(b, next + 1), next + 1);
      if (next + 3 < end) load(b, next + 3);
    }
    __syncthreads();
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
    if (!guesses(shape)) return shape.k;
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

  // A sample that as many as wanted reach, and few more: where it lies between the smallest and the
  // largest is found by halving, to a thousandth.
  template <int kEach>
  __device__ std::uint32_t threshold_of() const {
    std::uint32_t mine[kEach];
    std::uint32_t low = 0xffffffffU;
    std::uint32_t high = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      mine[i] = shared.samples[i * 32 + lane];
      low = min(low, mine[i]);
      high = max(high, mine[i]);
    }
    low = __reduce_min_sync(~0U, low);
    high = __reduce_max_sync(~0U, high);
    const int wanted = sample_rank();
    if (wanted > kEach * 32) return 0;
    for (int step = 0; step < 10; ++step) {  // `low` is always reached by enough
      const std::uint32_t tried = low + (high - low) / 2;
      int reached = 0;
#pragma unroll
      for (int i = 0; i < kEach; ++i) reached += mine[i] >= tried ? 1 : 0;
      if (__reduce_add_sync(~0U, reached) >= wanted) {
        low = tried;
      } else {
        high = tried;
      }
    }
    return low;
  }

  // Notes a lane whose tokens may be candidates. What does not fit is counted all the same.
  __device__ void note(float largest, int i) {
    if (!(largest >= least)) return;
    const std::uint32_t place = atomicAdd(&shared.noted, 1U);
    if (place >= static_cast<std::uint32_t>(shape.notes)) return;
    notes[place] = key_of(largest, static_cast<std::uint32_t>(place_of(i) * 32 + lane));
  }

  const ScanShape& shape;
  ScanShared& shared;
  Key* notes;
  Values values;
  typename Held::Loader loader;
  float scale;
  int lane, warp;
  int rank;         // of this block in its cluster
  float least = 0;  // the threshold
};

}  // namespace touchstone::topk
