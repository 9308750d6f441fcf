// Cluster selection for few rows and k <= 64: the CTAs of a cluster share a row.
//
// As in two_phase.cuh nothing is selected while the row is read. Then each CTA orders the k largest
// tokens of its own share and sends them, and its segment sums, to the first CTA, which merges the
// sorted lists. There is no cluster barrier after the start: remote stores complete on an mbarrier
// of the first CTA.
//
// This path is latency-bound: after the loads, each instruction costs about ten issue cycles, so
// the instruction count is what matters.
#pragma once

#include "cuda/hopper.cuh"
#include "ops/selection/row_sum.cuh"
#include "ops/selection/segment.cuh"
#include "ops/selection/selection_tuning.h"
#include "ops/selection/threshold.cuh"

namespace touchstone::selection {

inline constexpr int kSegmentBytes = 2048;  // of a segment

struct ClusterParams {
  int bytes = 0;  // of a row; a multiple of 16
  int segments = 0;
  int cluster = 1;  // CTAs per row, a power of two, and its logarithm
  int cluster_bits = 0;
  bool prefetch = false;  // to L2 while the previous grids drain
};

// Dynamic shared memory: this, then the vector maxima. The slow path reuses all of it.
struct ClusterSmem {
  static constexpr int kGroups = 128;      // of lanes, whose maxima are sampled for the threshold
  static constexpr int kTrialBounds = 64;  // group maxima that are tried as thresholds
  static constexpr int kMaxAllPairs = 128;

  alignas(16) std::uint32_t groups[kGroups];
  alignas(16) std::uint32_t trial_counts[kTrialBounds / 4];  // four 8-bit counts per word
  std::uint32_t count;  // candidates, including those that did not fit
  std::uint32_t flags;
  float reference;
  float parts[kSumLeaves / 32];  // partial sums
  // Padded with 0.
  alignas(16) Key candidates[kMaxAllPairs];
  Key sorted[kMaxClusterK];
  // In the first CTA, received from all: flags, the sorted list of each padded with 0, segment
  // sums.
  std::uint64_t sums_barrier, lists_barrier;
  Key block_flags[kMaxClusterBlocks];
  Key lists[kMaxClusterBlocks][kMaxClusterK];
  float2 sums[kMaxClusterBlocks * kClusterThreads / 32 * kMaxWarpSegments];
};

// Asynchronous store to another CTA of the cluster that completes on an mbarrier there: the waiter
// sees the data, and the sender does not wait.
__device__ inline void store_async(std::uint32_t address, unsigned long long value,
                                   std::uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(
          address),
      "l"(value), "r"(barrier)
      : "memory");
}

template <class T>
class ClusterSelect {
 public:
  using Held = Segment<T, true>;
  using Raw = RawSegment<Held::kVectors, true>;
  using Maximum = typename Held::Maximum;
  static constexpr int kThreads = kClusterThreads;
  static constexpr int kWarps = kThreads / 32;

  __device__ ClusterSelect(const ClusterParams& row_params, ClusterSmem& memory, const T* row_start)
      : params(row_params),
        smem(memory),
        row(reinterpret_cast<const unsigned char*>(row_start)),
        lane(static_cast<int>(threadIdx.x) % 32),
        warp(static_cast<int>(threadIdx.x) / 32),
        rank(static_cast<int>(cuda::cluster_rank())),
        own((row_params.segments - rank + row_params.cluster - 1) >> row_params.cluster_bits),
        begin(own * warp / kWarps),
        end(own * (warp + 1) / kWarps) {}

  // Prologue that reads nothing of the row: L2 prefetch, barriers for `slots` keys per CTA.
  __device__ void prepare(int slots) {
    const auto thread = static_cast<int>(threadIdx.x);
    if (thread == 0) {
      smem.count = 0;
      smem.flags = 0;
      if (rank == 0) {
        cuda::barrier_init(&smem.sums_barrier, 1);
        cuda::barrier_init(&smem.lists_barrier, 1);
        cuda::fence_barrier_init();
        cuda::barrier_expect(&smem.sums_barrier, 8U * static_cast<unsigned>(params.segments));
        cuda::barrier_expect(&smem.lists_barrier,
                             8U * static_cast<unsigned>(params.cluster * (slots + 1)));
      }
    }
    for (int i = thread; i < ClusterSmem::kMaxAllPairs; i += kThreads) smem.candidates[i] = 0;
    if (rank == 0) {
      for (int i = thread; i < params.cluster * kMaxClusterK; i += kThreads) {
        if (i % kMaxClusterK >= slots) smem.lists[0][i] = 0;
      }
      if (thread < slots) smem.sorted[thread] = 0;
    }
    __syncwarp();
    cuda::cluster_arrive_relaxed();
    if (params.prefetch && thread < own) {
      const int at = segment_of(thread) * kSegmentBytes;
      cuda::bulk_prefetch(row + at, static_cast<unsigned>(min(kSegmentBytes, params.bytes - at)));
    }
    __syncwarp();
    cuda::cluster_wait();
    __syncthreads();
  }

  __device__ void start() {
    if (begin < end) load(begin);
  }

  // Main loop: sends segment sums to the first CTA and keeps the vector maxima here.
  __device__ void read(float scale) {
    Maximum* slot = own_maxima();
    std::uint32_t largest_word = 0;
    const std::uint32_t sums = cuda::cluster_address(smem.sums, 0);
    const std::uint32_t barrier = cuda::cluster_address(&smem.sums_barrier, 0);
#pragma unroll 1
    for (int i = begin; i < end; ++i) {
      const Held held(raw, 0, 0, 0, lane);
      RowSum sum;
      const float largest = sum_segment(held, scale, smem.flags, sum);
      *slot = held.larger_maximum(Held::no_maximum(), largest);
      slot += kThreads;
      if (i + 1 < end) load(i + 1);
      largest_word = max(largest_word, isnan(largest) ? 0U : ordered(largest));
      if (lane == 0) {
        store_async(
            sums + 8 * static_cast<unsigned>(segment_of(i)),
            static_cast<Key>(__float_as_uint(sum.sum)) << 32 | __float_as_uint(sum.reference),
            barrier);
      }
    }
    constexpr int kLanes = kThreads / ClusterSmem::kGroups;
#pragma unroll
    for (int offset = 1; offset < kLanes; offset *= 2) {
      largest_word = max(largest_word, __shfl_xor_sync(~0U, largest_word, offset));
    }
    if (lane % kLanes == 0) smem.groups[threadIdx.x / kLanes] = largest_word;
    __syncthreads();
  }

  // Sends the k largest tokens of this CTA to the first, padded to `slots` keys.
  __device__ void choose(int k, int slots) {
    const float least = find_threshold(k);
    rescan_vectors(least);
    __syncthreads();
    const auto count = static_cast<int>(smem.count);
    const bool usual = count <= ClusterSmem::kMaxAllPairs;
    send_largest(usual ? count : 0, k, slots);
    if (threadIdx.x == 0) {
      store_async(cuda::cluster_address(&smem.block_flags[rank], 0),
                  smem.flags | (usual ? 0 : kFlagOverflow),
                  cuda::cluster_address(&smem.lists_barrier, 0));
    }
  }

  // In the first CTA: merges the k largest of all CTAs and the row's sum. Returns false if the row
  // needs the slow path.
  __device__ bool merge(int k, RowSum& sum) {
    cuda::barrier_wait(&smem.sums_barrier, 0);
    if (warp >= kWarps - kSumLeaves / 32) sum_leaves(warp - (kWarps - kSumLeaves / 32));
    cuda::barrier_wait(&smem.lists_barrier, 0);
    __syncthreads();
    merge_lists(k);
    __syncthreads();
    Key flags = 0;
    for (int b = 0; b < params.cluster; ++b) flags |= smem.block_flags[b];
    sum = {smem.reference, 0};
#pragma unroll
    for (int j = 0; j < kSumLeaves / 32; ++j) sum.sum += smem.parts[j];
    return flags == 0 && smem.sorted[k - 1] != 0 && sum.reference > -infinity();
  }

 private:
  // The index in the row of the CTA's i-th segment.
  __device__ int segment_of(int i) const { return i * params.cluster + rank; }
  __device__ Maximum* own_maxima() const {
    return reinterpret_cast<Maximum*>(&smem + 1) + threadIdx.x;
  }

  // Loads the lane's part of the CTA's i-th segment.
  __device__ void load(int i) {
    const int at = segment_of(i) * kSegmentBytes + lane * 16;
    const auto* const from = reinterpret_cast<const uint4*>(row + at);
    if (at - lane * 16 + kSegmentBytes <= params.bytes) {
#pragma unroll
      for (int j = 0; j < Held::kVectors; ++j) raw.vectors[j] = __ldcs(from + j * 32);
      return;
    }
    constexpr std::uint32_t kLowest = minus_infinity_pair<T>();
#pragma unroll
    for (int j = 0; j < Held::kVectors; ++j) {
      raw.vectors[j] = {kLowest, kLowest, kLowest, kLowest};
      if (at + j * 512 < params.bytes) raw.vectors[j] = __ldcs(from + j * 32);
    }
  }

  // The largest of kTrialBounds group maxima that k groups, hence k tokens, reach: every warp
  // counts for four of them. Admits all tokens if fewer than k groups are unmasked.
  __device__ float find_threshold(int k) const {
    static_assert(ClusterSmem::kGroups == 4 * 32 && ClusterSmem::kTrialBounds == 2 * 32);
    if (warp < ClusterSmem::kTrialBounds / 4) {
      const auto* const fours = reinterpret_cast<const uint4*>(smem.groups);
      // Every second group, so that all parts of the row are sampled.
      const uint4 first = fours[2 * warp];
      const uint4 second = fours[2 * warp + 1];
      const uint4 words = fours[lane];
      const auto reaching = [&](std::uint32_t bound) {
        return (words.x >= bound ? 1U : 0U) + (words.y >= bound ? 1U : 0U) +
               (words.z >= bound ? 1U : 0U) + (words.w >= bound ? 1U : 0U);
      };
      // Counts are at most 128: four of them are summed as bytes.
      const unsigned counts =
          __reduce_add_sync(~0U, reaching(first.x) + (reaching(first.z) << 8) +
                                     (reaching(second.x) << 16) + (reaching(second.z) << 24));
      if (lane == 0) smem.trial_counts[warp] = counts;
    }
    __syncthreads();
    const auto* const counts = reinterpret_cast<const unsigned char*>(smem.trial_counts);
    const std::uint32_t one = counts[lane] >= k ? smem.groups[2 * lane] : 0;
    const std::uint32_t other = counts[lane + 32] >= k ? smem.groups[2 * lane + 64] : 0;
    return unordered(max(__reduce_max_sync(~0U, max(one, other)), kMinCandidateWord));
  }

  // Re-reads the vectors that may reach the bound, each by the lane that loaded it.
  __device__ void rescan_vectors(float least) {
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
        constexpr std::uint32_t kLowest = minus_infinity_pair<T>();
        vectors[t] = {kLowest, kLowest, kLowest, kLowest};
        const int bit = __ffs(static_cast<int>(hits)) - 1;
        tokens[t] = segment_of(begin + bit / 4) * Held::kTokens + (bit % 4 * 32 + lane) * Held::kN;
        const int at = tokens[t] * static_cast<int>(sizeof(T));
        if (hits != 0 && at < params.bytes) {
          vectors[t] = __ldcs(reinterpret_cast<const uint4*>(row + at));
        }
        hits &= hits - 1;
      }
#pragma unroll
      for (int t = 0; t < kTogether; ++t) push_candidates(vectors[t], tokens[t], least);
    }
  }

  __device__ void push_candidates(const uint4& vector, int token, float least) {
    float v[Held::kN];
    cuda::unpack_as<T>(vector, v);
#pragma unroll
    for (int j = 0; j < Held::kN; ++j) {
      if (!(v[j] >= least)) continue;
      const std::uint32_t at = atomic_add_shared(smem.count, 1);
      if (at < ClusterSmem::kMaxAllPairs) {
        smem.candidates[at] = key_of(v[j], static_cast<unsigned>(token + j));
      }
    }
  }

  // Ranks the candidates by comparing all pairs and sends the first k, padded with 0 to `slots`.
  __device__ void send_largest(int count, int k, int slots) {
    constexpr int kShare = 8;  // threads per key
    constexpr int kEach = 8;   // keys per thread and step
    const auto thread = static_cast<int>(threadIdx.x);
    const std::uint32_t list = cuda::cluster_address(smem.lists[rank], 0);
    const std::uint32_t barrier = cuda::cluster_address(&smem.lists_barrier, 0);
    const auto* const pairs = reinterpret_cast<const ulonglong2*>(smem.candidates);
#pragma unroll 1
    for (int first = 0; first < count; first += kThreads / kShare) {
      const int mine = first + thread / kShare;
      if (first + (thread - lane) / kShare >= count) break;  // no key for this warp
      const Key key = mine < count ? smem.candidates[mine] : 0;
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
        store_async(list + 8 * static_cast<unsigned>(before), key, barrier);
      }
    }
    if (thread >= min(count, k) && thread < slots)
      store_async(list + 8 * static_cast<unsigned>(thread), 0, barrier);
  }

  // Leaves 32 j .. 32 j + 31 of the sum tree, by one warp, in the order of row_weights().
  __device__ void sum_leaves(int j) {
    float reference = -infinity();
#pragma unroll 4
    for (int i = lane; i < params.segments; i += 32) reference = fmaxf(reference, smem.sums[i].x);
    reference = warp_max(reference);
    float value = 0;
#pragma unroll 1
    for (int i = j * 32 + lane; i < params.segments; i += kSumLeaves) {
      value += smem.sums[i].y * exp2_fast(smem.sums[i].x - reference);
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0U, value, offset);
    if (lane != 0) return;
    smem.parts[j] = value;
    if (j == 0) smem.reference = reference;
  }

  // The rank of a key is its rank in its own list plus, per other list, a binary search.
  __device__ void merge_lists(int k) {
    if (params.cluster == 2) {
      if (threadIdx.x >= 2 * kMaxClusterK) return;
      const int list = warp / (kMaxClusterK / 32);
      const int own_slot = static_cast<int>(threadIdx.x) % kMaxClusterK;
      const Key key = smem.lists[list][own_slot];
      const int slot = own_slot + keys_before(smem.lists[1 - list], key);
      if (key != 0 && slot < k) smem.sorted[slot] = key;
      return;
    }
    // One lane per list.
    const int part = static_cast<int>(threadIdx.x) & (params.cluster - 1);
    const int share = (k + params.cluster - 1) >> params.cluster_bits;
    Key reached = smem.lists[part][share - 1];
    for (int offset = 1; offset < params.cluster; offset *= 2) {
      reached = min(reached, __shfl_xor_sync(~0U, reached, offset));  // a bound that k keys reach
    }
    // Rank-major over the lists: keys further down are unlikely to be needed.
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x) >> params.cluster_bits;;
         i += kThreads >> params.cluster_bits) {
      const int slot = i >> params.cluster_bits;
      const Key key = slot < k ? smem.lists[i & (params.cluster - 1)][slot] : 0;
      const bool needed = key != 0 && key >= reached;
      if (!__any_sync(~0U, needed)) return;
      int before = keys_before(smem.lists[part], key);
      for (int offset = 1; offset < params.cluster; offset *= 2) {
        before += __shfl_xor_sync(~0U, before, offset);
      }
      if (needed && part == 0 && before < k) smem.sorted[before] = key;
    }
  }
  // Keys of a sorted list, padded with 0, that come before `key`.
  __device__ static int keys_before(const Key (&list)[kMaxClusterK], Key key) {
    int before = 0;
#pragma unroll
    for (int step = kMaxClusterK / 2; step > 0; step /= 2) {
      if (list[before + step - 1] > key) before += step;
    }
    return before + (list[before] > key ? 1 : 0);
  }

  const ClusterParams& params;
  ClusterSmem& smem;
  const unsigned char* row;
  int lane, warp;
  int rank;        // of this CTA in its cluster
  int own;         // segments of this CTA
  int begin, end;  // those of this warp
  Raw raw;
};

}  // namespace touchstone::selection
