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

inline constexpr int kMaxSegments = 2048;  // a sum of each is kept
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

struct ScanShape {
  std::int64_t vocabulary = 0;
  int token_bits = 0;  // of the largest token
  int segments = 0;
  int candidates = 0;  // of a block that fit; of all, at least k and a step of read_in_order
  int cluster = 1;     // blocks that share a row

  // For the candidates of the whole row.
  __host__ __device__ int room() const { return cluster * candidates; }
};

// Dynamic shared memory of a block of so many threads: this, then sums and candidates.
template <int kBlockThreads>
struct ScanMemory {
  using Shape = ScanShape;
  static constexpr int kThreads = kBlockThreads;
  static constexpr int kWarps = kThreads / 32;
  using Select = SelectScratch<kThreads>;

  Select select;
  std::uint32_t count;      // candidates, also those that did not fit
  std::uint32_t threshold;  // ordered word: tokens below cannot be of the k largest
  std::uint32_t flags;
  std::uint32_t taken;  // scratch
  // Of the blocks of a cluster: what each found, in all of them, and how many candidates it has, in
  // the first.
  alignas(8) Key thresholds[kMaxScanCluster];
  Key counts[kMaxScanCluster];
  alignas(16) float reduction[kSumLeaves / 32 + kWarps];
  // A segment of each warp, or vectors that it is going to look at; later the sorted keys.
  uint4 staged[kThreads * 4 + Select::kCrowded / 2];
  alignas(16) unsigned char rest[16];

  static constexpr int kMaxSorted = 2048;
  static_assert(kMaxSorted <= 2 * 4 * kThreads && kMaxSorted <= Select::kMaxRanked);
  static constexpr int kMaxShortKeys = kThreads * 14;
  static constexpr std::uint32_t kNan = 1;
  static constexpr std::uint32_t kHuge = 2;  // +inf, or v * scale overflows
  static constexpr std::uint32_t kOverflow = 4;
  static constexpr std::uint32_t kReadTwice = 8;

  __host__ __device__ static std::int64_t bytes(const ScanShape& shape) {
    return static_cast<std::int64_t>(sizeof(ScanMemory)) +
           8 * (std::int64_t{shape.segments} + shape.room());
  }
  __device__ Key* sorted() { return reinterpret_cast<Key*>(staged); }
  __device__ float2* sums(const ScanShape& /*shape*/) { return reinterpret_cast<float2*>(rest); }
  // In a cluster, those of the other blocks come to lie behind those of the first.
  __device__ Key* candidates(const ScanShape& shape) {
    return reinterpret_cast<Key*>(sums(shape) + shape.segments);
  }
  // In the same place.
  __device__ std::uint32_t* short_keys(const ScanShape& shape) {
    return reinterpret_cast<std::uint32_t*>(candidates(shape));
  }
  __host__ __device__ static int most_short_keys(const ScanShape& shape) {
    return 2 * shape.candidates < kMaxShortKeys ? 2 * shape.candidates : kMaxShortKeys;
  }
};
using ScanShared = ScanMemory<kScanThreads>;

// The ordered word after that of -inf: masked tokens are never candidates.
inline constexpr std::uint32_t kAboveNothing = 0x00800000U;

// Keys of 32 bits for tokens of bf16 that reach a threshold: how many values further up its value
// is, then the token as in a Key. Values nearer to 0 than 2^-24 and below -2^24 are left out, so
// that the others up to 2^24 need 14 bits at most.
class ShortKeys {
 public:
  __device__ ShortKeys(float threshold, int bits_of_token)
      : lowest(max(number_of(threshold), number_of(-0x1p24F))), token_bits(bits_of_token) {}

  __device__ std::uint32_t operator()(float value, std::uint32_t token) const {
    // With a threshold above 0, as is usual, all values are.
    const int number = lowest > 0 ? positive_number_of(value) : known_number_of(value);
    // Further down than the lowest is a large number too.
    const std::uint32_t above =
        min(static_cast<std::uint32_t>(number) - static_cast<std::uint32_t>(lowest), no_number());
    return above << token_bits | (~token & token_mask());
  }
  // No value can be told from a key, since it was left out or is too large.
  __device__ bool is_unknown(std::uint32_t key) const { return key >> token_bits == no_number(); }

  __device__ float value(std::uint32_t key) const {
    const int number = static_cast<int>(key >> token_bits) + lowest;
    if (number > 0) return __int_as_float((number + kLeftOut) << 16);
    return number == 0 ? 0 : -__int_as_float((kLeftOut - 1 - number) << 16);
  }
  __device__ std::uint32_t token(std::uint32_t key) const { return ~key & token_mask(); }

 private:
  static constexpr float kTiny = 0x1p-24F;
  static constexpr int kLeftOut = 0x3380;  // its upper half

  __device__ static int positive_number_of(float value) {
    return (__float_as_int(value) >> 16) - kLeftOut;
  }
  // 0 for 0, and what is left out has the number of a neighbor.
  __device__ static int number_of(float value) {
    const int word = static_cast<int>(ordered(value) >> 16) - 0x8000;
    return word >= 0 ? max(word - kLeftOut, 0) : min(word + kLeftOut, -1);
  }
  // And what is left out has one below all others.
  __device__ int known_number_of(float value) const {
    return fabsf(value) <= kTiny && value != 0 ? lowest - 1 : number_of(value);
  }
  // The largest that there are bits for.
  __device__ std::uint32_t no_number() const { return ~0U >> token_bits; }
  __device__ std::uint32_t token_mask() const { return (1U << token_bits) - 1; }

  int lowest;
  int token_bits;
};

// The sum of a segment, in all lanes of the warp that holds it. Returns the lane's maximum.
template <class Held>
__device__ float add_up_segment(const Held& held, float scale, std::uint32_t& flags, RowSum& sum) {
  const float largest = held.largest();
  RowSum own{largest * scale, 0};
  if (fabsf(own.reference) < kLargeExponent) {
    own.sum = held.sum(scale, own.reference);
  } else {
    // NaN, infinities, and exponents that f32 rounds to whole numbers. What is twice as far below 0
    // is nothing, unless the whole row is; then, and above, the row is summed another way when all
    // is known.
    if (!(own.reference <= -2 * kLargeExponent)) {
      atomicOr(&flags, isnan(largest) ? ScanShared::kNan : ScanShared::kHuge);
    }
    own.reference = -infinity();
  }
  sum.reference = warp_max(own.reference);
  sum.sum = sum.reference == -infinity() ? 0 : own.sum * exp2_fast(own.reference - sum.reference);
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    sum.sum += __shfl_xor_sync(~0U, sum.sum, offset);
  }
  return largest;
}

// Whose a row is, and how its candidates are chosen; each is narrower than the one before.
enum class ScanWay {
  any,         // a block's, or a cluster's
  alone,       // a block has the row to itself
  guess,       // and the threshold is a guess for any number of places
  short_keys,  // and candidates are short keys, of plain bf16; bins are cleared in the end
};

// kPlain: the values are the logits as they are. kOnGrid: all rows start on 16 bytes. kDepth:
// segments that a warp has in registers.
template <class Values, bool kPlain, bool kOnGrid, int kDepth, ScanWay kWay = ScanWay::any,
          class Memory = ScanShared>
class RowScan {
  static constexpr bool kShortKeys = kWay == ScanWay::short_keys;

 public:
  using T = typename Values::Logit;
  using Held = Segment<T, kPlain>;
  using Loader = SegmentLoader<T, Held::kVectors, kOnGrid>;
  using Raw = typename Loader::Raw;
  static constexpr int kThreads = Memory::kThreads;
  static constexpr int kWarps = Memory::kWarps;

  __device__ RowScan(const ScanShape& scan_shape, Memory& memory, const Values& row)
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
        // Vectors are queued before they are added up: both begin with their maxima.
        if constexpr (kShortKeys) queue_vectors(held, next + d);
        if (done > 0) largest[d] = add_up(held, next + d);
        if constexpr (!kShortKeys) collect(held, largest[d], next + d);
        if (next + kDepth + d < end) loader.load(first_token(next + kDepth + d), lane, raw[d]);
        if constexpr (kShortKeys) {
          while (queued >= 32) take_queued(32);
        }
      }
      done += kDepth;
      if (time_to_raise(done)) raise_threshold();
    }
    if constexpr (kShortKeys) take_queued(queued);
    __syncthreads();
    if constexpr (kShortKeys) {
      clear_bins();
      __syncthreads();
    }
  }

 private:
  __device__ void set_counters() {
    if (threadIdx.x != 0) return;
    shared.count = 0;
    shared.flags = 0;
  }

  __device__ int cluster() const { return kWay == ScanWay::any ? shape.cluster : 1; }
  __device__ static unsigned cluster_block() {
    if constexpr (cuda::kHopper) return cuda::cluster_rank();
    return 0;
  }

  // Runs of segments, so that the first ones of the warps are a sample of the whole row.
  __device__ int begin() const { return own * warp / kWarps; }
  __device__ int end() const { return own * (warp + 1) / kWarps; }

  // The place in the row of the block's i-th segment, and its first token.
  __device__ int place_of(int i) const { return i * cluster() + rank; }
  __device__ int first_token(int i) const { return place_of(i) * Held::kTokens; }
  __device__ Held hold(const Raw& raw, int i) const {
    return Held(raw, values, first_token(i), static_cast<int>(shape.vocabulary), lane);
  }

  // Leaves the sum of a segment. Returns the lane's maximum.
  __device__ float add_up(const Held& held, int i) {
    RowSum sum;
    const float largest = add_up_segment(held, scale, shared.flags, sum);
    if (lane == 0) shared.sums(shape)[place_of(i)] = {sum.reference, sum.sum};
    return largest;
  }

  // ---- the threshold ---------------------------------------------------------------------------

  __device__ bool guesses() const { return kWay >= ScanWay::guess || k > kCertainK; }

  // How many samples must reach the threshold. Of the blocks of a cluster, each finds its share.
  __device__ int wanted_samples(int samples) const {
    if (!guesses()) return (k + cluster() - 1) / cluster();
    const auto segments = static_cast<float>(min(kDepth * kWarps, own) * cluster());
    const float tokens = guessed_tokens(k, segments / static_cast<float>(shape.segments)) /
                         static_cast<float>(cluster());
    // Of tokens that lie anywhere, several are in one lane.
    return 1 + static_cast<int>(static_cast<float>(samples) *
                                (1 - __expf(-tokens / static_cast<float>(samples))));
  }

  // Samples are the maxima of lanes: of each segment, or where few are wanted, of all.
  __device__ void choose_threshold(const float (&largest)[kDepth]) {
    std::uint32_t* const samples = shared.select.pairs;
    static_assert(kDepth * kThreads <= Memory::Select::kBins / 2);
    const bool few = k <= 64 * cluster();
    std::uint32_t best = 0;
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      const std::uint32_t word = isnan(largest[d]) ? 0 : ordered(largest[d]);
      best = max(best, word);
      if (!few) samples[d * kThreads + threadIdx.x] = word;
    }
    if (few) samples[threadIdx.x] = best;
    __syncthreads();
    const int count = few ? kThreads : kDepth * kThreads;
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

  // When as much has been read as before once more, and is still to come. A guess is good enough.
  __device__ bool time_to_raise(int done) const {
    return cluster() == 1 && !guesses() && done > kDepth && (done & (done - 1)) == 0 &&
           2 * done <= shape.segments / kWarps;
  }

  // The k-th largest so far is a threshold too.
  __device__ void raise_threshold() {
    __syncthreads();
    const int held = min(static_cast<int>(shared.count), shape.candidates);
    __syncthreads();  // all have read it before anyone adds to it
    if (held < k + k / 4 + 16) return;
    const Key* const candidates = shared.candidates(shape);
    use_threshold(word_reached_by(
        k, 4 + k / 8, held, Held::kEqualBits, kAboveNothing,
        [&](int i) { return static_cast<std::uint32_t>(candidates[i] >> 32); }, shared.select));
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

  // The vectors of a warp that reach the threshold, and which of the row they are.
  static constexpr int kQueueRoom = 128;
  __device__ uint4* queue() const { return shared.staged + warp * kQueueRoom; }
  __device__ std::uint32_t* numbers() const {
    static_assert(sizeof(shared.select.pairs) == 4 * kWarps * kQueueRoom);
    return shared.select.pairs + warp * kQueueRoom;
  }

  // Fewer than 32 are there before.
  __device__ void queue_vectors(const Held& held, int i) {
    const std::uint32_t bound = Held::bound_of(least);
    unsigned lanes_before;
    asm("mov.u32 %0, %lanemask_lt;" : "=r"(lanes_before));
    const auto number = static_cast<std::uint32_t>(place_of(i) * (32 * Held::kVectors) + lane);
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
      // There must be room for those of the two to come.
      if (j == 1 && queued > kQueueRoom - 64) take_queued(32);
    }
  }

  // Keeps the tokens of the last n vectors, of one by each lane.
  __device__ void take_queued(int n) {
    __syncwarp();
    queued -= n;
    if (lane < n) {
      const uint4* const vector = queue() + queued + lane;
      std::uint32_t hits = Held::reaching(*vector, Held::bound_of(least));
      const std::uint32_t first = numbers()[queued + lane] * Held::kN;
      std::uint32_t place = add_to_shared(shared.count, static_cast<unsigned>(__popc(hits)));
      for (; hits != 0; hits &= hits - 1) {
        const auto bit = static_cast<unsigned>(__ffs(static_cast<int>(hits))) - 1;
        const unsigned token = Held::token_of_bit(bit);
        put(place++, cuda::widen(reinterpret_cast<const T*>(vector)[token]), first + token);
      }
    }
    __syncwarp();  // before there is more in the queue
  }

  // When everyone is done with what is there.
  __device__ void clear_bins() {
    constexpr int kWords = Memory::Select::kBins / 2;
    static_assert(kWords == 4 * kThreads);
    reinterpret_cast<uint4*>(shared.select.pairs)[threadIdx.x] = {0, 0, 0, 0};
  }

  // What does not fit is only counted.
  __device__ void put(std::uint32_t place, float value, std::uint32_t token) {
    if constexpr (kShortKeys) {
      if (place >= static_cast<unsigned>(Memory::most_short_keys(shape))) return;
      shared.short_keys(shape)[place] = ShortKeys(least, shape.token_bits)(value, token);
    } else {
      if (place >= static_cast<unsigned>(shape.candidates)) return;
      shared.candidates(shape)[place] = key_of(value, token);
    }
  }

  const ScanShape& shape;
  Memory& shared;
  Values values;
  Loader loader;
  int lane, warp;
  int rank;  // of this block in its cluster
  int own;   // segments of this block
  int k = 0;
  float scale = 0;
  float least = 0;  // the threshold
  int queued = 0;   // vectors of this warp
  Raw raw[kDepth];
};

}  // namespace touchstone::topk
