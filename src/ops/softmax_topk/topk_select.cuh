// Selection and sorting of keys in shared memory, by all threads of a block.
#pragma once

#include "ops/softmax_topk/topk_cuda.cuh"

namespace touchstone::topk {

inline constexpr int kScanThreads = 256;

// What selection needs beside the keys.
struct SelectScratch {
  static constexpr int kBins = kScanThreads;  // one per thread

  std::uint32_t bins[kBins];
  std::uint32_t warp_sums[kScanThreads / 32];
  std::uint32_t chosen;   // the bin that holds the k-th largest key
  std::uint32_t above;    // keys in bins above it
  std::uint32_t within;   // keys in it
  std::uint32_t largest;  // ordered words of the values
  std::uint32_t smallest;
  std::uint32_t taken;  // keys copied so far
};

// Finds the bin in which the count from the top reaches `needed`.
__device__ inline void find_bin(SelectScratch& s, std::uint32_t needed) {
  const unsigned thread = threadIdx.x;
  // From the top: thread 0 has the highest bin.
  const std::uint32_t own = s.bins[SelectScratch::kBins - 1 - thread];
  std::uint32_t sum = own;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const std::uint32_t other = __shfl_up_sync(~0U, sum, step);
    if (thread % 32 >= static_cast<unsigned>(step)) sum += other;
  }
  if (thread % 32 == 31) s.warp_sums[thread / 32] = sum;
  __syncthreads();
  for (unsigned warp = 0; warp < thread / 32; ++warp) sum += s.warp_sums[warp];
  if (sum >= needed && sum - own < needed) {
    s.chosen = SelectScratch::kBins - 1 - thread;
    s.above = sum - own;
    s.within = own;
  }
  __syncthreads();
}

// The smallest of a set of keys that holds the k largest of keys[0, n) and at most `limit` in all.
// k <= n; limit >= k.
__device__ inline Key lower_end(const Key* keys, int n, int k, int limit, SelectScratch& s) {
  if (n <= limit) return 0;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    s.largest = 0;
    s.smallest = 0xffffffffU;
  }
  __syncthreads();
  std::uint32_t largest = 0;
  std::uint32_t smallest = 0xffffffffU;
  for (int i = thread; i < n; i += kScanThreads) {
    const auto word = static_cast<std::uint32_t>(keys[i] >> 32);
    largest = max(largest, word);
    smallest = min(smallest, word);
  }
  largest = __reduce_max_sync(~0U, largest);
  smallest = __reduce_min_sync(~0U, smallest);
  if (thread % 32 == 0) {
    atomicMax(&s.largest, largest);
    atomicMin(&s.smallest, smallest);
  }
  __syncthreads();
  Key low = static_cast<Key>(s.smallest) << 32;
  Key high = static_cast<Key>(s.largest) << 32 | 0xffffffffU;
  int above = 0;  // keys beyond `high`: they are of the k largest
  for (;;) {
    const int bits = 64 - __clzll(static_cast<long long>(high - low));
    const int shift = bits > 8 ? bits - 8 : 0;
    s.bins[thread] = 0;
    __syncthreads();
    for (int i = thread; i < n; i += kScanThreads) {
      const Key key = keys[i];
      if (key >= low && key <= high) atomicAdd(&s.bins[(key - low) >> shift], 1U);
    }
    __syncthreads();
    find_bin(s, static_cast<std::uint32_t>(k - above));
    low += static_cast<Key>(s.chosen) << shift;
    const int kept = above + static_cast<int>(s.above + s.within);
    if (kept <= limit || shift == 0) return low;
    above += static_cast<int>(s.above);
    high = low + min(high - low, (Key{1} << shift) - 1);  // the last bin may end early
    __syncthreads();                                      // everyone has read the scratch
  }
}

// Copies the keys of at least `low` to `out`, in any order; returns how many there are. Those
// beyond `room` are counted, not copied.
__device__ inline int gather(const Key* keys, int n, Key low, Key* out, int room,
                             SelectScratch& s) {
  __syncthreads();
  if (threadIdx.x == 0) s.taken = 0;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kScanThreads) {
    const Key key = keys[i];
    if (key < low) continue;
    const std::uint32_t place = atomicAdd(&s.taken, 1U);
    if (place < static_cast<std::uint32_t>(room)) out[place] = key;
  }
  __syncthreads();
  return static_cast<int>(s.taken);
}

// Descending, for at most as many keys as threads: each thread counts the keys that come before its
// own. Keys differ, so that no two get one place.
__device__ inline void sort_few_keys(Key* keys, int n) {
  // Up to half as many keys: two threads share the counting.
  const int share = n <= kScanThreads / 2 ? 2 : 1;
  const int thread = static_cast<int>(threadIdx.x);
  const int own = thread / share;
  const Key key = own < n ? keys[own] : 0;
  const int half = (n + share - 1) / share;
  const int begin = thread % share * half;
  const int end = min(begin + half, n);
  int before = 0;
  for (int i = begin; i < end; ++i) before += keys[i] > key ? 1 : 0;
  if (share == 2) before += __shfl_xor_sync(~0U, before, 1);
  __syncthreads();
  if (own < n && thread % share == 0) keys[before] = key;
  __syncthreads();
}

// Descending. There must be room for the next power of two.
__device__ inline void sort_keys(Key* keys, int n) {
  if (n <= kScanThreads) return sort_few_keys(keys, n);
  int size = 2;
  while (size < n) size *= 2;
  const int thread = static_cast<int>(threadIdx.x);
  for (int i = n + thread; i < size; i += kScanThreads) keys[i] = 0;
  __syncthreads();
  for (int run = 2; run <= size; run *= 2) {
    for (int stride = run / 2; stride > 0; stride /= 2) {
      for (int pair = thread; pair < size / 2; pair += kScanThreads) {
        const int low = 2 * pair - (pair & (stride - 1));
        const bool descending = (low & run) == 0;
        const Key a = keys[low];
        const Key b = keys[low + stride];
        if ((a < b) == descending) {
          keys[low] = b;
          keys[low + stride] = a;
        }
      }
      __syncthreads();
    }
  }
  __syncthreads();
}

}  // namespace touchstone::topk
