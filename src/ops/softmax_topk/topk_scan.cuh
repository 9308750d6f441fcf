// One read of a row by a block, or by the blocks of a cluster: its sum of exponentials, and the
// tokens that may be of its k largest.
//
// The row is cut into segments, each held in the registers of a warp. A lane takes the maximum of
// its tokens first. It is the reference of the lane's exponentials, one per token, and only where
// it reaches a threshold are tokens looked at one by one. Lane sums are merged by a fixed butterfly
// and segment sums by a fixed tree: the bits depend on the row alone.
//
// The threshold comes from the first segments of all warps, a sample of the whole row, and is
// raised as candidates come in. In which order they come in depends on timing; which of them are
// the k largest does not.
#pragma once

#include "ops/softmax_topk/topk_segment.cuh"
#include "ops/softmax_topk/topk_select.cuh"

namespace touchstone::topk {

inline constexpr int kMostSegments = 2048;  // a sum of each is kept
inline constexpr int kMaxScanCluster = 8;
inline constexpr int kScanThreads = 256;
inline constexpr int kScanWarps = kScanThreads / 32;

// Segment sums are added by a tree with so many leaves, whatever the number of threads.
inline constexpr int kSumLeaves = 256;

// Up to here the threshold is one that k tokens of the sample reach, so that it cannot be too high.
// For more, it is a guess: what falls short is done again.
inline constexpr int kCertainK = 256;

// How far down the sample of a row to go for a guess: if the sample is a share `fraction` of the
// row, it has k * fraction of the k largest on average; some standard deviations more are almost
// certainly enough.
__host__ __device__ inline float guessed_tokens(int k, float fraction) {
  const float mean = static_cast<float>(k) * fminf(1.0F, fraction);
  return mean + 4.5F * sqrtf(mean) + 8;
}

// As many candidates as that lets in, and five standard deviations more.
__host__ __device__ inline int guessed_candidates(int k, int segments) {
  const float fraction = fminf(1.0F, 2.0F * kScanWarps / static_cast<float>(segments));
  const float sampled = guessed_tokens(k, fraction);
  return static_cast<int>(sampled / fraction * (1 + 5 / sqrtf(sampled)));
}

struct ScanShape {
  std::int64_t vocabulary = 0;
  int token_bits = 0;  // of the largest token
  int segments = 0;
  int candidates = 0;  // of a block that fit; of all, at least k and a step of read_in_order
  int cluster = 1;     // blocks that share a row

  // For the candidates of the whole row.
  __host__ __device__ int room() const { return cluster * candidates; }
};

// Dynamic shared memory: this, then sums and candidates.
struct ScanShared {
  using Shape = ScanShape;
  static constexpr int kThreads = kScanThreads;
  static constexpr int kWarps = kScanWarps;

  SelectScratch<kThreads> select;
  std::uint32_t count;      // candidates, also those that did not fit
  std::uint32_t threshold;  // ordered word: tokens below cannot be of the k largest
  std::uint32_t flags;
  std::uint32_t taken;  // vectors with candidates; later scratch
  // Of the blocks of a cluster: what each found, in all of them, and how many candidates it has, in
  // the first.
  alignas(8) Key thresholds[kMaxScanCluster];
  Key counts[kMaxScanCluster];
  alignas(16) float reduction[2 * kSumLeaves / 32];
  // A segment of each warp; later the sorted keys.
  uint4 staged[kScanThreads * 4 + SelectScratch<kThreads>::kCrowded / 2];
  alignas(16) unsigned char rest[16];

  static constexpr int kMostSorted = kScanThreads * 4 * 2;
  static_assert(kMostSorted <= SelectScratch<kThreads>::kMostRanked);
  static constexpr unsigned kMostVectors = kScanThreads * 4;  // with candidates
  static constexpr std::uint32_t kNan = 1;
  static constexpr std::uint32_t kHuge = 2;  // +inf, or v * scale overflows
  static constexpr std::uint32_t kOverflow = 4;
  static constexpr std::uint32_t kReadTwice = 8;

  __host__ __device__ static std::int64_t bytes(const ScanShape& shape) {
    return static_cast<std::int64_t>(sizeof(ScanShared)) +
           8 * (std::int64_t{shape.segments} + shape.room());
  }
  __device__ Key* sorted() { return reinterpret_cast<Key*>(staged); }
  __device__ float2* sums(const ScanShape& /*shape*/) { return reinterpret_cast<float2*>(rest); }
  // In a cluster, those of the other blocks come to lie behind those of the first.
  __device__ Key* candidates(const ScanShape& shape) {
    return reinterpret_cast<Key*>(sums(shape) + shape.segments);
  }
};

// The ordered word after that of -inf: masked tokens are never candidates.
inline constexpr std::uint32_t kAboveNothing = 0x00800000U;

// kPlain: the values are the logits as they are. kOnGrid: all rows start on 16 bytes. kDepth:
// segments that a warp has in registers. kKeepsVectors: of plain rows that a block has to itself,
// for some hundred places. Then there are few candidates to a segment, and it is quickest to guess
// the threshold, to keep whole vectors and to look at them when the row has been read. kAlone: a
// block has the row to itself; then a guess may be raised. kWide: the same, for more than kCertainK
// places.
template <class Values, bool kPlain, bool kOnGrid, int kDepth, bool kKeepsVectors = false,
          bool kAlone = kKeepsVectors, bool kWide = kKeepsVectors>
class RowScan {
 public:
  using T = typename Values::Logit;
  using Held = Segment<T, kPlain>;
  using Loader = SegmentLoader<T, Held::kVectors, kOnGrid>;
  using Raw = typename Loader::Raw;

  __device__ RowScan(const ScanShape& scan_shape, ScanShared& memory, const Values& row)
      : shape(scan_shape),
        shared(memory),
        values(row),
        loader(row.logits, scan_shape.vocabulary),
        lane(static_cast<int>(threadIdx.x) % 32),
        warp(static_cast<int>(threadIdx.x) / 32),
        rank(cluster() > 1 ? static_cast<int>(cluster_block()) : 0),
        own((scan_shape.segments - rank + cluster() - 1) / cluster()) {}

  // Has the first segments brought to L2, while the grids before this one end.
  __device__ void ask_ahead() const {
    for (int i = begin(); i < min(end(), begin() + 4); ++i) loader.prefetch(first_token(i), lane);
  }

  // Has the first segments brought, while the caller finds out what to do with the row.
  __device__ void start() {
    set_counters();
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      if (begin() + d < end()) loader.load(first_token(begin() + d), lane, raw[d]);
    }
  }

  // With those that another scan has asked for.
  __device__ void start_with(const Raw (&loaded)[kDepth]) {
    set_counters();
#pragma unroll
    for (int d = 0; d < kDepth; ++d) raw[d] = loaded[d];
  }

  __device__ const Raw (&loaded() const)[kDepth] { return raw; }

  // Reads this block's part of the row, which is every segment whose number is its rank in turn,
  // for so many places.
  __device__ void run(int places, float exponent_scale) {
    k = places;
    scale = exponent_scale;
    int next = begin();
    const int end = this->end();
    __syncthreads();  // the counters are set
    if constexpr (cuda::kHopper) {
      if (cluster() > 1) cuda::cluster_arrive_relaxed();
    }
    float largest[kDepth];
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      largest[d] = -infinity();
      if (next + d >= end) continue;
      loader.settle(raw[d], lane);
      largest[d] = add_up(hold(raw[d], next + d), next + d);
    }
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      if (next + kDepth + d < end) loader.prefetch(first_token(next + kDepth + d), lane);
    }
    choose_threshold(largest);
    for (int done = 0; next < end; next += kDepth) {
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        if (next + d >= end) break;
        if (done > 0) loader.settle(raw[d], lane);
        const Held held = hold(raw[d], next + d);
        if (done > 0) largest[d] = add_up(held, next + d);
        collect(held, largest[d], next + d);
        if (next + kDepth + d < end) loader.load(first_token(next + kDepth + d), lane, raw[d]);
      }
      done += kDepth;
      if (time_to_raise(done)) raise_threshold(done);
    }
    __syncthreads();
    if constexpr (kKeepsVectors) {
      look_at_vectors();
    } else if constexpr (kAlone) {
      if (raises_guess()) check_raised_guess();
    }
  }

 private:
  __device__ void set_counters() {
    if (threadIdx.x != 0) return;
    shared.count = 0;
    shared.flags = 0;
    shared.taken = 0;
  }

  __device__ int cluster() const { return kAlone ? 1 : shape.cluster; }
  __device__ static unsigned cluster_block() {
    if constexpr (cuda::kHopper) return cuda::cluster_rank();
    return 0;
  }

  // Runs of segments, so that the first ones of the warps are a sample of the whole row.
  __device__ int begin() const { return own * warp / kScanWarps; }
  __device__ int end() const { return own * (warp + 1) / kScanWarps; }

  // The place in the row of the block's i-th segment, and its first token.
  __device__ int place_of(int i) const { return i * cluster() + rank; }
  __device__ int first_token(int i) const { return place_of(i) * Held::kTokens; }
  __device__ Held hold(const Raw& raw, int i) const {
    return Held(raw, values, first_token(i), static_cast<int>(shape.vocabulary), lane);
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
    const float largest = held.largest();
    const RowSum sum = lane_sum(held, largest);
    float reference = sum.reference;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      reference = fmaxf(reference, __shfl_xor_sync(~0U, reference, offset));
    }
    float total = reference == -infinity() ? 0 : sum.sum * exp2_fast(sum.reference - reference);
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) total += __shfl_xor_sync(~0U, total, offset);
    if (lane == 0) shared.sums(shape)[place_of(i)] = {reference, total};
    return largest;
  }

  // ---- the threshold ---------------------------------------------------------------------------

  __device__ bool guesses() const { return kWide || k > kCertainK; }

  // How many samples must reach the threshold. Of the blocks of a cluster, each finds its share.
  __device__ int wanted_samples(int samples) const {
    if (!guesses()) return (k + cluster() - 1) / cluster();
    const auto segments = static_cast<float>(min(kDepth * kScanWarps, own) * cluster());
    const float tokens = guessed_tokens(k, segments / static_cast<float>(shape.segments)) /
                         static_cast<float>(cluster());
    // Of tokens that lie anywhere, several are in one lane.
    return 1 + static_cast<int>(static_cast<float>(samples) *
                                (1 - __expf(-tokens / static_cast<float>(samples))));
  }

  // Samples are the maxima of lanes: of each segment, or where few are wanted, of all.
  __device__ void choose_threshold(const float (&largest)[kDepth]) {
    std::uint32_t* const samples = shared.select.pairs;
    static_assert(kDepth * kScanThreads <= SelectScratch<kScanThreads>::kBins / 2);
    const bool few = !kWide && k <= 64 * cluster();
    std::uint32_t best = 0;
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      const std::uint32_t word = isnan(largest[d]) ? 0 : ordered(largest[d]);
      best = max(best, word);
      if (!few) samples[d * kScanThreads + threadIdx.x] = word;
    }
    if (few) samples[threadIdx.x] = best;
    __syncthreads();
    const int count = few ? kScanThreads : kDepth * kScanThreads;
    const int wanted = wanted_samples(count);
    std::uint32_t found = word_reached_by(
        wanted, guesses() ? 0 : 4 + wanted / 8, count, Held::kEqualBits, kAboveNothing,
        [&](int i) { return samples[i]; }, shared.select);
    if constexpr (cuda::kHopper) {
      if (cluster() > 1) {
        // As all blocks together want k tokens that reach it, the lowest of their thresholds will
        // do.
        cuda::cluster_wait();  // all blocks have started
        if (threadIdx.x < static_cast<unsigned>(cluster())) {
          cuda::cluster_store(cuda::cluster_address(&shared.thresholds[rank], threadIdx.x), found);
        }
        cuda::cluster_barrier();
        for (int b = 0; b < cluster(); ++b) {
          found = min(found, static_cast<std::uint32_t>(shared.thresholds[b]));
        }
      }
    }
    use_threshold(max(found, kAboveNothing));
  }

  // When as much has been read as before once more, and is still to come. A guess is good enough
  // where its candidates fit.
  __device__ bool time_to_raise(int done) const {
    return cluster() == 1 && (!guesses() || (kAlone && !kKeepsVectors && raises_guess())) &&
           done > kDepth && (done & (done - 1)) == 0 && 2 * done <= shape.segments / kScanWarps;
  }

  // Where the candidates of the first guess may not fit.
  __device__ bool raises_guess() const {
    return guesses() && guessed_candidates(k, shape.segments) > shape.candidates;
  }

  // The k-th largest so far is a threshold too. A guess is better for being made of more of the
  // row.
  __device__ void raise_threshold(int done) {
    __syncthreads();
    const int held = min(static_cast<int>(shared.count), shape.candidates);
    __syncthreads();  // all have read it before anyone adds to it
    int wanted = k;
    int spare = k / 4;
    if (kAlone && guesses()) {
      wanted = static_cast<int>(guessed_tokens(
          k, static_cast<float>(done * kScanWarps) / static_cast<float>(shape.segments)));
      spare = 0;
    }
    if (held < wanted + spare + 16) return;
    const Key* const candidates = shared.candidates(shape);
    use_threshold(word_reached_by(
        wanted, 4 + wanted / (kAlone ? 16 : 8), held, Held::kEqualBits, kAboveNothing,
        [&](int i) { return static_cast<std::uint32_t>(candidates[i] >> 32); }, shared.select));
  }

  // Beside candidates that do not reach the last threshold, others like them were left out: k of
  // them have to reach it.
  __device__ void check_raised_guess() {
    const auto held = static_cast<int>(shared.count);
    if (held > shape.candidates) return;
    const Key* const candidates = shared.candidates(shape);
    const std::uint32_t threshold = shared.threshold;
    std::uint32_t reaching = 0;
    for (int i = static_cast<int>(threadIdx.x); i < held; i += kScanThreads) {
      reaching += static_cast<std::uint32_t>(candidates[i] >> 32) >= threshold ? 1 : 0;
    }
    reaching = __reduce_add_sync(~0U, reaching);
    if (lane == 0) add_to_shared(shared.taken, reaching);
    __syncthreads();
    const bool short_of = shared.taken < static_cast<unsigned>(k) && threshold > kAboveNothing;
    if (threadIdx.x == 0 && short_of) shared.flags |= ScanShared::kOverflow;
    __syncthreads();
  }

  __device__ void use_threshold(std::uint32_t word) {
    least = unordered(word);
    if (threadIdx.x == 0) shared.threshold = word;
  }

  // ---- the candidates --------------------------------------------------------------------------

  // Keeps the tokens that reach the threshold.
  __device__ void collect(const Held& held, float largest, int i) {
    constexpr int kFewLanes = 4;
    const bool hit = largest >= least;
    if constexpr (kKeepsVectors) {
      if (hit) keep_vectors(held, i);
      return;
    }
    const unsigned lanes = __ballot_sync(~0U, hit);
    if (lanes == 0) return;
    uint4* const room = shared.staged + warp * (32 * 4);
    if (hit) held.stage(room + lane);
    if (__popc(lanes) > kFewLanes) {
      if (hit) collect_own(held, room, i);
    } else {
      collect_few(lanes, room, i);
    }
    __syncwarp();  // before the room is used again
  }

  // Few lanes have such tokens: all look at the tokens of one of them at a time.
  __device__ void collect_few(unsigned lanes, const uint4* room, int i) {
    __syncwarp();
    const auto bit = static_cast<unsigned>(lane % Held::kEach);  // others look at what is there
    const unsigned first = static_cast<unsigned>(first_token(i)) + Held::token_of_bit(bit);
    for (; lanes != 0; lanes &= lanes - 1) {
      const int from = __ffs(static_cast<int>(lanes)) - 1;
      const float value = Held::staged(room + from, bit);
      if (lane < Held::kEach && value >= least) {
        put(add_to_shared(shared.count, 1), value, first + static_cast<unsigned>(from * Held::kN));
      }
    }
  }

  // Each lane looks for its own.
  __device__ void collect_own(const Held& held, const uint4* room, int i) {
    std::uint32_t hits = held.reaching(least);
    std::uint32_t place = add_to_shared(shared.count, static_cast<std::uint32_t>(__popc(hits)));
    const auto first = static_cast<unsigned>(first_token(i) + lane * Held::kN);
    for (; hits != 0; hits &= hits - 1) {
      const auto bit = static_cast<unsigned>(__ffs(static_cast<int>(hits))) - 1;
      put(place++, Held::staged(room + lane, bit), first + Held::token_of_bit(bit));
    }
  }

  // Keeps the lane's vectors that reach the threshold, where segments are staged and bins counted
  // otherwise.
  __device__ void keep_vectors(const Held& held, int i) {
    const unsigned vectors = held.vectors_reaching(least);
    const std::uint32_t at = add_to_shared(shared.taken, static_cast<unsigned>(__popc(vectors)));
    if (at + Held::kVectors > ScanShared::kMostVectors) {
      atomicOr(&shared.flags, ScanShared::kOverflow);
      return;
    }
    static_assert(sizeof(shared.select.pairs) / 4 >= ScanShared::kMostVectors);
    held.keep(vectors, shared.staged + at, shared.select.pairs + at,
              static_cast<unsigned>(place_of(i) * (32 * Held::kVectors) + lane));
  }

  // The candidates of all vectors that were kept.
  __device__ void look_at_vectors() {
    const auto kept = static_cast<int>(min(shared.taken, ScanShared::kMostVectors));
    for (int i = static_cast<int>(threadIdx.x); i < kept; i += kScanThreads) {
      float v[Held::kN];
      cuda::unpack_as<T>(shared.staged[i], v);
      const std::uint32_t first = shared.select.pairs[i] * Held::kN;
      std::uint32_t more = 0;
#pragma unroll
      for (int j = 0; j < Held::kN; ++j) more += v[j] >= least ? 1 : 0;
      std::uint32_t at = add_to_shared(shared.count, more);
#pragma unroll
      for (int j = 0; j < Held::kN; ++j) {
        if (v[j] >= least) put(at++, v[j], first + j);
      }
    }
    __syncthreads();
    // A guess that was too high.
    const bool short_of =
        shared.count < static_cast<unsigned>(k) && shared.threshold > kAboveNothing;
    if (threadIdx.x == 0 && short_of) shared.flags |= ScanShared::kOverflow;
    __syncthreads();
  }

  // What does not fit is only counted.
  __device__ void put(std::uint32_t place, float value, std::uint32_t token) {
    if (place >= static_cast<unsigned>(shape.candidates)) return;
    shared.candidates(shape)[place] = key_of(value, token);
  }

  const ScanShape& shape;
  ScanShared& shared;
  Values values;
  Loader loader;
  int lane, warp;
  int rank;  // of this block in its cluster
  int own;   // segments of this block
  int k = 0;
  float scale = 0;
  float least = 0;  // the threshold
  Raw raw[kDepth];
};

}  // namespace touchstone::topk
