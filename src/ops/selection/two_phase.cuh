// Two-phase selection for k <= 64: phase one reads the row and keeps only segment sums and the
// maxima of vectors; phase two takes the k-th largest of the thread maxima as threshold, which k
// tokens reach, and re-reads the few vectors that reach it.
//
// Rows with NaN, infinities, fewer than k finite tokens or too many equal values are left to the
// slow path (slow_path.cuh), which reads the row once more.
#pragma once

#include "ops/selection/rank.cuh"
#include "ops/selection/row_sum.cuh"
#include "ops/selection/segment.cuh"
#include "ops/selection/select_params.h"

namespace touchstone::selection {

struct TwoPhaseParams : SelectParams {
  int slots = 0;   // largest k
  int merged = 1;  // consecutive segments per maximum
  int maxima = 0;  // per lane
  int maximum_bytes = 4;
};

// Dynamic shared memory: this, then sorted keys, segment sums, and maxima or candidates.
template <int kBlockThreads>
struct alignas(16) TwoPhaseSmem {
  using Params = TwoPhaseParams;
  static constexpr int kThreads = kBlockThreads;
  static constexpr int kWarps = kThreads / 32;
  using Select = SelectScratch<kThreads>;

  Select select;
  std::uint32_t count;      // candidates, including those that did not fit
  std::uint32_t threshold;  // as in StreamingSmem; unused for k <= 64
  std::uint32_t flags;
  std::uint32_t taken;  // vectors that reach the threshold
  float reduction[2 * kSumLeaves / 32];

  static constexpr int kMaxHits = Select::kBins / 2;
  static constexpr int kMaxAllPairs = 128;  // tokens for rank_all_pairs()

  __host__ __device__ static std::int64_t bytes(const TwoPhaseParams& params) {
    const int keys = params.slots + Select::kMaxBinKeys + params.segments;
    const int maxima = params.maximum_bytes * kThreads * params.maxima;
    const int candidates = 8 * params.candidates;
    return static_cast<std::int64_t>(sizeof(TwoPhaseSmem)) + 8 * keys +
           (maxima > candidates ? maxima : candidates);
  }
  __device__ Key* sorted() { return reinterpret_cast<Key*>(this + 1); }
  __device__ float2* sums(const TwoPhaseParams& params) {
    return reinterpret_cast<float2*>(sorted() + params.slots + Select::kMaxBinKeys);
  }
  __device__ Key* candidates(const TwoPhaseParams& params) {
    return reinterpret_cast<Key*>(sums(params) + params.segments);
  }
  // Aliases candidates(): dead once candidates are collected.
  template <class Maximum>
  __device__ Maximum* maxima(const TwoPhaseParams& params) {
    return reinterpret_cast<Maximum*>(candidates(params));
  }
};

// kAligned16: all rows start at multiples of 16 bytes. kPrefetchDepth: segments per warp in
// registers.
template <class T, bool kAligned16, int kThreads, int kPrefetchDepth>
class TwoPhaseSelect {
 public:
  using Held = Segment<T, true>;
  using Smem = TwoPhaseSmem<kThreads>;
  using Loader = SegmentLoader<T, Held::kVectors, kAligned16>;
  using Raw = typename Loader::Raw;
  using Maximum = typename Held::Maximum;
  static constexpr int kWarps = kThreads / 32;

  __device__ TwoPhaseSelect(const TwoPhaseParams& streaming_params, Smem& memory, const T* row)
      : params(streaming_params),
        smem(memory),
        loader(row, streaming_params.vocabulary),
        lane(static_cast<int>(threadIdx.x) % 32),
        warp(static_cast<int>(threadIdx.x) / 32),
        begin(first_of(warp)),
        end(first_of(warp + 1)) {}

  // Issues the loads of the first segments; the caller reads the row's parameters meanwhile.
  __device__ void start() {
    set_counters();
#pragma unroll
    for (int d = 0; d < kPrefetchDepth; ++d) {
      if (begin + d < end) loader.load((begin + d) * Held::kTokens, lane, raw[d]);
    }
  }

  __device__ const Raw (&loaded() const)[kPrefetchDepth] { return raw; }

  // Phase one: segment sums and vector maxima of the whole row.
  __device__ void read(float scale) {
    __syncthreads();  // the counters are set
    Maximum* slot = own_maxima();
    Maximum* const last = slot + params.maxima * 32;
    Maximum best = Held::no_maximum();
    std::uint32_t largest_word = 0;
    int left = params.merged;
#pragma unroll 1
    for (int i = begin; i < end; i += kPrefetchDepth) {
#pragma unroll
      for (int d = 0; d < kPrefetchDepth; ++d) {
        if (i + d >= end) break;
        loader.realign(raw[d], lane);
        const Held held(raw[d], 0, 0, 0, lane);
        RowSum sum;
        const float largest = sum_segment(held, scale, smem.flags, sum);
        if (lane == 0) smem.sums(params)[i + d] = {sum.reference, sum.sum};
        best = held.larger_maximum(best, largest);
        if (i + d + kPrefetchDepth < end)
          loader.load((i + d + kPrefetchDepth) * Held::kTokens, lane, raw[d]);
        largest_word =
            max(largest_word, isnan(largest) ? 0U : ordered(largest) >> Held::kEqualBits);
        if (--left == 0) {
          *slot = best;
          slot += 32;
          best = Held::no_maximum();
          left = params.merged;
        }
      }
    }
    // Missing segments are -inf.
    for (; slot < last; slot += 32) {
      *slot = best;
      best = Held::no_maximum();
    }
    smem.select.counts[threadIdx.x] = largest_word;
    __syncthreads();
  }

  // Phase two: stores the k largest tokens in order and the row's sum. Returns false if the row
  // needs the slow path. Destroys the maxima.
  __device__ bool select(int k, RowSum& sum) {
    std::uint32_t words[kWarps];
#pragma unroll
    for (int i = 0; i < kWarps; ++i) words[i] = smem.select.counts[32 * i + lane];
    const std::uint32_t word = warp_threshold(k, words, kMinCandidateWord >> Held::kEqualBits);
    if (word == 0 || smem.flags != 0) return false;
    const float least = unordered(word << Held::kEqualBits);
    find_hits(least);
    __syncthreads();
    const auto found = static_cast<int>(smem.taken);
    if (found > Smem::kMaxHits) return false;
    rescan_vectors(found, least);
    __syncthreads();
    const auto count = static_cast<int>(smem.count);
    if (count > Smem::kMaxAllPairs) return false;
    if (warp == kWarps - 1) {
      const RowSum all = warp_row_sum(smem.sums(params), params.segments);
      if (lane == 0) {
        smem.reduction[0] = all.reference;
        smem.reduction[1] = all.sum;
      }
    } else {
      rank_all_pairs<kThreads - 32>(smem.candidates(params), count, k, smem.sorted());
    }
    __syncthreads();
    sum = {smem.reduction[0], smem.reduction[1]};
    return sum.reference > -infinity();
  }

 private:
  __device__ void set_counters() {
    if (threadIdx.x != 0) return;
    smem.count = 0;
    smem.flags = 0;
    smem.taken = 0;
  }

  __device__ Maximum* own_maxima() const {
    return smem.template maxima<Maximum>(params) + warp * params.maxima * 32 + lane;
  }

  // A warp owns a contiguous run of segments.
  __device__ int first_of(int w) const { return params.segments * w / kWarps; }

  // Lists the vectors that may reach the bound: the number of the first one in the row, and above
  // it the number of merged segments that may hold it.
  __device__ void find_hits(float least) {
    const Maximum* const own = own_maxima();
    const auto bound = Held::bound_of(least);
    std::uint32_t* const hits = smem.select.pairs;
#pragma unroll 4
    for (int i = 0; i < params.maxima; ++i) {
      unsigned vectors = Held::vectors_reaching(own[i * 32], bound);
      if (vectors == 0) continue;
      const int segment = begin + i * params.merged;
      const auto segments = static_cast<unsigned>(min(params.merged, end - segment));
      std::uint32_t at = atomic_add_shared(smem.taken, static_cast<unsigned>(__popc(vectors)));
      for (; vectors != 0; vectors &= vectors - 1) {
        const int vector = segment * kVectorsOfSegment + (__ffs(vectors) - 1) * 32 + lane;
        if (at < Smem::kMaxHits) hits[at] = segments << kHitBits | static_cast<unsigned>(vector);
        ++at;
      }
    }
  }

  // Re-reads the listed vectors, one per thread, and pushes their tokens that reach the bound.
  __device__ void rescan_vectors(int found, float least) {
    constexpr int kN = Held::kN;
    const std::uint32_t* const hits = smem.select.pairs;
    for (int task = static_cast<int>(threadIdx.x); task < found * params.merged; task += kThreads) {
      const std::uint32_t hit = hits[task / params.merged];
      const auto next = static_cast<std::uint32_t>(task % params.merged);
      if (next >= hit >> kHitBits) continue;
      const std::uint32_t token = ((hit & ((1U << kHitBits) - 1)) + next * kVectorsOfSegment) * kN;
      float v[kN];
      cuda::unpack_as<T>(loader.vector(static_cast<int>(token)), v);
      std::uint32_t more = 0;
#pragma unroll
      for (int j = 0; j < kN; ++j) more += v[j] >= least ? 1 : 0;
      if (more == 0) continue;
      std::uint32_t at = atomic_add_shared(smem.count, more);
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        if (!(v[j] >= least)) continue;
        if (at < Smem::kMaxAllPairs) smem.candidates(params)[at] = key_of(v[j], token + j);
        ++at;
      }
    }
  }

  static constexpr int kVectorsOfSegment = 32 * Held::kVectors;
  static constexpr int kHitBits = 24;
  static_assert(kMaxSegments * kVectorsOfSegment <= 1 << kHitBits);

  const TwoPhaseParams& params;
  Smem& smem;
  Loader loader;
  int lane, warp;
  int begin, end;  // segments of this warp
  Raw raw[kPrefetchDepth];
};

}  // namespace touchstone::selection
