// One read of long rows, few of them: the blocks of a cluster share a row.
//
// As in topk_maxima.cuh nothing is chosen while the row is read: a lane leaves the maxima of its
// vectors. Then every block puts the best k tokens of its part in order by itself, since it need
// not know of the others for that, and sends them to the first block, which merges the sorted lists
// and the sums of segments. Blocks do not meet: what is sent completes on a barrier of the first.
//
// Time is a chain of latencies here. A warp waits some ten cycles for every instruction of what
// follows the read, so that these are few.
#pragma once

#include "ops/softmax_topk/topk_maxima.cuh"

namespace touchstone::topk {

inline constexpr int kMaxFewPlaces = 64;
inline constexpr int kMaxFewCluster = 4;
inline constexpr int kMaxFewSegments = 8;  // of a warp
inline constexpr int kFewThreads = 1024;
inline constexpr int kFewBytes = 2048;  // of a segment

struct FewShape {
  MaximaShape rare;  // for one block alone
  int bytes = 0;     // of a row, whole vectors
  int segments = 0;
  int cluster = 1;  // a power of two, and which
  int cluster_bits = 0;
  bool ahead = false;  // brought to L2 while the grids before end
};

// Dynamic shared memory: this, then the maxima of vectors. That of the rare way is in the same
// place.
struct FewMemory {
  static constexpr int kGroups = 128;  // of lanes, whose maxima the threshold comes from
  static constexpr int kBounds = 64;   // of them that are tried as thresholds
  static constexpr int kMaxUsual = 128;

  alignas(16) std::uint32_t groups[kGroups];
  alignas(16) std::uint32_t reached_by[kBounds / 4];  // four counts in each
  std::uint32_t count;                                // candidates, also those that did not fit
  std::uint32_t flags;
  float reference;
  float parts[kSumLeaves / 32];  // of the sum
  // 0 behind the last.
  alignas(16) Key candidates[kMaxUsual];
  Key sorted[kMaxFewPlaces];
  // In the first block, what all have sent: flags, the best of each in order with 0 behind the
  // last, the sums of segments.
  std::uint64_t sums_are_here, lists_are_here;
  Key block_flags[kMaxFewCluster];
  Key lists[kMaxFewCluster][kMaxFewPlaces];
  float2 sums[kMaxFewCluster * kFewThreads / 32 * kMaxFewSegments];
};

// Stores into another block of the cluster, completing on a barrier of that block: who waits for it
// sees what was stored, and no block has to wait for its stores.
__device__ inline void send(std::uint32_t address, unsigned long long value,
                            std::uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(
          address),
      "l"(value), "r"(barrier)
      : "memory");
}

template <class T>
class FewRows {
 public:
  using Held = Segment<T, true>;
  using Raw = RawSegment<Held::kVectors, true>;
  using Maximum = typename Held::Maximum;
  static constexpr int kThreads = kFewThreads;
  static constexpr int kWarps = kThreads / 32;

  __device__ FewRows(const FewShape& row_shape, FewMemory& memory, const T* row_start)
      : shape(row_shape),
        shared(memory),
        row(reinterpret_cast<const unsigned char*>(row_start)),
        lane(static_cast<int>(threadIdx.x) % 32),
        warp(static_cast<int>(threadIdx.x) / 32),
        rank(static_cast<int>(cuda::cluster_rank())),
        own((row_shape.segments - rank + row_shape.cluster - 1) >> row_shape.cluster_bits),
        begin(own * warp / kWarps),
        end(own * (warp + 1) / kWarps) {}

  // What needs nothing of the row: asks for it to be brought to L2, and gets ready for so many
  // tokens that each block will send.
  __device__ void prepare(int places) {
    const auto thread = static_cast<int>(threadIdx.x);
    if (thread == 0) {
      shared.count = 0;
      shared.flags = 0;
      if (rank == 0) {
        cuda::barrier_init(&shared.sums_are_here, 1);
        cuda::barrier_init(&shared.lists_are_here, 1);
        cuda::fence_barrier_init();
        cuda::barrier_expect(&shared.sums_are_here, 8U * static_cast<unsigned>(shape.segments));
        cuda::barrier_expect(&shared.lists_are_here,
                             8U * static_cast<unsigned>(shape.cluster * (places + 1)));
      }
    }
    for (int i = thread; i < FewMemory::kMaxUsual; i += kThreads) shared.candidates[i] = 0;
    if (rank == 0) {
      for (int i = thread; i < shape.cluster * kMaxFewPlaces; i += kThreads) {
        if (i % kMaxFewPlaces >= places) shared.lists[0][i] = 0;
      }
      if (thread < places) shared.sorted[thread] = 0;
    }
    __syncwarp();
    cuda::cluster_arrive_relaxed();
    if (shape.ahead && thread < own) {
      const int at = place_of(thread) * kFewBytes;
      cuda::bulk_prefetch(row + at, static_cast<unsigned>(min(kFewBytes, shape.bytes - at)));
    }
    __syncwarp();
    cuda::cluster_wait();
    __syncthreads();
  }

  __device__ void start() {
    if (begin < end) load(begin);
  }

  // Sends the sums of segments to the first block, and leaves maxima here.
  __device__ void read(float scale) {
    Maximum* place = own_maxima();
    std::uint32_t largest_word = 0;
    const std::uint32_t sums = cuda::cluster_address(shared.sums, 0);
    const std::uint32_t barrier = cuda::cluster_address(&shared.sums_are_here, 0);
#pragma unroll 1
    for (int i = begin; i < end; ++i) {
      const Held held(raw, 0, 0, 0, lane);
      RowSum sum;
      const float largest = add_up_segment(held, scale, shared.flags, sum);
      *place = held.larger_maximum(Held::no_maximum(), largest);
      place += kThreads;
      if (i + 1 < end) load(i + 1);
      largest_word = max(largest_word, isnan(largest) ? 0U : ordered(largest));
      if (lane == 0) {
        send(sums + 8 * static_cast<unsigned>(place_of(i)),
             static_cast<Key>(__float_as_uint(sum.sum)) << 32 | __float_as_uint(sum.reference),
             barrier);
      }
    }
    constexpr int kLanes = kThreads / FewMemory::kGroups;
#pragma unroll
    for (int offset = 1; offset < kLanes; offset *= 2) {
      largest_word = max(largest_word, __shfl_xor_sync(~0U, largest_word, offset));
    }
    if (lane % kLanes == 0) shared.groups[threadIdx.x / kLanes] = largest_word;
    __syncthreads();
  }

  // Sends the best k tokens of this block to the first, and nothing for what is left of so many
  // places.
  __device__ void choose(int k, int places) {
    const float least = threshold(k);
    look_again(least);
    __syncthreads();
    const auto count = static_cast<int>(shared.count);
    const bool usual = count <= FewMemory::kMaxUsual;
    send_best(usual ? count : 0, k, places);
    if (threadIdx.x == 0) {
      send(cuda::cluster_address(&shared.block_flags[rank], 0),
           shared.flags | (usual ? 0 : ScanShared::kOverflow),
           cuda::cluster_address(&shared.lists_are_here, 0));
    }
  }

  // In the first block: the k best of all blocks in order, and the row's sum. False when something
  // is not usual.
  __device__ bool merge(int k, RowSum& sum) {
    cuda::barrier_wait(&shared.sums_are_here, 0);
    if (warp >= kWarps - kSumLeaves / 32) add_up_leaves(warp - (kWarps - kSumLeaves / 32));
    cuda::barrier_wait(&shared.lists_are_here, 0);
    __syncthreads();
    merge_lists(k);
    __syncthreads();
    Key flags = 0;
    for (int b = 0; b < shape.cluster; ++b) flags |= shared.block_flags[b];
    sum = {shared.reference, 0};
#pragma unroll
    for (int j = 0; j < kSumLeaves / 32; ++j) sum.sum += shared.parts[j];
    return flags == 0 && shared.sorted[k - 1] != 0 && sum.reference > -infinity();
  }

 private:
  // The place in the row of the block's i-th segment.
  __device__ int place_of(int i) const { return i * shape.cluster + rank; }
  __device__ Maximum* own_maxima() const {
    return reinterpret_cast<Maximum*>(&shared + 1) + threadIdx.x;
  }

  // The lane's part of the block's i-th segment.
  __device__ void load(int i) {
    const int at = place_of(i) * kFewBytes + lane * 16;
    const auto* const from = reinterpret_cast<const uint4*>(row + at);
    if (at - lane * 16 + kFewBytes <= shape.bytes) {
#pragma unroll
      for (int j = 0; j < Held::kVectors; ++j) raw.vectors[j] = __ldcs(from + j * 32);
      return;
    }
    constexpr std::uint32_t kLowest = lowest_pair<T>();
#pragma unroll
    for (int j = 0; j < Held::kVectors; ++j) {
      raw.vectors[j] = {kLowest, kLowest, kLowest, kLowest};
      if (at + j * 512 < shape.bytes) raw.vectors[j] = __ldcs(from + j * 32);
    }
  }

  // The largest of some maxima of groups that is reached by k groups, so by k tokens: every warp
  // counts for four of them. All tokens, where fewer are not masked.
  __device__ float threshold(int k) const {
    static_assert(FewMemory::kGroups == 4 * 32 && FewMemory::kBounds == 2 * 32);
    if (warp < FewMemory::kBounds / 4) {
      const auto* const fours = reinterpret_cast<const uint4*>(shared.groups);
      // Every second group, so that no part of the row is left out.
      const uint4 first = fours[2 * warp];
      const uint4 second = fours[2 * warp + 1];
      const uint4 words = fours[lane];
      const auto reaching = [&](std::uint32_t bound) {
        return (words.x >= bound ? 1U : 0U) + (words.y >= bound ? 1U : 0U) +
               (words.z >= bound ? 1U : 0U) + (words.w >= bound ? 1U : 0U);
      };
      // As none is more than 128, they are added in bytes.
      const unsigned counts =
          __reduce_add_sync(~0U, reaching(first.x) + (reaching(first.z) << 8) +
                                     (reaching(second.x) << 16) + (reaching(second.z) << 24));
      if (lane == 0) shared.reached_by[warp] = counts;
    }
    __syncthreads();
    const auto* const counts = reinterpret_cast<const unsigned char*>(shared.reached_by);
    const std::uint32_t one = counts[lane] >= k ? shared.groups[2 * lane] : 0;
    const std::uint32_t other = counts[lane + 32] >= k ? shared.groups[2 * lane + 64] : 0;
    return unordered(max(__reduce_max_sync(~0U, max(one, other)), kAboveNothing));
  }

  // Fetches the vectors that may reach the bound once more, each by the lane that had it.
  __device__ void look_again(float least) {
    constexpr int kTogether = sizeof(T) == 4 ? 4 : 2;
    const auto bound = Held::bound_of(least);
    const Maximum* const maxima = own_maxima();
    std::uint32_t hits = 0;
#pragma unroll 4
    for (int i = 0; i < end - begin; ++i) {
      hits |= Held::vectors_reaching(maxima[i * kThreads], bound) << (4 * i);
    }
#pragma unroll 1
    while (hits != 0) {
      uint4 vectors[kTogether];
      int tokens[kTogether];
#pragma unroll
      for (int t = 0; t < kTogether; ++t) {
        constexpr std::uint32_t kLowest = lowest_pair<T>();
        vectors[t] = {kLowest, kLowest, kLowest, kLowest};
        const int bit = __ffs(static_cast<int>(hits)) - 1;
        tokens[t] = place_of(begin + bit / 4) * Held::kTokens + (bit % 4 * 32 + lane) * Held::kN;
        const int at = tokens[t] * static_cast<int>(sizeof(T));
        if (hits != 0 && at < shape.bytes) {
          vectors[t] = __ldcs(reinterpret_cast<const uint4*>(row + at));
        }
        hits &= hits - 1;
      }
#pragma unroll
      for (int t = 0; t < kTogether; ++t) keep(vectors[t], tokens[t], least);
    }
  }

  __device__ void keep(const uint4& vector, int token, float least) {
    float v[Held::kN];
    cuda::unpack_as<T>(vector, v);
#pragma unroll
    for (int j = 0; j < Held::kN; ++j) {
      if (!(v[j] >= least)) continue;
      const std::uint32_t at = add_to_shared(shared.count, 1);
      if (at < FewMemory::kMaxUsual) {
        shared.candidates[at] = key_of(v[j], static_cast<unsigned>(token + j));
      }
    }
  }

  // Ranks every candidate by those that come before it. As many keys as there are places are sent,
  // 0 behind the last.
  __device__ void send_best(int count, int k, int places) {
    constexpr int kShare = 8;  // threads that share the counting
    constexpr int kEach = 8;   // keys of each of them at a time
    const auto thread = static_cast<int>(threadIdx.x);
    const std::uint32_t list = cuda::cluster_address(shared.lists[rank], 0);
    const std::uint32_t barrier = cuda::cluster_address(&shared.lists_are_here, 0);
    const auto* const pairs = reinterpret_cast<const ulonglong2*>(shared.candidates);
#pragma unroll 1
    for (int first = 0; first < count; first += kThreads / kShare) {
      const int mine = first + thread / kShare;
      if (first + (thread - lane) / kShare >= count) break;  // nothing for this warp
      const Key key = mine < count ? shared.candidates[mine] : 0;
      int before = 0;
#pragma unroll 1
      for (int i = 0; i < count; i += kShare * kEach) {
#pragma unroll
        for (int j = 0; j < kEach / 2; ++j) {
          const ulonglong2 two = pairs[i / 2 + j * kShare + thread % kShare];
          before += (two.x > key ? 1 : 0) + (two.y > key ? 1 : 0);
        }
      }
#pragma unroll
      for (int offset = 1; offset < kShare; offset *= 2) {
        before += __shfl_xor_sync(~0U, before, offset);
      }
      if (mine < count && thread % kShare == 0 && before < k) {
        send(list + 8 * static_cast<unsigned>(before), key, barrier);
      }
    }
    if (thread >= min(count, k) && thread < places)
      send(list + 8 * static_cast<unsigned>(thread), 0, barrier);
  }

  // The j-th 32 leaves of the sum, by a warp, in the order of row_weights().
  __device__ void add_up_leaves(int j) {
    float reference = -infinity();
#pragma unroll 4
    for (int i = lane; i < shape.segments; i += 32) reference = fmaxf(reference, shared.sums[i].x);
    reference = warp_max(reference);
    float value = 0;
#pragma unroll 1
    for (int i = j * 32 + lane; i < shape.segments; i += kSumLeaves) {
      value += shared.sums[i].y * exp2_fast(shared.sums[i].x - reference);
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0U, value, offset);
    if (lane != 0) return;
    shared.parts[j] = value;
    if (j == 0) shared.reference = reference;
  }

  // A key's place is its place in its own list and how many in the others come before it.
  __device__ void merge_lists(int k) {
    if (shape.cluster == 2) {
      if (threadIdx.x >= 2 * kMaxFewPlaces) return;
      const int list = warp / (kMaxFewPlaces / 32);
      const int own_place = static_cast<int>(threadIdx.x) % kMaxFewPlaces;
      const Key key = shared.lists[list][own_place];
      const int place = own_place + keys_before(shared.lists[1 - list], key);
      if (key != 0 && place < k) shared.sorted[place] = key;
      return;
    }
    // As many lanes as there are lists count those of one each.
    const int part = static_cast<int>(threadIdx.x) & (shape.cluster - 1);
    const int share = (k + shape.cluster - 1) >> shape.cluster_bits;
    Key reached = shared.lists[part][share - 1];
    for (int offset = 1; offset < shape.cluster; offset *= 2) {
      reached = min(reached, __shfl_xor_sync(~0U, reached, offset));  // by k keys in all
    }
    // Spread over the lists first, as keys further behind are not likely to be needed.
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x) >> shape.cluster_bits;;
         i += kThreads >> shape.cluster_bits) {
      const int place = i >> shape.cluster_bits;
      const Key key = place < k ? shared.lists[i & (shape.cluster - 1)][place] : 0;
      const bool needed = key != 0 && key >= reached;
      if (!__any_sync(~0U, needed)) return;
      int before = keys_before(shared.lists[part], key);
      for (int offset = 1; offset < shape.cluster; offset *= 2) {
        before += __shfl_xor_sync(~0U, before, offset);
      }
      if (needed && part == 0 && before < k) shared.sorted[before] = key;
    }
  }
  // Of a sorted list, with 0 behind the last.
  __device__ static int keys_before(const Key (&list)[kMaxFewPlaces], Key key) {
    int before = 0;
#pragma unroll
    for (int step = kMaxFewPlaces / 2; step > 0; step /= 2) {
      if (list[before + step - 1] > key) before += step;
    }
    return before + (list[before] > key ? 1 : 0);
  }

  const FewShape& shape;
  FewMemory& shared;
  const unsigned char* row;
  int lane, warp;
  int rank;        // of this block in its cluster
  int own;         // segments of this block
  int begin, end;  // of them, those of this warp
  Raw raw;
};

}  // namespace touchstone::topk
