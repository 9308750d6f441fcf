// Ordering keys in shared memory: all-pairs ranking for about a hundred keys, a bitonic sort for
// any number, and a binned rank of the first k of thousands.
#pragma once

#include "ops/selection/threshold.cuh"

namespace touchstone::selection {

// Ranks few keys by comparing all pairs, by the first kThreads threads of a block, and stores the
// first k in order. Keys are distinct, so ranks are too. Does not end with a barrier.
template <int kThreads>
__device__ void rank_all_pairs(const Key* keys, int count, int k, Key* sorted) {
  int share = 1;  // threads per key
  while (2 * share * count <= kThreads && share < 32) share *= 2;
  const int thread = static_cast<int>(threadIdx.x);
  for (int first = 0; first < count; first += kThreads / share) {
    const int own = first + thread / share;
    const Key key = own < count ? keys[own] : 0;
    int before = 0;
    for (int i = thread % share; i < count; i += share) before += keys[i] > key ? 1 : 0;
    for (int offset = 1; offset < share; offset *= 2) {
      before += __shfl_xor_sync(~0U, before, offset);
    }
    if (own < count && thread % share == 0 && before < k) sorted[before] = key;
  }
}

// Bitonic sort, descending, in place, for any number of keys: all comparators point one way, so
// that missing elements behind the end never move.
template <int kThreads, class K>
__device__ void sort_keys(K* keys, int count) {
  const int thread = static_cast<int>(threadIdx.x);
  const auto in_order = [&](int a, int b) {
    if (b >= count) return;
    const K first = keys[a];
    const K second = keys[b];
    if (first >= second) return;
    keys[a] = second;
    keys[b] = first;
  };
  int size = 2;
  while (size < count) size *= 2;
  for (int run = 2; run <= size; run *= 2) {
    for (int stride = run / 2; stride > 0; stride /= 2) {
      for (int pair = thread; pair < size / 2; pair += kThreads) {
        const int within = pair & (stride - 1);
        const int begin = 2 * (pair - within);
        // The first step of a merge compares the two halves in opposite directions.
        in_order(begin + within,
                 stride == run / 2 ? begin + run - 1 - within : begin + within + stride);
      }
      __syncthreads();
    }
  }
}

// Maps a key to one of 2^bin_bits bins by the upper bits of (value, token) in which keys differ.
// Bin 0 holds the largest keys.
struct Bins {
  std::uint32_t smallest;  // word of a value
  int equal_bits;          // lower bits of words that are equal
  std::uint32_t token_mask;
  int left;        // bits of the token that count
  int from_token;  // and that do not
  int right;       // bits of the value that do not
  int count;

  __device__ Bins(std::uint32_t smallest_word, std::uint32_t largest_word, int words_equal_bits,
                  int token_bits, int bin_bits)
      : smallest(smallest_word),
        equal_bits(words_equal_bits),
        token_mask((1U << token_bits) - 1),
        count(1 << bin_bits) {
    const int value_bits = 32 - __clz(static_cast<int>((largest_word - smallest) >> equal_bits));
    const int dropped = max(0, value_bits + token_bits - bin_bits);
    from_token = min(dropped, token_bits);
    left = token_bits - from_token;
    right = dropped - from_token;
  }
  __device__ int operator()(Key key) const {
    const std::uint32_t value = (static_cast<std::uint32_t>(key >> 32) - smallest) >> equal_bits;
    const std::uint32_t token = static_cast<std::uint32_t>(key) & token_mask;
    const std::uint32_t slot = (value >> right) << left | token >> from_token;
    return count - 1 - static_cast<int>(slot);
  }
  // Whether the keys of a bin have one value.
  __device__ bool one_value() const { return right == 0; }

  // Two bins share a word.
  __device__ static std::uint32_t one_in(int bin) { return bin % 2 == 0 ? 1U : 1U << 16; }
  __device__ static int half_of(const std::uint32_t* pairs, int bin) {
    const std::uint32_t pair = pairs[bin / 2];
    return static_cast<int>(bin % 2 == 0 ? pair & 0xffffU : pair >> 16);
  }
};

// Exclusive prefix sum over the bin counts. True, in every thread, if a bin is overfull.
template <class Scratch>
__device__ bool scan_bins(Scratch& s) {
  constexpr int kVectors = Scratch::kBins / 8 / Scratch::kThreads;  // of counts, of a thread
  auto* const own_pairs = reinterpret_cast<uint4*>(s.pairs) + threadIdx.x * kVectors;
  std::uint32_t pairs[4 * kVectors];
  std::uint32_t sum = 0;
  bool overfull = false;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const uint4 four = own_pairs[v];
    const std::uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const std::uint32_t first = words[w] & 0xffffU;
      const std::uint32_t second = words[w] >> 16;
      overfull = overfull || max(first, second) > Scratch::kMaxBinKeys;
      pairs[4 * v + w] = sum | (sum + first) << 16;
      sum += first + second;
    }
  }
  const std::uint32_t before = (block_inclusive_scan(sum, s) - sum) * 0x10001U;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    own_pairs[v] = {pairs[4 * v] + before, pairs[4 * v + 1] + before, pairs[4 * v + 2] + before,
                    pairs[4 * v + 3] + before};
  }
  return __syncthreads_or(overfull ? 1 : 0) != 0;
}

// Orders `held` keys that are grouped by bin: each key is ranked within its bin. `ends` are the bin
// ends.
template <int kThreads, int kMax>
__device__ void rank_within_bins(Key* keys, int held, int k, const Bins& bins,
                                 const std::uint32_t* ends) {
  constexpr int kEach = (kMax + kThreads - 1) / kThreads;
  Key own[kEach];
  int slots[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int i = j * kThreads + static_cast<int>(threadIdx.x);
    slots[j] = k;
    if (i >= held) continue;
    own[j] = keys[i];
    const int bin = bins(own[j]);
    int slot = bin == 0 ? 0 : Bins::half_of(ends, bin - 1);
    const int begin = slot;
    const int end = min(held, Bins::half_of(ends, bin));
    if (bins.one_value()) {  // their tokens decide
      const auto token = static_cast<std::uint32_t>(own[j]);
#pragma unroll 4
      for (int other = begin; other < end; ++other) {
        slot += static_cast<std::uint32_t>(keys[other]) > token ? 1 : 0;
      }
    } else {
#pragma unroll 1
      for (int other = begin; other < end; ++other) slot += keys[other] > own[j] ? 1 : 0;
    }
    slots[j] = slot;
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    if (slots[j] < k) keys[slots[j]] = own[j];
  }
}

// Stores the first k keys, in order, at `sorted`, which has space for k + kMaxBinKeys. `keys` may
// change. The lower `equal_bits` of the value words are equal.
template <class Scratch>
__device__ void rank_keys(Key* keys, int count, int k, int equal_bits, int token_bits, Key* sorted,
                          Scratch& s) {
  constexpr int kThreads = Scratch::kThreads;
  if (count <= min(kThreads / 2, 128)) {  // comparing all with all takes longer for more
    rank_all_pairs<kThreads>(keys, count, k, sorted);
    __syncthreads();
    return;
  }
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int i = thread; i < Scratch::kBins / 8; i += kThreads) {
    reinterpret_cast<uint4*>(s.pairs)[i] = {0, 0, 0, 0};
  }
  std::uint32_t smallest = 0xffffffffU;
  std::uint32_t largest = 0;
  for (int i = thread; i < count; i += kThreads) {
    const auto word = static_cast<std::uint32_t>(keys[i] >> 32);
    smallest = min(smallest, word);
    largest = max(largest, word);
  }
  block_min_max(smallest, largest, s);
  const Bins bins(smallest, largest, equal_bits, token_bits, count <= 512 ? 8 : Scratch::kBinBits);
  for (int i = thread; i < count; i += kThreads) {
    const int bin = bins(keys[i]);
    atomicAdd(&s.pairs[bin / 2], Bins::one_in(bin));
  }
  __syncthreads();
  if (scan_bins(s)) {
    sort_keys<kThreads>(keys, count);
    for (int i = thread; i < min(count, k); i += kThreads) sorted[i] = keys[i];
    __syncthreads();
    return;
  }
  // The atomics turn bin starts into bin ends.
  for (int i = thread; i < count; i += kThreads) {
    const Key key = keys[i];
    const int bin = bins(key);
    const std::uint32_t before = atomicAdd(&s.pairs[bin / 2], Bins::one_in(bin));
    const int slot = static_cast<int>(bin % 2 == 0 ? before & 0xffffU : before >> 16);
    if (slot < k + Scratch::kMaxBinKeys) sorted[slot] = key;
  }
  __syncthreads();
  rank_within_bins<kThreads, Scratch::kMaxRanked + Scratch::kMaxBinKeys>(
      sorted, min(count, k + Scratch::kMaxBinKeys), k, bins, s.pairs);
  __syncthreads();
}

}  // namespace touchstone::selection
