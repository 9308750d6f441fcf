// Thresholds: a bound that at least k of a set of ordered words reach, found by a histogram over
// the whole block (block_threshold) or by bisection within a warp (warp_threshold). Tokens below
// such a bound cannot be among the k largest.
#pragma once

#include "cuda/hopper.cuh"
#include "ops/selection/key.cuh"

namespace touchstone::selection {

// The ordered word after that of -inf: masked tokens are never candidates.
inline constexpr std::uint32_t kMinCandidateWord = 0x00800000U;

// Shared memory that block-wide selection needs beside the keys.
template <int kBlockThreads>
struct SelectScratch {
  static constexpr int kThreads = kBlockThreads;
  static constexpr int kWarps = kThreads / 32;
  // Above 256 threads every thread owns one part and one vector of bin counts, and per-warp partial
  // results are combined by one lane per warp.
  static constexpr bool kLarge = kThreads > 256;
  static_assert(kThreads <= 1024);
  static constexpr int kPartBits = kLarge ? 10 : 8;
  static constexpr int kParts = 1 << kPartBits;  // histogram parts of a range of words
  static constexpr int kBinBits = kLarge ? 13 : 11;
  static constexpr int kBins = 1 << kBinBits;  // of rank_keys()
  static constexpr int kMaxBinKeys = 32;       // more keys in one bin: fall back to a bitonic sort
  static constexpr int kMaxRanked =
      kLarge ? 2048 : 8 * kThreads;  // largest k that rank_keys() takes

  alignas(16) std::uint32_t pairs[kBins / 2];  // two 16-bit counts per word
  std::uint32_t counts[kParts];
  std::uint32_t selected;  // part that holds the threshold
  std::uint32_t above;     // words in the parts above it
  std::uint32_t within;    // words in it
  std::uint32_t smallest[kWarps];
  std::uint32_t largest[kWarps];
  std::uint32_t warp_sums[kWarps];
};

// atomicAdd without warp aggregation, which costs more where few lanes contribute.
__device__ inline std::uint32_t atomic_add_shared(std::uint32_t& count, std::uint32_t more) {
  std::uint32_t before;
  asm volatile("atom.shared.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "r"(cuda::shared_address(&count)), "r"(more)
               : "memory");
  return before;
}

// Inclusive prefix sum over the block.
template <class Scratch>
__device__ std::uint32_t block_inclusive_scan(std::uint32_t value, Scratch& s) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const std::uint32_t before = __shfl_up_sync(~0U, value, step);
    if (lane >= step) value += before;
  }
  if (lane == 31) s.warp_sums[warp] = value;
  __syncthreads();
  if constexpr (Scratch::kLarge) {
    value += __reduce_add_sync(~0U, lane < warp ? s.warp_sums[lane] : 0);
  } else {
#pragma unroll
    for (int w = 0; w < Scratch::kWarps - 1; ++w) value += w < warp ? s.warp_sums[w] : 0;
  }
  return value;
}

// Minimum and maximum over the block, in every thread. Does not end with a barrier.
template <class Scratch>
__device__ void block_min_max(std::uint32_t& smallest, std::uint32_t& largest, Scratch& s) {
  smallest = __reduce_min_sync(~0U, smallest);
  largest = __reduce_max_sync(~0U, largest);
  if (threadIdx.x % 32 == 0) {
    s.smallest[threadIdx.x / 32] = smallest;
    s.largest[threadIdx.x / 32] = largest;
  }
  __syncthreads();
  if constexpr (Scratch::kLarge) {
    smallest = __reduce_min_sync(~0U, s.smallest[threadIdx.x % Scratch::kWarps]);
    largest = __reduce_max_sync(~0U, s.largest[threadIdx.x % Scratch::kWarps]);
  } else {
#pragma unroll
    for (int w = 0; w < Scratch::kWarps; ++w) {
      smallest = min(smallest, s.smallest[w]);
      largest = max(largest, s.largest[w]);
    }
  }
}

// A word that at least `wanted` words reach, and at most `wanted` + `more` unless words are equal.
// Histogram over the range of the words, refined inside the part that holds the bound.
// `for_each_word`(f) calls f for every word of this thread. The lower `equal_bits` of all words are
// equal. Words below `least` are ignored; returns 0 if fewer than `wanted` remain. The result is in
// every thread.
template <class ForEachWord, class Scratch>
__device__ std::uint32_t block_threshold(int wanted, int more, int equal_bits, std::uint32_t least,
                                         const ForEachWord& for_each_word, Scratch& s) {
  constexpr int kThreads = Scratch::kThreads;
  constexpr int kEach = Scratch::kParts / kThreads;  // parts of a thread
  const int thread = static_cast<int>(threadIdx.x);
  std::uint32_t low = 0xffffffffU;
  std::uint32_t high = 0;
  for_each_word([&](std::uint32_t word) {
    if (word >= least) low = min(low, word);
    high = max(high, word);
  });
  block_min_max(low, high, s);
  if (low > high) return 0;
  auto still = static_cast<std::uint32_t>(wanted);
  for (;;) {
    const int shift = max(0, 32 - Scratch::kPartBits - __clz(static_cast<int>(high - low)));
#pragma unroll
    for (int j = 0; j < kEach; ++j) s.counts[j * kThreads + thread] = 0;
    if (thread == 0) s.selected = Scratch::kParts;
    __syncthreads();
    for_each_word([&](std::uint32_t word) {
      if (word >= low && word <= high) atomicAdd(&s.counts[(word - low) >> shift], 1U);
    });
    __syncthreads();
    // Suffix counts: thread 0 owns the highest parts.
    const int highest = Scratch::kParts - 1 - thread * kEach;
    std::uint32_t own[kEach];
    std::uint32_t all = 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j) all += own[j] = s.counts[highest - j];
    std::uint32_t sum = block_inclusive_scan(all, s) - all;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (sum < still && sum + own[j] >= still) {
        s.selected = static_cast<std::uint32_t>(highest - j);
        s.above = sum;
        s.within = own[j];
      }
      sum += own[j];
    }
    __syncthreads();
    if (s.selected == Scratch::kParts) return 0;
    low += s.selected << shift;
    if (shift <= equal_bits || s.above + s.within <= still + static_cast<std::uint32_t>(more)) {
      return low;
    }
    high = low + min(high - low, (1U << shift) - 1);
    still -= s.above;
    __syncthreads();  // all threads have read the chosen part
  }
}

// The same for `count` words of an array.
template <class WordAt, class Scratch>
__device__ std::uint32_t block_threshold(int wanted, int more, int count, int equal_bits,
                                         std::uint32_t least, const WordAt& word_at, Scratch& s) {
  const auto for_each_word = [&](const auto& f) {
    for (int i = static_cast<int>(threadIdx.x); i < count; i += Scratch::kThreads) f(word_at(i));
  };
  return block_threshold(wanted, more, equal_bits, least, for_each_word, s);
}

// A word that at least `wanted` of a warp's words reach, and at most `wanted` + 2 unless words are
// equal, by bisection. Returns 0 if fewer reach `least`. The result is in every lane.
template <int kEach>
__device__ std::uint32_t warp_threshold(int wanted, const std::uint32_t (&words)[kEach],
                                        std::uint32_t least = kMinCandidateWord) {
  const auto reaching = [&](std::uint32_t bound) {
    int count = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) count += words[i] >= bound ? 1 : 0;
    return static_cast<int>(__reduce_add_sync(~0U, static_cast<unsigned>(count)));
  };
  std::uint32_t low = words[0];
  std::uint32_t high = words[0];
#pragma unroll
  for (int i = 1; i < kEach; ++i) {
    low = min(low, words[i]);
    high = max(high, words[i]);
  }
  low = max(least, __reduce_min_sync(~0U, low));
  high = __reduce_max_sync(~0U, high);
  if (low > high || reaching(low) < wanted) return 0;
#pragma unroll 1
  while (low < high) {
    const std::uint32_t middle = low + (high - low + 1) / 2;
    const int count = reaching(middle);
    if (count < wanted) {
      high = middle - 1;
      continue;
    }
    low = middle;
    if (count <= wanted + 2) break;
  }
  return low;
}

}  // namespace touchstone::selection
