// One read of long rows, many of them, of which few tokens are wanted.
//
// As in topk_scan.cuh a row is cut into segments that warps hold in registers, and their sums are
// merged in a fixed order. But here nothing is chosen while the row is read: a lane leaves the
// maximum of its tokens, and goes on. When the whole row has been read, the k-th largest of the
// maxima is a threshold that k tokens reach, so that nothing below it can be of the k largest. Only
// the lanes that reach it, hardly more than k, have their tokens looked at again: a few lines of
// the row that are still in a cache.
#pragma once

#include "ops/softmax_topk/topk_finish.cuh"

namespace touchstone::topk {

struct MaximaShape : ScanShape {
  int places = 0;  // that are put in order
  int merged = 1;  // neighbouring segments that a maximum is of
  int maxima = 0;  // of each lane of a warp
};

// Dynamic shared memory: this, then sorted keys, sums, and maxima or candidates.
template <int kBlockThreads>
struct alignas(16) MaximaMemory {
  using Shape = MaximaShape;
  static constexpr int kThreads = kBlockThreads;
  static constexpr int kWarps = kThreads / 32;
  using Select = SelectScratch<kThreads>;

  Select select;
  std::uint32_t count;      // candidates, also those that did not fit
  std::uint32_t threshold;  // ordered word: tokens below cannot be of the k largest
  std::uint32_t flags;
  std::uint32_t taken;  // lanes that reach the threshold; later scratch
  float reduction[2 * kSumLeaves / 32];

  static constexpr std::uint32_t kNan = ScanShared::kNan;
  static constexpr std::uint32_t kHuge = ScanShared::kHuge;
  static constexpr std::uint32_t kOverflow = ScanShared::kOverflow;
  static constexpr std::uint32_t kReadTwice = ScanShared::kReadTwice;
  static constexpr int kMostHits = Select::kBins / 2;

  __host__ __device__ static std::int64_t bytes(const MaximaShape& shape) {
    const int keys = shape.places + Select::kCrowded + shape.segments;
    const int maxima = 4 * kThreads * shape.maxima;
    const int candidates = 8 * shape.candidates;
    return static_cast<std::int64_t>(sizeof(MaximaMemory)) + 8 * keys +
           (maxima > candidates ? maxima : candidates);
  }
  __device__ Key* sorted() { return reinterpret_cast<Key*>(this + 1); }
  __device__ float2* sums(const MaximaShape& shape) {
    return reinterpret_cast<float2*>(sorted() + shape.places + Select::kCrowded);
  }
  __device__ Key* candidates(const MaximaShape& shape) {
    return reinterpret_cast<Key*>(sums(shape) + shape.segments);
  }
  // In the same place: they are not needed any more when there are candidates.
  __device__ std::uint32_t* maxima(const MaximaShape& shape) {
    return reinterpret_cast<std::uint32_t*>(candidates(shape));
  }
};

// Of the lanes of a warp; not for NaN.
__device__ inline float warp_max(float value) {
  const auto flipped = [](int bits) { return bits ^ (bits >> 31 & 0x7fffffff); };
  return __int_as_float(flipped(__reduce_max_sync(~0U, flipped(__float_as_int(value)))));
}

// kOnGrid: all rows start on 16 bytes. kDepth: segments that a warp has in registers.
template <class T, bool kOnGrid, int kThreads, int kDepth>
class RowMaxima {
 public:
  using Held = Segment<T, true>;
  using Memory = MaximaMemory<kThreads>;
  using Loader = SegmentLoader<T, Held::kVectors, kOnGrid>;
  using Raw = typename Loader::Raw;
  static constexpr int kWarps = kThreads / 32;

  __device__ RowMaxima(const MaximaShape& scan_shape, Memory& memory, const T* row)
      : shape(scan_shape),
        shared(memory),
        logits(row),
        loader(row, scan_shape.vocabulary),
        lane(static_cast<int>(threadIdx.x) % 32),
        warp(static_cast<int>(threadIdx.x) / 32),
        begin(first_of(warp)),
        end(first_of(warp + 1)) {}

  // Has the first segments brought, while the caller finds out what to do with the row.
  __device__ void start() {
    if (threadIdx.x == 0) {
      shared.count = 0;
      shared.flags = 0;
      shared.taken = 0;
    }
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      if (begin + d < end) loader.load((begin + d) * Held::kTokens, lane, raw[d]);
    }
  }

  // Leaves sums and maxima of the whole row.
  __device__ void read(float scale) {
    __syncthreads();  // the counters are set
    std::uint32_t* place = shared.maxima(shape) + warp * shape.maxima * 32 + lane;
    std::uint32_t* const last = place + shape.maxima * 32;
    std::uint32_t best = 0;
    int left = shape.merged;
#pragma unroll 1
    for (int i = begin; i < end; i += kDepth) {
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        if (i + d >= end) break;
        loader.settle(raw[d], lane);
        const float largest = add_up(raw[d], i + d, scale);
        if (i + d + kDepth < end) loader.load((i + d + kDepth) * Held::kTokens, lane, raw[d]);
        best = max(best, isnan(largest) ? 0U : ordered(largest));
        if (--left == 0) {
          *place = best;
          place += 32;
          best = 0;
          left = shape.merged;
        }
      }
    }
    // What is not there is below everything.
    for (; place < last; place += 32) {
      *place = best;
      best = 0;
    }
    __syncthreads();
  }

  // Keeps the tokens that may be of the k largest.
  __device__ void collect(int k) {
    const int thread = static_cast<int>(threadIdx.x);
    const std::uint32_t* const maxima = shared.maxima(shape);
    const int entries = kThreads * shape.maxima;
    const std::uint32_t word = max(
        kAboveNothing,
        word_reached_by(
            k, 4 + k / 8, entries, kAboveNothing, [&](int i) { return maxima[i]; }, shared.select));
    if (thread == 0) shared.threshold = word;
    std::uint32_t* const hits = shared.select.pairs;
    for (int i = thread; i < entries; i += kThreads) {
      if (maxima[i] < word) continue;
      const std::uint32_t at = atomicAdd(&shared.taken, 1U);
      if (at < Memory::kMostHits) hits[at] = static_cast<std::uint32_t>(i);
    }
    __syncthreads();
    const auto found = static_cast<int>(shared.taken);
    if (found <= Memory::kMostHits) {
      look_at(hits, found, unordered(word));
    } else if (thread == 0) {
      shared.flags |= Memory::kOverflow;
    }
    __syncthreads();
  }

 private:
  // Of the segments, a warp has a run.
  __device__ int first_of(int w) const { return shape.segments * w / kWarps; }

  // Leaves the sum of a segment. Returns the lane's maximum.
  __device__ float add_up(const Raw& settled, int segment, float scale) {
    const Held held(settled, 0, 0, 0, lane);
    const float largest = held.largest();
    RowSum sum{largest * scale, 0};
    if (fabsf(sum.reference) < kLargeExponent) {
      sum.sum = held.sum(scale, sum.reference);
    } else {  // as in RowScan
      if (!(sum.reference <= -2 * kLargeExponent)) {
        atomicOr(&shared.flags, isnan(largest) ? Memory::kNan : Memory::kHuge);
      }
      sum.reference = -infinity();
    }
    const float reference = warp_max(sum.reference);
    float total = reference == -infinity() ? 0 : sum.sum * exp2_fast(sum.reference - reference);
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) total += __shfl_xor_sync(~0U, total, offset);
    if (lane == 0) shared.sums(shape)[segment] = {reference, total};
    return largest;
  }

  // The tokens of so many lanes, a vector at a time.
  __device__ void look_at(const std::uint32_t* hits, int found, float least) {
    constexpr int kN = Held::kN;
    const int each = shape.merged * Held::kVectors;  // vectors of a hit
    const auto vocabulary = static_cast<int>(shape.vocabulary);
    for (int task = static_cast<int>(threadIdx.x); task < found * each; task += kThreads) {
      const auto hit = static_cast<int>(hits[task / each]);
      const int vector = task % each;
      const int w = hit / 32 / shape.maxima;
      const int segment =
          first_of(w) + hit / 32 % shape.maxima * shape.merged + vector / Held::kVectors;
      if (segment >= first_of(w + 1)) continue;
      const int token = segment * Held::kTokens + (vector % Held::kVectors * 32 + hit % 32) * kN;
      float v[kN];
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        v[j] = token + j < vocabulary ? cuda::widen(logits[token + j]) : -infinity();
      }
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        if (v[j] >= least) keep(v[j], static_cast<std::uint32_t>(token + j));
      }
    }
  }

  __device__ void keep(float value, std::uint32_t token) {
    const std::uint32_t at = atomicAdd(&shared.count, 1U);
    if (at < static_cast<unsigned>(shape.candidates)) {
      shared.candidates(shape)[at] = key_of(value, token);
    }
  }

  const MaximaShape& shape;
  Memory& shared;
  const T* logits;
  Loader loader;
  int lane, warp;
  int begin, end;  // segments of this warp
  Raw raw[kDepth];
};

}  // namespace touchstone::topk
