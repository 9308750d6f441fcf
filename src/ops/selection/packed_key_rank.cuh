// Ordering the packed 32-bit candidates of a streaming selection: they are scattered into bins of
// equal width and ranked within their bins, straight to the epilogue.
#pragma once

#include "ops/selection/candidates.cuh"
#include "ops/selection/streaming.cuh"

namespace touchstone::selection {

// Maps packed keys linearly to all bins, the largest key to bin 0.
struct PackedKeyBins {
  static constexpr int kBins = SelectScratch<kStreamingThreads>::kBins;
  std::uint32_t factor;

  // Rounded down: a key may land one bin low but never beyond the last bin.
  __device__ explicit PackedKeyBins(std::uint32_t largest)
      : factor(static_cast<std::uint32_t>(fminf(
            0x1.fffffep31F, 0x1p32F * (kBins - 0.01F) / (static_cast<float>(largest) + 1)))) {}
  __device__ int operator()(std::uint32_t key) const {
    return kBins - 1 - static_cast<int>(__umulhi(key, factor));
  }
};

// The keys of a thread between the candidate list and the bins.
class PackedKeySort {
 public:
  using Scratch = SelectScratch<kStreamingThreads>;
  static constexpr int kEach = StreamingSmem::kMaxPackedKeys / kStreamingThreads;

  // Loads the keys. largest() is valid after the next barrier.
  __device__ PackedKeySort(const std::uint32_t* candidates, int candidate_count, Scratch& scratch)
      : count(candidate_count), s(scratch) {
    std::uint32_t most = 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (is_there(j)) most = max(most, keys[j] = candidates[index(j)]);
    }
    most = __reduce_max_sync(~0U, most);
    if (threadIdx.x % 32 == 0) s.largest[threadIdx.x / 32] = most;
  }

  __device__ std::uint32_t largest() const {
    std::uint32_t most = 0;
#pragma unroll
    for (int w = 0; w < Scratch::kWarps; ++w) most = max(most, s.largest[w]);
    return most;
  }

  // Counts keys per bin; the counts start at 0. Returns false if a bin is overfull.
  __device__ bool count_bins(const PackedKeyBins& bins) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (!is_there(j)) continue;
      const int bin = bins(keys[j]);
      const std::uint32_t pair = atomicAdd(&s.pairs[bin / 2], Bins::one_in(bin));
      before[j] = bin % 2 == 0 ? pair & 0xffffU : pair >> 16;
    }
    __syncthreads();
    return !scan_bins(s);
  }

  // Groups the keys by bin, as far as the first k may reach.
  __device__ void scatter(const PackedKeyBins& bins, int k, std::uint32_t* binned) const {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (!is_there(j)) continue;
      const int at = Bins::half_of(s.pairs, bins(keys[j])) + static_cast<int>(before[j]);
      if (at < k + Scratch::kMaxBinKeys) binned[at] = keys[j];
    }
  }

 private:
  __device__ static int index(int j) {
    return j * kStreamingThreads + static_cast<int>(threadIdx.x);
  }
  __device__ bool is_there(int j) const { return index(j) < count; }

  int count;
  Scratch& s;
  std::uint32_t keys[kEach];
  std::uint32_t before[kEach];  // in the bin
};

// Calls store(slot, key) for the first k of the keys that are grouped by bin, each ranked within
// its bin.
template <class Store>
__device__ void rank_binned(const std::uint32_t* binned, int count, int k,
                            const PackedKeyBins& bins, const std::uint32_t* pairs,
                            const Store& store) {
  const int held = min(count, k + SelectScratch<kStreamingThreads>::kMaxBinKeys);
  for (int i = static_cast<int>(threadIdx.x); i < held; i += kStreamingThreads) {
    const std::uint32_t key = binned[i];
    const int bin = bins(key);
    int slot = Bins::half_of(pairs, bin);
    const int end =
        bin + 1 < PackedKeyBins::kBins ? min(held, Bins::half_of(pairs, bin + 1)) : held;
#pragma unroll 4
    for (int other = slot; other < end; ++other) {
      slot += binned[other] > key ? 1 : 0;
    }
    if (slot < k) store(slot, key);
  }
}

// Converts packed candidates to 64-bit keys in place, as many as fit. Returns false if a key is
// unknown.
__device__ inline bool widen_keys(const StreamingParams& params, StreamingSmem& smem) {
  constexpr int kEach = (StreamingSmem::kMaxSorted + kStreamingThreads) / kStreamingThreads;
  const PackedKey32 packed_keys(unordered(smem.threshold), params.token_bits);
  const int count = min(static_cast<int>(smem.count), params.candidates);
  const auto index = [](int j) { return j * kStreamingThreads + static_cast<int>(threadIdx.x); };
  Key keys[kEach];
  bool unknown = false;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    if (index(j) >= count) continue;
    const std::uint32_t key = smem.packed_keys(params)[index(j)];
    unknown = unknown || packed_keys.is_unknown(key);
    keys[j] = key_of(packed_keys.value(key), packed_keys.token(key));
  }
  unknown = __syncthreads_or(unknown ? 1 : 0) != 0;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    if (index(j) < count) smem.candidates(params)[index(j)] = keys[j];
  }
  __syncthreads();
  return !unknown;
}

}  // namespace touchstone::selection
