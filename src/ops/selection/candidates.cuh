// Candidate lists: from the tokens that reached the threshold while a row was read to the k largest
// in order (sort_candidates), after the blocks of a cluster have merged theirs (gather_cluster).
//
// Overflow handling: a list that overflowed, or whose threshold was too high, is rebuilt from the
// row itself (rescan), which works for any content.
#pragma once

#include "cuda/hopper.cuh"
#include "ops/selection/rank.cuh"
#include "ops/selection/row_sum.cuh"
#include "ops/selection/select_params.h"
#include "ops/selection/selection_tuning.h"

namespace touchstone::selection {

// Compacts the candidate lists of the CTAs of a cluster into one. Destinations never overtake
// sources that are still to be read.
template <class Smem>
__device__ void compact_candidates(const typename Smem::Params& params, Smem& smem) {
  constexpr int kThreads = Smem::kThreads;
  constexpr int kEach = 4;
  const int thread = static_cast<int>(threadIdx.x);
  Key* const candidates = smem.candidates(params);
  int ends[kMaxStreamingCluster];  // of each CTA's keys after compaction
  int total = 0;
  bool overflow = false;
#pragma unroll
  for (int b = 0; b < kMaxStreamingCluster; ++b) {
    const auto held = b < params.cluster ? static_cast<int>(smem.counts[b]) : 0;
    overflow = overflow || held > params.candidates;
    total += held;
    ends[b] = total;
  }
  for (int first = 0; !overflow && first < total; first += kEach * kThreads) {
    Key moved[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int to = first + j * kThreads + thread;
      int from = to;
#pragma unroll
      for (int b = 0; b + 1 < kMaxStreamingCluster; ++b) {
        if (to >= ends[b]) from = (b + 1) * params.candidates + to - ends[b];
      }
      if (to < total) moved[j] = candidates[from];
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int to = first + j * kThreads + thread;
      if (to < total) candidates[to] = moved[j];
    }
    __syncthreads();
  }
  if (thread == 0) {
    smem.count = static_cast<std::uint32_t>(total);
    if (overflow) smem.flags |= kFlagOverflow;
  }
  __syncthreads();
}

// Gathers the candidates and segment sums of all CTAs of a cluster in the first. Returns false in
// the other CTAs, which are done.
template <class Smem>
__device__ bool gather_cluster(const typename Smem::Params& params, Smem& smem) {
  constexpr int kThreads = Smem::kThreads;
  if constexpr (cuda::kHopper) {
    if (params.cluster > 1) {
      const int thread = static_cast<int>(threadIdx.x);
      const auto rank = static_cast<int>(cuda::cluster_rank());
      const auto held = static_cast<int>(smem.count);
      Key* const candidates = smem.candidates(params);
      if (rank != 0) {
        if (thread == 0) {
          cuda::cluster_store(cuda::cluster_address(&smem.counts[rank], 0), smem.count);
          cuda::cluster_or(cuda::cluster_address(&smem.flags, 0), smem.flags);
        }
        const std::uint32_t to = cuda::cluster_address(candidates + rank * params.candidates, 0);
        for (int i = thread; i < min(held, params.candidates); i += kThreads) {
          cuda::cluster_store(to + 8 * static_cast<std::uint32_t>(i), candidates[i]);
        }
        const auto* sums = reinterpret_cast<const Key*>(smem.sums(params));
        const std::uint32_t sums_to = cuda::cluster_address(sums, 0);
        for (int i = rank + thread * params.cluster; i < params.segments;
             i += kThreads * params.cluster) {
          cuda::cluster_store(sums_to + 8 * static_cast<std::uint32_t>(i), sums[i]);
        }
        cuda::cluster_arrive();
        return false;
      }
      if (thread == 0) smem.counts[0] = smem.count;
      cuda::cluster_barrier();
      compact_candidates(params, smem);
    }
  }
  return true;
}

// Calls f(value, token) for the tokens of this thread, with several loads in flight.
template <int kThreads, class Values, class F>
__device__ void for_each_token(const SelectParams& params, const Values& values, const F& f) {
  constexpr int kEach = 16;
  for (std::int64_t first = threadIdx.x; first < params.vocabulary; first += kEach * kThreads) {
    float v[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const std::int64_t token = first + i * kThreads;
      v[i] = token < params.vocabulary ? values(token) : -infinity();
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const std::int64_t token = first + i * kThreads;
      if (token < params.vocabulary) f(v[i], static_cast<std::uint32_t>(token));
    }
  }
}

// Replaces the candidates by the tokens whose word reaches `least`. Those that do not fit are only
// counted.
template <class Smem, class Values>
__device__ void collect_reaching(const typename Smem::Params& params, std::uint32_t least,
                                 Smem& smem, const Values& values) {
  Key* const candidates = smem.candidates(params);
  __syncthreads();  // the list and its count have been read
  if (threadIdx.x == 0) smem.count = 0;
  __syncthreads();
  for_each_token<Smem::kThreads>(params, values, [&](float value, std::uint32_t token) {
    if (ordered(value) < least) return;
    const std::uint32_t at = atomic_add_shared(smem.count, 1);
    if (at < static_cast<unsigned>(params.capacity())) candidates[at] = key_of(value, token);
  });
  __syncthreads();
}

// Appends the first tokens, in token order, whose value matches, until there are k candidates or no
// more tokens.
template <class Smem, class Values, class Matches>
__device__ void append_in_order(const typename Smem::Params& params, int k, Smem& smem,
                                const Values& values, const Matches& matches) {
  constexpr int kThreads = Smem::kThreads;
  Key* const candidates = smem.candidates(params);
  const int thread = static_cast<int>(threadIdx.x);
  auto held = static_cast<int>(smem.count);
  for (std::int64_t first = 0; held < k && first < params.vocabulary; first += kThreads) {
    const std::int64_t token = first + thread;
    const float value = token < params.vocabulary ? values(token) : 0;
    const bool match = token < params.vocabulary && matches(value);
    const unsigned votes = __ballot_sync(~0U, match);
    __syncthreads();  // the counts of the last round have been read
    if (thread % 32 == 0) {
      smem.select.warp_sums[thread / 32] = static_cast<std::uint32_t>(__popc(votes));
    }
    __syncthreads();
    int slot = held + __popc(votes & ((1U << (thread % 32)) - 1U));
    for (int warp = 0; warp < Smem::kWarps; ++warp) {
      const auto others = static_cast<int>(smem.select.warp_sums[warp]);
      if (warp < thread / 32) slot += others;
      held += others;
    }
    if (match && slot < k) candidates[slot] = key_of(value, static_cast<std::uint32_t>(token));
  }
  __syncthreads();
  if (thread == 0) smem.count = static_cast<std::uint32_t>(min(held, k));
  __syncthreads();
}

// Rebuilds the candidate list for any content of the row: a histogram of all tokens gives the
// threshold, one more read collects what reaches it. If ties at the threshold do not fit, the tokens
// above it are collected, then its ties in token order. Rare; __noinline__ so that the main loop
// keeps its registers.
template <class Smem, class Values>
__device__ __noinline__ void rescan(const typename Smem::Params& params, int k, int equal_bits,
                                    Smem& smem, Values values) {
  const auto for_each_word = [&](const auto& f) {
    for_each_token<Smem::kThreads>(params, values,
                                   [&](float value, std::uint32_t) { f(ordered(value)); });
  };
  __syncthreads();  // all threads have read the flags
  if (threadIdx.x == 0) smem.flags |= kFlagTwoPass;
  const std::uint32_t least =
      max(kMinCandidateWord, block_threshold(k, params.capacity() - k, equal_bits,
                                             kMinCandidateWord, for_each_word, smem.select));
  collect_reaching(params, least, smem, values);
  if (static_cast<int>(smem.count) <= params.capacity()) return;
  std::uint32_t tied = 0xffffffffU;
  for_each_word([&](std::uint32_t word) {
    if (word >= least) tied = min(tied, word);
  });
  std::uint32_t largest = tied;
  block_min_max(tied, largest, smem.select);
  collect_reaching(params, tied + 1, smem, values);
  append_in_order(params, k, smem, values, [=](float value) { return ordered(value) == tied; });
}

// Stores the k largest keys, in order, at smem.sorted(). Returns how many of them are above -inf.
template <class Smem, class Values>
__device__ int sort_candidates(const typename Smem::Params& params, int k, int equal_bits,
                               Smem& smem, const Values& values) {
  auto found = static_cast<int>(smem.count);
  // A threshold that admits every token above -inf was not too high.
  const bool enough = found >= k || smem.threshold == kMinCandidateWord;
  if ((smem.flags & kFlagOverflow) != 0 || found > params.capacity() || !enough) {
    rescan(params, k, equal_bits, smem, values);
    found = static_cast<int>(smem.count);
  }
  if (found < k) {
    append_in_order(params, k, smem, values, [](float value) { return !(value > -infinity()); });
  }
  rank_keys(smem.candidates(params), static_cast<int>(smem.count), k, equal_bits, params.token_bits,
            smem.sorted(), smem.select);
  return min(found, k);
}
template <class Held, class Smem, class Values>
__device__ int sort_candidates(const typename Smem::Params& params, int k, Smem& smem,
                               const Values& values) {
  return sort_candidates(params, k, Held::kEqualBits, smem, values);
}

}  // namespace touchstone::selection
