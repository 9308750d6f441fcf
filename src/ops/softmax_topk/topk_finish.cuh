// After the scan, in the one block that finishes a row: the candidates are gathered from the
// cluster, the k largest are put in order, and the sum is completed.
#pragma once

#include "ops/softmax_topk/topk_scan.cuh"

namespace touchstone::topk {

// What the leaves of a sum get, by a tree that depends on nothing; in every thread. leaf(i) is that
// of leaf i.
template <int kThreads, class Leaf>
__device__ float sum_of_leaves(const Leaf& leaf, float* reduction) {
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();
#pragma unroll 1
  for (int i = thread; i < kSumLeaves; i += kThreads) {
    float value = leaf(i);
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0U, value, offset);
    if (thread % 32 == 0) reduction[i / 32] = value;
  }
  __syncthreads();
  float total = 0;
#pragma unroll
  for (int i = 0; i < kSumLeaves / 32; ++i) total += reduction[i];
  return total;
}

// Moves the candidates of all blocks of a cluster together. The destination of one is never the
// place of another that comes later.
template <class Memory>
__device__ void close_ranks(const typename Memory::Shape& shape, Memory& shared) {
  constexpr int kThreads = Memory::kThreads;
  constexpr int kEach = 4;
  const int thread = static_cast<int>(threadIdx.x);
  Key* const candidates = shared.candidates(shape);
  int ends[kMaxScanCluster];  // in the order they will have
  int total = 0;
  bool overflow = false;
#pragma unroll
  for (int b = 0; b < kMaxScanCluster; ++b) {
    const auto held = b < shape.cluster ? static_cast<int>(shared.counts[b]) : 0;
    overflow = overflow || held > shape.candidates;
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
      for (int b = 0; b + 1 < kMaxScanCluster; ++b) {
        if (to >= ends[b]) from = (b + 1) * shape.candidates + to - ends[b];
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
    shared.count = static_cast<std::uint32_t>(total);
    if (overflow) shared.flags |= Memory::kOverflow;
  }
  __syncthreads();
}

// Brings the candidates and sums of all blocks of the cluster to the first. False in the others,
// which are done.
template <class Memory>
__device__ bool gather_cluster(const typename Memory::Shape& shape, Memory& shared) {
  constexpr int kThreads = Memory::kThreads;
  if constexpr (cuda::kHopper) {
    if (shape.cluster > 1) {
      const int thread = static_cast<int>(threadIdx.x);
      const auto rank = static_cast<int>(cuda::cluster_rank());
      const auto held = static_cast<int>(shared.count);
      Key* const candidates = shared.candidates(shape);
      if (rank != 0) {
        if (thread == 0) {
          cuda::cluster_store(cuda::cluster_address(&shared.counts[rank], 0), shared.count);
          cuda::cluster_or(cuda::cluster_address(&shared.flags, 0), shared.flags);
        }
        const std::uint32_t to = cuda::cluster_address(candidates + rank * shape.candidates, 0);
        for (int i = thread; i < min(held, shape.candidates); i += kThreads) {
          cuda::cluster_store(to + 8 * static_cast<std::uint32_t>(i), candidates[i]);
        }
        const auto* sums = reinterpret_cast<const Key*>(shared.sums(shape));
        const std::uint32_t sums_to = cuda::cluster_address(sums, 0);
        for (int i = rank + thread * shape.cluster; i < shape.segments;
             i += kThreads * shape.cluster) {
          cuda::cluster_store(sums_to + 8 * static_cast<std::uint32_t>(i), sums[i]);
        }
        cuda::cluster_arrive();
        return false;
      }
      if (thread == 0) shared.counts[0] = shared.count;
      cuda::cluster_barrier();
      close_ranks(shape, shared);
    }
  }
  return true;
}

// Of the candidates that fitted where more came, the k-th is a threshold too: collects what reaches
// it, from the whole row once more. False where that does not fit either.
template <class Memory, class Values>
__device__ bool read_above_kth(const typename Memory::Shape& shape, int k, Memory& shared,
                               const Values& values) {
  constexpr int kThreads = Memory::kThreads;
  constexpr int kEach = 16;
  Key* const candidates = shared.candidates(shape);
  const int thread = static_cast<int>(threadIdx.x);
  sort_keys<kThreads>(candidates, shape.room());
  const Key bound = candidates[k - 1];
  if (thread == 0) {
    shared.count = 0;
    shared.flags |= Memory::kReadTwice;
  }
  __syncthreads();
  for (std::int64_t first = thread; first < shape.vocabulary; first += kEach * kThreads) {
    float v[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const std::int64_t token = first + i * kThreads;
      v[i] = token < shape.vocabulary ? values(token) : -infinity();
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (!(v[i] >= value_of(bound))) continue;
      const Key key = key_of(v[i], static_cast<std::uint32_t>(first + i * kThreads));
      if (key < bound) continue;
      const std::uint32_t at = add_to_shared(shared.count, 1);
      if (at < static_cast<unsigned>(shape.room())) candidates[at] = key;
    }
  }
  __syncthreads();
  return static_cast<int>(shared.count) <= shape.room();
}

// The exact way, for rows with more candidates than fit, or with a threshold that was too high: the
// block goes through the whole row once more, keeps what beats the k-th so far, and throws out the
// rest whenever the room is used up. Rare, and out of line so that the scan keeps its registers.
template <class Memory, class Values>
__device__ __noinline__ void read_in_order(const typename Memory::Shape& shape, int k,
                                           Memory& shared, Values values) {
  constexpr int kThreads = Memory::kThreads;
  constexpr int kEach = 4;
  const int each = min(kEach, (shape.room() - k) / kThreads);  // that fit beside the k best
  const int step = each * kThreads;
  Key* const candidates = shared.candidates(shape);
  const int thread = static_cast<int>(threadIdx.x);
  Key bound = static_cast<Key>(kAboveNothing) << 32;
  const bool full = (shared.flags & Memory::kOverflow) == 0 && shape.cluster == 1 &&
                    static_cast<int>(shared.count) > shape.room();
  __syncthreads();  // everyone has seen it
  // Each time the threshold is nearer.
  for (int tries = 0; full && tries < 4; ++tries) {
    if (read_above_kth(shape, k, shared, values)) return;
    __syncthreads();
  }
  if (thread == 0) {
    shared.count = 0;
    shared.flags |= Memory::kReadTwice;
  }
  __syncthreads();
  for (std::int64_t first = thread; first - thread < shape.vocabulary; first += step) {
    float v[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const std::int64_t token = first + i * kThreads;
      v[i] = i < each && token < shape.vocabulary ? values(token) : -infinity();
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (!(v[i] > -infinity())) continue;
      const Key key = key_of(v[i], static_cast<std::uint32_t>(first + i * kThreads));
      if (key >= bound) candidates[atomicAdd(&shared.count, 1U)] = key;
    }
    __syncthreads();
    const auto held = static_cast<int>(shared.count);
    __syncthreads();  // all have read it before anyone adds to it
    if (held + step <= shape.room()) continue;
    sort_keys<kThreads>(candidates, held);
    bound = candidates[k - 1];
    if (thread == 0) shared.count = static_cast<std::uint32_t>(k);
    __syncthreads();
  }
}

// Adds the first masked tokens where fewer than k are above -inf.
template <class Memory, class Values>
__device__ void add_masked(const typename Memory::Shape& shape, int k, Memory& shared,
                           const Values& values) {
  constexpr int kThreads = Memory::kThreads;
  Key* const candidates = shared.candidates(shape);
  const int thread = static_cast<int>(threadIdx.x);
  auto held = static_cast<int>(shared.count);
  for (std::int64_t first = 0; held < k && first < shape.vocabulary; first += kThreads) {
    const std::int64_t token = first + thread;
    const bool masked = token < shape.vocabulary && !(values(token) > -infinity());
    const unsigned votes = __ballot_sync(~0U, masked);
    __syncthreads();  // everyone is done with the last round's counts
    if (thread % 32 == 0) {
      shared.select.warp_sums[thread / 32] = static_cast<std::uint32_t>(__popc(votes));
    }
    __syncthreads();
    int place = held + __popc(votes & ((1U << (thread % 32)) - 1U));
    for (int warp = 0; warp < Memory::kWarps; ++warp) {
      const auto others = static_cast<int>(shared.select.warp_sums[warp]);
      if (warp < thread / 32) place += others;
      held += others;
    }
    if (masked && place < k) {
      candidates[place] = key_of(-infinity(), static_cast<std::uint32_t>(token));
    }
  }
  __syncthreads();
  if (thread == 0) shared.count = static_cast<std::uint32_t>(k);
  __syncthreads();
}

// The k largest keys, in order, at shared.sorted(). Returns how many of them are above -inf.
template <class Memory, class Values>
__device__ int sort_candidates(const typename Memory::Shape& shape, int k, int equal_bits,
                               Memory& shared, const Values& values) {
  auto found = static_cast<int>(shared.count);
  // A threshold that takes in every token above -inf was not too high.
  const bool enough = found >= k || shared.threshold == kAboveNothing;
  if ((shared.flags & Memory::kOverflow) != 0 || found > shape.room() || !enough) {
    read_in_order(shape, k, shared, values);
    found = static_cast<int>(shared.count);
  }
  if (found < k) add_masked(shape, k, shared, values);
  rank_keys(shared.candidates(shape), static_cast<int>(shared.count), k, equal_bits,
            shape.token_bits, shared.sorted(), shared.select);
  return min(found, k);
}
template <class Held, class Memory, class Values>
__device__ int sort_candidates(const typename Memory::Shape& shape, int k, Memory& shared,
                               const Values& values) {
  return sort_candidates(shape, k, Held::kEqualBits, shared, values);
}

// The sum of a row that the scan could not give: its exponents overflow, or it has +inf. Reads the
// row once more.
template <class Memory, class Values>
__device__ Weights unusual_weights(const typename Memory::Shape& shape, Memory& shared,
                                   const Values& values, Weights weights) {
  weights.row.reference = weights.largest;
  weights.huge = true;
  if (weights.masked()) return weights;
  const auto leaf = [&](int i) {
    float sum = 0;
    for (std::int64_t token = i; token < shape.vocabulary; token += kSumLeaves) {
      sum += exp2_fast(weights.exponent(values(token)));
    }
    return sum;
  };
  weights.row.sum = sum_of_leaves<Memory::kThreads>(leaf, shared.reduction);
  return weights;
}

// The sum of the row, from those of its segments: by a tree that depends on their number alone.
template <class Memory, class Values>
__device__ Weights row_weights(const typename Memory::Shape& shape, Memory& shared,
                               const Values& values, double inverse) {
  constexpr int kWarps = Memory::kWarps;
  Weights weights{inverse, exponent_scale(inverse), value_of(shared.sorted()[0]), {0, 0}, false};
  const float2* const sums = shared.sums(shape);
  const int thread = static_cast<int>(threadIdx.x);
  float reference = -infinity();
  for (int i = thread; i < shape.segments; i += Memory::kThreads) {
    reference = fmaxf(reference, sums[i].x);
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    reference = fmaxf(reference, __shfl_xor_sync(~0U, reference, offset));
  }
  float* const largest = shared.reduction + kSumLeaves / 32;
  static_assert(sizeof(shared.reduction) / 4 >= kSumLeaves / 32 + kWarps);
  if (thread % 32 == 0) largest[thread / 32] = reference;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kWarps; ++w) reference = fmaxf(reference, largest[w]);
  if ((shared.flags & Memory::kHuge) != 0 || reference == -infinity()) {
    return unusual_weights(shape, shared, values, weights);
  }
  const auto leaf = [&](int first) {
    float sum = 0;
    for (int i = first; i < shape.segments; i += kSumLeaves) {
      sum += sums[i].y * exp2_fast(sums[i].x - reference);
    }
    return sum;
  };
  weights.row = {reference, sum_of_leaves<Memory::kThreads>(leaf, shared.reduction)};
  return weights;
}

// The outputs of a row, from its sorted candidates.
template <class Memory>
__device__ void put_row(const Topk& p, std::int64_t row, Memory& shared, int above_masked,
                        const Weights& weights) {
  const Key* const sorted = shared.sorted();
  float total = weights.row.sum;
  if (p.renormalize && !weights.masked()) {
    const auto leaf = [&](int first) {
      float kept = 0;
      for (int j = first; j < p.k; j += kSumLeaves) kept += weights.weight(value_of(sorted[j]));
      return kept;
    };
    total = sum_of_leaves<Memory::kThreads>(leaf, shared.reduction);
  }
  for (int j = static_cast<int>(threadIdx.x); j < p.k; j += Memory::kThreads) {
    put_place(p, row, j, sorted[j], weights, total);
  }
  if (threadIdx.x != 0) return;
  if (p.log_sum_exp != nullptr) p.log_sum_exp[row] = weights.log_sum_exp();
  if (p.status == nullptr) return;
  std::int32_t status = (shared.flags & Memory::kReadTwice) != 0 ? kRowTwoPass : 0;
  if (weights.infinite()) status |= kRowHasInfinity;
  if (weights.masked()) status |= kRowAllMasked;
  if (above_masked < p.k) status |= kRowFewerThanK;
  p.status[row] = status;
}

template <int kThreads>
__device__ void put_bad_row(const Topk& p, std::int64_t row, std::int32_t status) {
  for (int j = static_cast<int>(threadIdx.x); j < p.k; j += kThreads) put_nothing(p, row, j);
  if (threadIdx.x != 0) return;
  if (p.log_sum_exp != nullptr) p.log_sum_exp[row] = not_a_number();
  if (p.status != nullptr) p.status[row] = status;
}

}  // namespace touchstone::topk
