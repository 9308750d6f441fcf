// Streaming selection: one read of a row by a CTA, or by the CTAs of a cluster, yields the segment
// sums of exponentials and a candidate list that contains the k largest tokens.
//
// The row is cut into segments, each held in the registers of a warp. A lane takes the maximum of
// its tokens first: it is the reference of the lane's exponentials, and only lanes whose maximum
// reaches the threshold inspect single tokens. Lane sums are combined by a fixed butterfly and
// segment sums by a fixed tree, so the bits depend on the row alone.
//
// The threshold comes from the first segments of all warps, a sample of the whole row, and is
// raised as candidates arrive. Their order of arrival depends on timing; the k largest do not.
#pragma once

#include "ops/selection/packed_key32.cuh"
#include "ops/selection/rank.cuh"
#include "ops/selection/row_sum.cuh"
#include "ops/selection/segment.cuh"
#include "ops/selection/select_params.h"
#include "ops/selection/selection_tuning.h"

namespace touchstone::selection {

inline constexpr int kStreamingWarps = kStreamingThreads / 32;

// The rank in the sample at which to estimate the threshold: a sample of a fraction of the row
// holds k * fraction of the k largest on average; 4.5 standard deviations more are almost certainly
// enough.
__host__ __device__ inline float estimated_tokens(int k, float fraction) {
  const float mean = static_cast<float>(k) * fminf(1.0F, fraction);
  return mean + 4.5F * sqrtf(mean) + 8;
}

using StreamingParams = SelectParams;

// Dynamic shared memory of a CTA: this, then segment sums and candidates.
template <int kBlockThreads>
struct StreamingSmemFor {
  using Params = StreamingParams;
  static constexpr int kThreads = kBlockThreads;
  static constexpr int kWarps = kThreads / 32;
  using Select = SelectScratch<kThreads>;

  Select select;
  std::uint32_t count;      // candidates, including those that did not fit
  std::uint32_t threshold;  // ordered word: tokens below are not among the k largest
  std::uint32_t flags;
  std::uint32_t taken;  // scratch
  // Per CTA of a cluster: its threshold, in all CTAs, and its number of candidates, in the first.
  alignas(8) Key thresholds[kMaxStreamingCluster];
  Key counts[kMaxStreamingCluster];
  alignas(16) float reduction[kSumLeaves / 32 + kWarps];
  // One staged segment or vector queue per warp; later the sorted keys.
  uint4 staged[kThreads * 4 + Select::kMaxBinKeys / 2];
  alignas(16) unsigned char rest[16];

  static constexpr int kMaxSorted = kMaxStreamingK;
  static_assert(kMaxSorted <= 2 * 4 * kThreads && kMaxSorted <= Select::kMaxRanked);
  static constexpr int kMaxPackedKeys = kThreads * 14;

  __host__ __device__ static std::int64_t bytes(const StreamingParams& params) {
    return static_cast<std::int64_t>(sizeof(StreamingSmemFor)) +
           8 * (std::int64_t{params.segments} + params.capacity());
  }
  __device__ Key* sorted() { return reinterpret_cast<Key*>(staged); }
  __device__ float2* sums(const StreamingParams& /*params*/) {
    return reinterpret_cast<float2*>(rest);
  }
  // In a cluster, the first CTA receives those of the others behind its own.
  __device__ Key* candidates(const StreamingParams& params) {
    return reinterpret_cast<Key*>(sums(params) + params.segments);
  }
  // Aliases candidates().
  __device__ std::uint32_t* packed_keys(const StreamingParams& params) {
    return reinterpret_cast<std::uint32_t*>(candidates(params));
  }
  __host__ __device__ static int max_packed_keys(const StreamingParams& params) {
    return 2 * params.candidates < kMaxPackedKeys ? 2 * params.candidates : kMaxPackedKeys;
  }
};
using StreamingSmem = StreamingSmemFor<kStreamingThreads>;

// How a row is partitioned and how its candidates are kept; each mode is narrower than the one
// before.
enum class StreamingMode {
  cluster,              // one CTA or a cluster per row
  single_block,         // one CTA per row
  estimated_threshold,  // and the threshold is estimated for any k
  packed_keys,          // and candidates are PackedKey32, raw bf16 logits; leaves the bins cleared
};

// kRawLogits: no bias, mask or penalties. kAligned16: all rows start at multiples of 16 bytes.
template <class Values, bool kRawLogits, bool kAligned16,
          StreamingMode kMode = StreamingMode::cluster, class Smem = StreamingSmem>
class StreamingSelect {
  static constexpr bool kPackedKeys = kMode == StreamingMode::packed_keys;

 public:
  using T = typename Values::Logit;
  using Held = Segment<T, kRawLogits>;
  using Loader = SegmentLoader<T, Held::kVectors, kAligned16>;
  using Raw = typename Loader::Raw;
  static constexpr int kThreads = Smem::kThreads;
  static constexpr int kWarps = Smem::kWarps;
  static constexpr int kPrefetchDepth = kStreamingPrefetchDepth;

  __device__ StreamingSelect(const StreamingParams& streaming_params, Smem& memory,
                             const Values& row)
      : params(streaming_params),
        smem(memory),
        values(row),
        loader(row.logits, streaming_params.vocabulary),
        lane(static_cast<int>(threadIdx.x) % 32),
        warp(static_cast<int>(threadIdx.x) / 32),
        rank(cluster() > 1 ? static_cast<int>(cluster_block()) : 0),
        own((streaming_params.segments - rank + cluster() - 1) / cluster()) {}

  // Prefetches the first segments to L2 while the previous grids drain.
  __device__ void prefetch_l2() const {
    for (int i = begin(); i < min(end(), begin() + 4); ++i) loader.prefetch(first_token(i), lane);
  }

  // Issues the loads of the first segments; the caller reads the row's parameters meanwhile.
  __device__ void start() {
    set_counters();
#pragma unroll
    for (int d = 0; d < kPrefetchDepth; ++d) {
      if (begin() + d < end()) loader.load(first_token(begin() + d), lane, raw[d]);
    }
  }

  // Continues with segments that another selection has loaded.
  __device__ void start_with(const Raw (&loaded)[kPrefetchDepth]) {
    set_counters();
#pragma unroll
    for (int d = 0; d < kPrefetchDepth; ++d) raw[d] = loaded[d];
  }

  __device__ const Raw (&loaded() const)[kPrefetchDepth] { return raw; }

  // Main loop: reads this CTA's share of the row, the segments i with i % cluster == rank.
  __device__ void run(int slots, float exponent_scale) {
    k = slots;
    scale = exponent_scale;
    int next = begin();
    const int end = this->end();
    __syncthreads();  // the counters are set
    if constexpr (cuda::kHopper) {
      if (cluster() > 1) cuda::cluster_arrive_relaxed();
    }
    float largest[kPrefetchDepth];
#pragma unroll
    for (int d = 0; d < kPrefetchDepth; ++d) {
      largest[d] = -infinity();
      if (next + d >= end) continue;
      loader.realign(raw[d], lane);
      largest[d] = add_up(hold(raw[d], next + d), next + d);
    }
#pragma unroll
    for (int d = 0; d < kPrefetchDepth; ++d) {
      if (next + kPrefetchDepth + d < end)
        loader.prefetch(first_token(next + kPrefetchDepth + d), lane);
    }
    choose_threshold(largest);
    for (int done = 0; next < end; next += kPrefetchDepth) {
#pragma unroll
      for (int d = 0; d < kPrefetchDepth; ++d) {
        if (next + d >= end) break;
        if (done > 0) loader.realign(raw[d], lane);
        const Held held = hold(raw[d], next + d);
        // Enqueued before they are summed: both start with the vector maxima.
        if constexpr (kPackedKeys) enqueue_vectors(held, next + d);
        if (done > 0) largest[d] = add_up(held, next + d);
        if constexpr (!kPackedKeys) collect(held, largest[d], next + d);
        if (next + kPrefetchDepth + d < end)
          loader.load(first_token(next + kPrefetchDepth + d), lane, raw[d]);
        if constexpr (kPackedKeys) {
          while (queued >= 32) flush_queue(32);
        }
      }
      done += kPrefetchDepth;
      if (should_raise_threshold(done)) raise_threshold();
    }
    if constexpr (kPackedKeys) flush_queue(queued);
    __syncthreads();
    if constexpr (kPackedKeys) {
      clear_bins();
      __syncthreads();
    }
  }

 private:
  __device__ void set_counters() {
    if (threadIdx.x != 0) return;
    smem.count = 0;
    smem.flags = 0;
  }

  __device__ int cluster() const { return kMode == StreamingMode::cluster ? params.cluster : 1; }
  __device__ static unsigned cluster_block() {
    if constexpr (cuda::kHopper) return cuda::cluster_rank();
    return 0;
  }

  // A warp owns a contiguous run of segments, so that the first segments sample the whole row.
  __device__ int begin() const { return own * warp / kWarps; }
  __device__ int end() const { return own * (warp + 1) / kWarps; }

  // The index in the row of the CTA's i-th segment, and its first token.
  __device__ int segment_of(int i) const { return i * cluster() + rank; }
  __device__ int first_token(int i) const { return segment_of(i) * Held::kTokens; }
  __device__ Held hold(const Raw& raw, int i) const {
    return Held(raw, values, first_token(i), static_cast<int>(params.vocabulary), lane);
  }

  // Stores the sum of a segment. Returns the lane's maximum.
  __device__ float add_up(const Held& held, int i) {
    RowSum sum;
    const float largest = sum_segment(held, scale, smem.flags, sum);
    if (lane == 0) smem.sums(params)[segment_of(i)] = {sum.reference, sum.sum};
    return largest;
  }

  // ---- threshold -------------------------------------------------------------------------------

  __device__ bool estimates_threshold() const {
    return kMode >= StreamingMode::estimated_threshold || k > kMaxExactThresholdK;
  }

  // Samples that must reach the threshold; in a cluster, the share of this CTA.
  __device__ int wanted_samples(int samples) const {
    if (!estimates_threshold()) return (k + cluster() - 1) / cluster();
    const auto segments = static_cast<float>(min(kPrefetchDepth * kWarps, own) * cluster());
    const float tokens = estimated_tokens(k, segments / static_cast<float>(params.segments)) /
                         static_cast<float>(cluster());
    // Randomly placed tokens collide in lanes: expected number of distinct lanes.
    return 1 + static_cast<int>(static_cast<float>(samples) *
                                (1 - __expf(-tokens / static_cast<float>(samples))));
  }

  // Samples are lane maxima: one per segment, or for small k one over all segments of the lane.
  __device__ void choose_threshold(const float (&largest)[kPrefetchDepth]) {
    std::uint32_t* const samples = smem.select.pairs;
    static_assert(kPrefetchDepth * kThreads <= Smem::Select::kBins / 2);
    const bool one_per_lane = k <= 64 * cluster();
    std::uint32_t best = 0;
#pragma unroll
    for (int d = 0; d < kPrefetchDepth; ++d) {
      const std::uint32_t word = isnan(largest[d]) ? 0 : ordered(largest[d]);
      best = max(best, word);
      if (!one_per_lane) samples[d * kThreads + threadIdx.x] = word;
    }
    if (one_per_lane) samples[threadIdx.x] = best;
    __syncthreads();
    const int count = one_per_lane ? kThreads : kPrefetchDepth * kThreads;
    const int wanted = wanted_samples(count);
    std::uint32_t found = block_threshold(
        wanted, estimates_threshold() ? 0 : 4 + wanted / 8, count, Held::kEqualBits,
        kMinCandidateWord, [&](int i) { return samples[i]; }, smem.select);
    if constexpr (cuda::kHopper) {
      if (cluster() > 1) {
        // k tokens of the cluster reach the lowest of its thresholds.
        cuda::cluster_wait();  // all CTAs have started
        if (threadIdx.x < static_cast<unsigned>(cluster())) {
          cuda::cluster_store(cuda::cluster_address(&smem.thresholds[rank], threadIdx.x), found);
        }
        cuda::cluster_barrier();
        for (int b = 0; b < cluster(); ++b) {
          found = min(found, static_cast<std::uint32_t>(smem.thresholds[b]));
        }
      }
    }
    use_threshold(max(found, kMinCandidateWord));
  }

  // At every doubling of what was read, unless less than that is left. Estimates are not raised.
  __device__ bool should_raise_threshold(int done) const {
    return cluster() == 1 && !estimates_threshold() && done > kPrefetchDepth &&
           (done & (done - 1)) == 0 && 2 * done <= params.segments / kWarps;
  }

  // The k-th largest candidate so far is a valid threshold.
  __device__ void raise_threshold() {
    __syncthreads();
    const int held = min(static_cast<int>(smem.count), params.candidates);
    __syncthreads();  // all threads have read the count before the next segment adds to it
    if (held < k + k / 4 + 16) return;
    const Key* const candidates = smem.candidates(params);
    use_threshold(block_threshold(
        k, 4 + k / 8, held, Held::kEqualBits, kMinCandidateWord,
        [&](int i) { return static_cast<std::uint32_t>(candidates[i] >> 32); }, smem.select));
  }

  __device__ void use_threshold(std::uint32_t word) {
    least = unordered(word);
    if (threadIdx.x == 0) smem.threshold = word;
  }

  // ---- candidates ------------------------------------------------------------------------------

  // Pushes the tokens that reach the threshold.
  __device__ void collect(const Held& held, float largest, int i) {
    constexpr int kMaxSharedLanes = 4;
    const bool hit = largest >= least;
    const unsigned lanes = __ballot_sync(~0U, hit);
    if (lanes == 0) return;
    uint4* const buffer = smem.staged + warp * (32 * 4);
    if (hit) held.stage(buffer + lane);
    if (__popc(lanes) > kMaxSharedLanes) {
      if (hit) collect_by_lane(held, buffer, i);
    } else {
      collect_by_warp(lanes, buffer, i);
    }
    __syncwarp();  // the staging buffer is reused
  }

  // Few lanes have hits: the whole warp inspects the tokens of one lane at a time.
  __device__ void collect_by_warp(unsigned lanes, const uint4* buffer, int i) {
    __syncwarp();
    const auto bit =
        static_cast<unsigned>(lane % Held::kEach);  // surplus lanes repeat valid tokens
    const unsigned first = static_cast<unsigned>(first_token(i)) + Held::token_of_bit(bit);
    for (; lanes != 0; lanes &= lanes - 1) {
      const int from = __ffs(static_cast<int>(lanes)) - 1;
      const float value = Held::staged(buffer + from, bit);
      if (lane < Held::kEach && value >= least) {
        push(atomic_add_shared(smem.count, 1), value,
             first + static_cast<unsigned>(from * Held::kN));
      }
    }
  }

  // Each lane inspects its own tokens.
  __device__ void collect_by_lane(const Held& held, const uint4* buffer, int i) {
    std::uint32_t hits = held.reaching(least);
    std::uint32_t slot = atomic_add_shared(smem.count, static_cast<std::uint32_t>(__popc(hits)));
    const auto first = static_cast<unsigned>(first_token(i) + lane * Held::kN);
    for (; hits != 0; hits &= hits - 1) {
      const auto bit = static_cast<unsigned>(__ffs(static_cast<int>(hits))) - 1;
      push(slot++, Held::staged(buffer + lane, bit), first + Held::token_of_bit(bit));
    }
  }

  // Per-warp queue of vectors that reach the threshold, and their numbers in the row.
  static constexpr int kQueueCapacity = 128;
  __device__ uint4* queue() const { return smem.staged + warp * kQueueCapacity; }
  __device__ std::uint32_t* numbers() const {
    static_assert(sizeof(smem.select.pairs) == 4 * kWarps * kQueueCapacity);
    return smem.select.pairs + warp * kQueueCapacity;
  }

  // At most 31 vectors are queued on entry.
  __device__ void enqueue_vectors(const Held& held, int i) {
    const std::uint32_t bound = Held::bound_of(least);
    unsigned lanes_before;
    asm("mov.u32 %0, %lanemask_lt;" : "=r"(lanes_before));
    const auto number = static_cast<std::uint32_t>(segment_of(i) * (32 * Held::kVectors) + lane);
#pragma unroll
    for (int j = 0; j < Held::kVectors; ++j) {
      const bool hit = held.vector_reaches(j, bound);
      const unsigned lanes = __ballot_sync(~0U, hit);
      if (hit) {
        const int at = queued + __popc(lanes & lanes_before);
        queue()[at] = held.vector(j);
        numbers()[at] = number + j * 32;
      }
      queued += __popc(lanes);
      // Leave space for the next two vectors.
      if (j == 1 && queued > kQueueCapacity - 64) flush_queue(32);
    }
  }

  // Pushes the tokens of the last n queued vectors, one vector per lane.
  __device__ void flush_queue(int n) {
    __syncwarp();
    queued -= n;
    if (lane < n) {
      const uint4* const vector = queue() + queued + lane;
      std::uint32_t hits = Held::reaching(*vector, Held::bound_of(least));
      const std::uint32_t first = numbers()[queued + lane] * Held::kN;
      std::uint32_t slot = atomic_add_shared(smem.count, static_cast<unsigned>(__popc(hits)));
      for (; hits != 0; hits &= hits - 1) {
        const auto bit = static_cast<unsigned>(__ffs(static_cast<int>(hits))) - 1;
        const unsigned token = Held::token_of_bit(bit);
        push(slot++, cuda::widen(reinterpret_cast<const T*>(vector)[token]), first + token);
      }
    }
    __syncwarp();  // the queue is reused
  }

  // After all warps are done with their queues, which alias the bins.
  __device__ void clear_bins() {
    constexpr int kWords = Smem::Select::kBins / 2;
    static_assert(kWords == 4 * kThreads);
    reinterpret_cast<uint4*>(smem.select.pairs)[threadIdx.x] = {0, 0, 0, 0};
  }

  // Candidates that do not fit are only counted.
  __device__ void push(std::uint32_t slot, float value, std::uint32_t token) {
    if constexpr (kPackedKeys) {
      if (slot >= static_cast<unsigned>(Smem::max_packed_keys(params))) return;
      smem.packed_keys(params)[slot] = PackedKey32(least, params.token_bits)(value, token);
    } else {
      if (slot >= static_cast<unsigned>(params.candidates)) return;
      smem.candidates(params)[slot] = key_of(value, token);
    }
  }

  const StreamingParams& params;
  Smem& smem;
  Values values;
  Loader loader;
  int lane, warp;
  int rank;  // of this CTA in its cluster
  int own;   // segments of this CTA
  int k = 0;
  float scale = 0;
  float least = 0;  // the threshold
  int queued = 0;   // vectors of this warp
  Raw raw[kPrefetchDepth];
};

}  // namespace touchstone::selection
