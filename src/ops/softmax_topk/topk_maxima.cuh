// One read of long rows, many of them, of which few tokens are wanted.
//
// As in topk_scan.cuh a row is cut into segments that warps hold in registers, and their sums are
// merged in a fixed order. But here nothing is chosen while the row is read: a lane leaves the
// maxima of its vectors, and goes on. When the whole row has been read, the k-th largest of the
// maxima of threads is a threshold that k tokens reach, so that nothing below it can be of the k
// largest. Only the vectors that reach it, hardly more than k, are fetched again.
//
// Whatever is not usual (NaN, infinities, fewer tokens than places, too many equal ones) takes the
// long way of topk_finish.cuh, which reads the row once more.
#pragma once

#include "ops/softmax_topk/topk_warp.cuh"

namespace touchstone::topk {

struct MaximaShape : ScanShape {
  int places = 0;  // that are put in order
  int merged = 1;  // neighboring segments that a maximum is of
  int maxima = 0;  // of each lane of a warp
  int maximum_bytes = 4;
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
  std::uint32_t threshold;  // as in ScanShared; of no use to so few places
  std::uint32_t flags;
  std::uint32_t taken;  // vectors that reach the threshold
  float reduction[2 * kSumLeaves / 32];

  static constexpr std::uint32_t kNan = ScanShared::kNan;
  static constexpr std::uint32_t kHuge = ScanShared::kHuge;
  static constexpr std::uint32_t kOverflow = ScanShared::kOverflow;
  static constexpr std::uint32_t kReadTwice = ScanShared::kReadTwice;
  static constexpr int kMaxHits = Select::kBins / 2;
  static constexpr int kMaxUsual = 128;  // tokens that are ranked by comparing all with all

  __host__ __device__ static std::int64_t bytes(const MaximaShape& shape) {
    const int keys = shape.places + Select::kCrowded + shape.segments;
    const int maxima = shape.maximum_bytes * kThreads * shape.maxima;
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
  template <class Maximum>
  __device__ Maximum* maxima(const MaximaShape& shape) {
    return reinterpret_cast<Maximum*>(candidates(shape));
  }
};

// kOnGrid: all rows start on 16 bytes. kDepth: segments that a warp has in registers.
template <class T, bool kOnGrid, int kThreads, int kDepth>
class RowMaxima {
 public:
  using Held = Segment<T, true>;
  using Memory = MaximaMemory<kThreads>;
  using Loader = SegmentLoader<T, Held::kVectors, kOnGrid>;
  using Raw = typename Loader::Raw;
  using Maximum = typename Held::Maximum;
  static constexpr int kWarps = kThreads / 32;

  __device__ RowMaxima(const MaximaShape& scan_shape, Memory& memory, const T* row)
      : shape(scan_shape),
        shared(memory),
        loader(row, scan_shape.vocabulary),
        lane(static_cast<int>(threadIdx.x) % 32),
        warp(static_cast<int>(threadIdx.x) / 32),
        begin(first_of(warp)),
        end(first_of(warp + 1)) {}

  // Has the first segments brought, while the caller finds out what to do with the row.
  __device__ void start() {
    set_counters();
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      if (begin + d < end) loader.load((begin + d) * Held::kTokens, lane, raw[d]);
    }
  }

  // With those that another scan has asked for.
  __device__ void start_with(const Raw (&loaded)[kDepth]) {
    __syncthreads();  // it may have set counters of its own
    set_counters();
#pragma unroll
    for (int d = 0; d < kDepth; ++d) raw[d] = loaded[d];
  }

  __device__ const Raw (&loaded() const)[kDepth] { return raw; }

  // Leaves sums and maxima of the whole row.
  __device__ void read(float scale) {
    __syncthreads();  // the counters are set
    Maximum* place = own_maxima();
    Maximum* const last = place + shape.maxima * 32;
    Maximum best = Held::no_maximum();
    std::uint32_t largest_word = 0;
    int left = shape.merged;
#pragma unroll 1
    for (int i = begin; i < end; i += kDepth) {
#pragma unroll
      for (int d = 0; d < kDepth; ++d) {
        if (i + d >= end) break;
        loader.settle(raw[d], lane);
        const Held held(raw[d], 0, 0, 0, lane);
        RowSum sum;
        const float largest = add_up_segment(held, scale, shared.flags, sum);
        if (lane == 0) shared.sums(shape)[i + d] = {sum.reference, sum.sum};
        best = held.larger_maximum(best, largest);
        if (i + d + kDepth < end) loader.load((i + d + kDepth) * Held::kTokens, lane, raw[d]);
        largest_word =
            max(largest_word, isnan(largest) ? 0U : ordered(largest) >> Held::kEqualBits);
        if (--left == 0) {
          *place = best;
          place += 32;
          best = Held::no_maximum();
          left = shape.merged;
        }
      }
    }
    // What is not there is below everything.
    for (; place < last; place += 32) {
      *place = best;
      best = Held::no_maximum();
    }
    shared.select.counts[threadIdx.x] = largest_word;
    __syncthreads();
  }

  // Puts the k largest tokens in order, and gives the row's sum. False when something is not usual.
  // Destroys the maxima.
  __device__ bool answer_usual(int k, RowSum& sum) {
    std::uint32_t words[kWarps];
#pragma unroll
    for (int i = 0; i < kWarps; ++i) words[i] = shared.select.counts[32 * i + lane];
    const std::uint32_t word = warp_word_reached_by(k, words, kAboveNothing >> Held::kEqualBits);
    if (word == 0 || shared.flags != 0) return false;
    const float least = unordered(word << Held::kEqualBits);
    find_hits(least);
    __syncthreads();
    const auto found = static_cast<int>(shared.taken);
    if (found > Memory::kMaxHits) return false;
    look_again(found, least);
    __syncthreads();
    const auto count = static_cast<int>(shared.count);
    if (count > Memory::kMaxUsual) return false;
    if (warp == kWarps - 1) {
      const RowSum all = warp_row_sum(shared.sums(shape), shape.segments);
      if (lane == 0) {
        shared.reduction[0] = all.reference;
        shared.reduction[1] = all.sum;
      }
    } else {
      rank_few_keys<kThreads - 32>(shared.candidates(shape), count, k, shared.sorted());
    }
    __syncthreads();
    sum = {shared.reduction[0], shared.reduction[1]};
    return sum.reference > -infinity();
  }

 private:
  __device__ void set_counters() {
    if (threadIdx.x != 0) return;
    shared.count = 0;
    shared.flags = 0;
    shared.taken = 0;
  }

  __device__ Maximum* own_maxima() const {
    return shared.template maxima<Maximum>(shape) + warp * shape.maxima * 32 + lane;
  }

  // Of the segments, a warp has a run.
  __device__ int first_of(int w) const { return shape.segments * w / kWarps; }

  // Notes the vectors that may reach the bound: the number of one in the row, and above that in how
  // many segments it may be.
  __device__ void find_hits(float least) {
    const Maximum* const own = own_maxima();
    const auto bound = Held::bound_of(least);
    std::uint32_t* const hits = shared.select.pairs;
#pragma unroll 4
    for (int i = 0; i < shape.maxima; ++i) {
      unsigned vectors = Held::vectors_reaching(own[i * 32], bound);
      if (vectors == 0) continue;
      const int segment = begin + i * shape.merged;
      const auto segments = static_cast<unsigned>(min(shape.merged, end - segment));
      std::uint32_t at = add_to_shared(shared.taken, static_cast<unsigned>(__popc(vectors)));
      for (; vectors != 0; vectors &= vectors - 1) {
        const int vector = segment * kVectorsOfSegment + (__ffs(vectors) - 1) * 32 + lane;
        if (at < Memory::kMaxHits) hits[at] = segments << kHitBits | static_cast<unsigned>(vector);
        ++at;
      }
    }
  }

  // The tokens of so many vectors, each by a thread.
  __device__ void look_again(int found, float least) {
    constexpr int kN = Held::kN;
    const std::uint32_t* const hits = shared.select.pairs;
    for (int task = static_cast<int>(threadIdx.x); task < found * shape.merged; task += kThreads) {
      const std::uint32_t hit = hits[task / shape.merged];
      const auto next = static_cast<std::uint32_t>(task % shape.merged);
      if (next >= hit >> kHitBits) continue;
      const std::uint32_t token = ((hit & ((1U << kHitBits) - 1)) + next * kVectorsOfSegment) * kN;
      float v[kN];
      cuda::unpack_as<T>(loader.vector(static_cast<int>(token)), v);
      std::uint32_t more = 0;
#pragma unroll
      for (int j = 0; j < kN; ++j) more += v[j] >= least ? 1 : 0;
      if (more == 0) continue;
      std::uint32_t at = add_to_shared(shared.count, more);
#pragma unroll
      for (int j = 0; j < kN; ++j) {
        if (!(v[j] >= least)) continue;
        if (at < Memory::kMaxUsual) shared.candidates(shape)[at] = key_of(v[j], token + j);
        ++at;
      }
    }
  }

  static constexpr int kVectorsOfSegment = 32 * Held::kVectors;
  static constexpr int kHitBits = 24;
  static_assert(kMaxSegments * kVectorsOfSegment <= 1 << kHitBits);

  const MaximaShape& shape;
  Memory& shared;
  Loader loader;
  int lane, warp;
  int begin, end;  // segments of this warp
  Raw raw[kDepth];
};

// A row from its read to its outputs, by the threads of a block, whatever is in it. Out of line:
// few rows come here.
template <class T, bool kOnGrid, int kThreads>
__device__ __noinline__ void answer_rare_row(const Topk& p, const MaximaShape& shape,
                                             std::int64_t row, MaximaMemory<kThreads>& shared) {
  using Memory = MaximaMemory<kThreads>;
  using Scan = RowMaxima<T, kOnGrid, kThreads, 1>;
  __syncthreads();  // everyone is done with this memory
  const RowValues<T> values = values_of<T>(p, row);
  const auto k = static_cast<int>(p.k);
  Scan scan(shape, shared, values.logits);
  scan.start();
  const double inverse = inverse_temperature(p, row);
  if (inverse == 0) return put_bad_row<kThreads>(p, row, kRowBadParameter);
  scan.read(exponent_scale(inverse));
  if ((shared.flags & Memory::kNan) != 0) return put_bad_row<kThreads>(p, row, kRowHasNan);
  __syncthreads();  // everyone has seen the flags
  if (threadIdx.x == 0) shared.flags |= Memory::kOverflow;
  __syncthreads();
  const int above = sort_candidates<typename Scan::Held>(shape, k, shared, values);
  const Weights weights = row_weights(shape, shared, values, inverse);
  put_row(p, row, shared, above, weights);
}

// The same for rows without anything unusual, and the others by the way above.
template <class T, bool kOnGrid, int kThreads, int kDepth>
__device__ void answer_row(const Topk& p, const MaximaShape& shape, std::int64_t row,
                           MaximaMemory<kThreads>& shared) {
  RowMaxima<T, kOnGrid, kThreads, kDepth> scan(
      shape, shared, static_cast<const T*>(p.logits) + row * p.logits_stride);
  scan.start();
  const double inverse = inverse_temperature(p, row);
  RowSum sum;
  if (inverse != 0) {
    const auto k = static_cast<int>(p.k);
    scan.read(exponent_scale(inverse));
    if (scan.answer_usual(k, sum)) {
      const auto thread = static_cast<int>(threadIdx.x);
      const Key* const sorted = shared.sorted();
      const Weights weights{inverse, exponent_scale(inverse), value_of(sorted[0]), sum, false};
      if (thread < (k + 31) / 32 * 32) put_usual_row(p, row, sorted, weights, thread, kThreads);
      return;
    }
  }
  answer_rare_row<T, kOnGrid, kThreads>(p, shape, row, shared);
}

}  // namespace touchstone::topk
