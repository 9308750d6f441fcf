// Thresholds, ranks and order of keys in shared memory, by all threads of a block.
#pragma once

#include "ops/softmax_topk/topk_cuda.cuh"

namespace touchstone::topk {

// What selection needs beside the keys, in a block of so many threads.
template <int kBlockThreads>
struct SelectScratch {
  static constexpr int kThreads = kBlockThreads;
  static constexpr int kWarps = kThreads / 32;
  // Every thread of a large block has a part, and a vector of counts of bins; a lane looks at what
  // each warp has found.
  static constexpr bool kLarge = kThreads > 256;
  static_assert(kThreads <= 1024);
  static constexpr int kPartBits = kLarge ? 10 : 8;
  static constexpr int kParts = 1 << kPartBits;  // of a range of words
  static constexpr int kBinBits = kLarge ? 13 : 11;
  static constexpr int kBins = 1 << kBinBits;  // that keys are put into
  static constexpr int kCrowded = 32;  // with more keys in a bin, all are sorted another way
  static constexpr int kMaxRanked = kLarge ? 2048 : 8 * kThreads;  // places that bins put in order

  alignas(16) std::uint32_t pairs[kBins / 2];  // a count in each half
  std::uint32_t counts[kParts];
  std::uint32_t chosen;  // part in which a word lies
  std::uint32_t above;   // words in the parts above it
  std::uint32_t within;  // words in it
  std::uint32_t smallest[kWarps];
  std::uint32_t largest[kWarps];
  std::uint32_t warp_sums[kWarps];
};

// As atomicAdd, but each lane for itself: to add up what so few lanes bring costs more.
__device__ inline std::uint32_t add_to_shared(std::uint32_t& count, std::uint32_t more) {
  std::uint32_t before;
  asm volatile("atom.shared.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "r"(cuda::shared_address(&count)), "r"(more)
               : "memory");
  return before;
}

// Of this thread and all before it.
template <class Scratch>
__device__ std::uint32_t sum_to_here(std::uint32_t value, Scratch& s) {
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

// The smallest and the largest of all threads' values, in every thread. Ends with no barrier.
template <class Scratch>
__device__ void range_of_block(std::uint32_t& smallest, std::uint32_t& largest, Scratch& s) {
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

// A word that at least `wanted` of `count` words reach, and at most `more` beside those unless they
// are equal: by counting the words in each of many parts of their range, and again inside the part
// where it lies. Of the words so many lower bits are equal. Those below `least` do not count; 0
// when that leaves too few. In every thread.
template <class WordAt, class Scratch>
__device__ std::uint32_t word_reached_by(int wanted, int more, int count, int equal_bits,
                                         std::uint32_t least, const WordAt& word_at, Scratch& s) {
  constexpr int kThreads = Scratch::kThreads;
  constexpr int kEach = Scratch::kParts / kThreads;  // parts of a thread
  const int thread = static_cast<int>(threadIdx.x);
  std::uint32_t low = 0xffffffffU;
  std::uint32_t high = 0;
  for (int i = thread; i < count; i += kThreads) {
    const std::uint32_t word = word_at(i);
    if (word >= least) low = min(low, word);
    high = max(high, word);
  }
  range_of_block(low, high, s);
  if (low > high) return 0;
  auto still = static_cast<std::uint32_t>(wanted);
  for (;;) {
    const int shift = max(0, 32 - Scratch::kPartBits - __clz(static_cast<int>(high - low)));
#pragma unroll
    for (int j = 0; j < kEach; ++j) s.counts[j * kThreads + thread] = 0;
    if (thread == 0) s.chosen = Scratch::kParts;
    __syncthreads();
    for (int i = thread; i < count; i += kThreads) {
      const std::uint32_t word = word_at(i);
      if (word >= low && word <= high) atomicAdd(&s.counts[(word - low) >> shift], 1U);
    }
    __syncthreads();
    // From the top: thread 0 has the highest parts.
    const int highest = Scratch::kParts - 1 - thread * kEach;
    std::uint32_t own[kEach];
    std::uint32_t all = 0;
#pragma unroll
    for (int j = 0; j < kEach; ++j) all += own[j] = s.counts[highest - j];
    std::uint32_t sum = sum_to_here(all, s) - all;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (sum < still && sum + own[j] >= still) {
        s.chosen = static_cast<std::uint32_t>(highest - j);
        s.above = sum;
        s.within = own[j];
      }
      sum += own[j];
    }
    __syncthreads();
    if (s.chosen == Scratch::kParts) return 0;
    low += s.chosen << shift;
    if (shift <= equal_bits || s.above + s.within <= still + static_cast<std::uint32_t>(more)) {
      return low;
    }
    high = low + min(high - low, (1U << shift) - 1);
    still -= s.above;
    __syncthreads();  // everyone has read what was chosen
  }
}

// Puts the first k of few keys in order, by the first kThreads threads of a block: each is ranked
// by the keys that come before it. Keys differ, so that no two get one place. Ends with no barrier.
template <int kThreads>
__device__ void rank_few_keys(const Key* keys, int count, int k, Key* sorted) {
  int share = 1;  // threads that share the counting
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

// Descending, in place, for any number of keys: a bitonic network whose comparisons all point one
// way, so that what is missing behind the end never moves.
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
        // The first step of a run meets its two halves head to tail.
        in_order(begin + within,
                 stride == run / 2 ? begin + run - 1 - within : begin + within + stride);
      }
      __syncthreads();
    }
  }
}

// Which of 2^bin_bits bins a key is put into: by the upper bits of (value, token), without those
// that are equal in all keys. The first bin has the largest.
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
    const std::uint32_t place = (value >> right) << left | token >> from_token;
    return count - 1 - static_cast<int>(place);
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

// Counts of bins become the places where they begin. True, in every thread, when one is crowded.
template <class Scratch>
__device__ bool place_bins(Scratch& s) {
  constexpr int kVectors = Scratch::kBins / 8 / Scratch::kThreads;  // of counts, of a thread
  auto* const own_pairs = reinterpret_cast<uint4*>(s.pairs) + threadIdx.x * kVectors;
  std::uint32_t pairs[4 * kVectors];
  std::uint32_t sum = 0;
  bool crowded = false;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const uint4 four = own_pairs[v];
    const std::uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const std::uint32_t first = words[w] & 0xffffU;
      const std::uint32_t second = words[w] >> 16;
      crowded = crowded || max(first, second) > Scratch::kCrowded;
      pairs[4 * v + w] = sum | (sum + first) << 16;
      sum += first + second;
    }
  }
  const std::uint32_t before = (sum_to_here(sum, s) - sum) * 0x10001U;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    own_pairs[v] = {pairs[4 * v] + before, pairs[4 * v + 1] + before, pairs[4 * v + 2] + before,
                    pairs[4 * v + 3] + before};
  }
  return __syncthreads_or(crowded ? 1 : 0) != 0;
}

// Puts `held` keys that lie bin by bin in order: each is ranked by those of its bin that come
// before it. `ends` are those of bins.
template <int kThreads, int kMax>
__device__ void rank_inside_bins(Key* keys, int held, int k, const Bins& bins,
                                 const std::uint32_t* ends) {
  constexpr int kEach = (kMax + kThreads - 1) / kThreads;
  Key own[kEach];
  int places[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int i = j * kThreads + static_cast<int>(threadIdx.x);
    places[j] = k;
    if (i >= held) continue;
    own[j] = keys[i];
    const int bin = bins(own[j]);
    int place = bin == 0 ? 0 : Bins::half_of(ends, bin - 1);
    const int begin = place;
    const int end = min(held, Bins::half_of(ends, bin));
    if (bins.one_value()) {  // their tokens decide
      const auto token = static_cast<std::uint32_t>(own[j]);
#pragma unroll 4
      for (int other = begin; other < end; ++other) {
        place += static_cast<std::uint32_t>(keys[other]) > token ? 1 : 0;
      }
    } else {
#pragma unroll 1
      for (int other = begin; other < end; ++other) place += keys[other] > own[j] ? 1 : 0;
    }
    places[j] = place;
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    if (places[j] < k) keys[places[j]] = own[j];
  }
}

// Puts the first k of the keys, in order, at `sorted`, which has room for k + kCrowded. `keys` may
// change. Of the words of their values, so many lower bits are equal.
template <class Scratch>
__device__ void rank_keys(Key* keys, int count, int k, int equal_bits, int token_bits, Key* sorted,
                          Scratch& s) {
  constexpr int kThreads = Scratch::kThreads;
  if (count <= min(kThreads / 2, 128)) {  // comparing all with all takes longer for more
    rank_few_keys<kThreads>(keys, count, k, sorted);
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
  range_of_block(smallest, largest, s);
  const Bins bins(smallest, largest, equal_bits, token_bits, count <= 512 ? 8 : Scratch::kBinBits);
  for (int i = thread; i < count; i += kThreads) {
    const int bin = bins(keys[i]);
    atomicAdd(&s.pairs[bin / 2], Bins::one_in(bin));
  }
  __syncthreads();
  if (place_bins(s)) {
    sort_keys<kThreads>(keys, count);
    for (int i = thread; i < min(count, k); i += kThreads) sorted[i] = keys[i];
    __syncthreads();
    return;
  }
  // Beginnings become ends.
  for (int i = thread; i < count; i += kThreads) {
    const Key key = keys[i];
    const int bin = bins(key);
    const std::uint32_t before = atomicAdd(&s.pairs[bin / 2], Bins::one_in(bin));
    const int place = static_cast<int>(bin % 2 == 0 ? before & 0xffffU : before >> 16);
    if (place < k + Scratch::kCrowded) sorted[place] = key;
  }
  __syncthreads();
  rank_inside_bins<kThreads, Scratch::kMaxRanked + Scratch::kCrowded>(
      sorted, min(count, k + Scratch::kCrowded), k, bins, s.pairs);
  __syncthreads();
}

}  // namespace touchstone::topk
