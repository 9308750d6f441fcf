// After the scan, in the one block that finishes a row: the candidates are gathered from the
// cluster, the k largest are put in order, and the sum is completed.
#pragma once

#include "ops/softmax_topk/topk_scan.cuh"

namespace touchstone::topk {

// The sum of a value over the block, in an order that depends on nothing; in every thread.
__device__ inline float block_sum(float value, float* reduction) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0U, value, offset);
  __syncthreads();
  if (threadIdx.x % 32 == 0) reduction[threadIdx.x / 32] = value;
  __syncthreads();
  float total = 0;
#pragma unroll
  for (int warp = 0; warp < kScanWarps; ++warp) total += reduction[warp];
  return total;
}

// Moves the candidates of all blocks of a cluster together. The destination of one is never the
// place of another that comes later.
__device__ inline void close_ranks(const ScanShape& shape, ScanShared& shared) {
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
  for (int first = 0; !overflow && first < total; first += kEach * kScanThreads) {
    Key moved[kEach];
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int to = first + j * kScanThreads + thread;
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
      const int to = first + j * kScanThreads + thread;
      if (to < total) candidates[to] = moved[j];
    }
    __syncthreads();
  }
  if (thread == 0) {
    shared.count = static_cast<std::uint32_t>(total);
    if (overflow) shared.flags |= ScanShared::kOverflow;
  }
  __syncthreads();
}

// Brings the candidates and sums of all blocks of the cluster to the first. False in the others,
// which are done.
__device__ inline bool gather_cluster(const ScanShape& shape, ScanShared& shared) {
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
        for (int i = thread; i < min(held, shape.candidates); i += kScanThreads) {
          cuda::cluster_store(to + 8 * static_cast<std::uint32_t>(i), candidates[i]);
        }
        const auto* sums = reinterpret_cast<const Key*>(shared.sums());
        const std::uint32_t sums_to = cuda::cluster_address(sums, 0);
        for (int i = rank + thread * shape.cluster; i < shape.segments;
             i += kScanThreads * shape.cluster) {
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

// The exact way, for rows with more candidates than fit, or with a threshold that was too high: the
// block goes through the whole row once more, keeps what beats the k-th so far, and throws out the
// rest whenever the room is used up. Rare, and out of line so that the scan keeps its registers.
template <class Held, class Values>
__device__ __noinline__ void read_in_order(const ScanShape& shape, int k, ScanShared& shared,
                                           Values values) {
  constexpr int kEach = 4;
  constexpr int kStep = kEach * kScanThreads;
  Key* const candidates = shared.candidates(shape);
  const Key* const sorted = shared.sorted();
  const int thread = static_cast<int>(threadIdx.x);
  Key bound = static_cast<Key>(kAboveNothing) << 32;
  __syncthreads();
  if (thread == 0) {
    shared.count = 0;
    shared.flags |= ScanShared::kReadTwice;
  }
  __syncthreads();
  for (std::int64_t first = thread; first - thread < shape.vocabulary; first += kStep) {
    float v[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const std::int64_t token = first + i * kScanThreads;
      v[i] = token < shape.vocabulary ? values(token) : -infinity();
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (!(v[i] > -infinity())) continue;
      const Key key = key_of(v[i], static_cast<std::uint32_t>(first + i * kScanThreads));
      if (key >= bound) candidates[atomicAdd(&shared.count, 1U)] = key;
    }
    __syncthreads();
    const auto held = static_cast<int>(shared.count);
    __syncthreads();  // all have read it before anyone adds to it
    if (held + kStep <= shape.room()) continue;
    rank_keys(candidates, held, k, Held::kEqualBits, shape.token_bits, shared.sorted(),
              shared.select);
    bound = sorted[k - 1];
    for (int j = thread; j < k; j += kScanThreads) candidates[j] = sorted[j];
    if (thread == 0) shared.count = static_cast<std::uint32_t>(k);
    __syncthreads();
  }
}

// Adds the first masked tokens where fewer than k are above -inf.
template <class Values>
__device__ void add_masked(const ScanShape& shape, int k, ScanShared& shared,
                           const Values& values) {
  Key* const candidates = shared.candidates(shape);
  const int thread = static_cast<int>(threadIdx.x);
  auto held = static_cast<int>(shared.count);
  for (std::int64_t first = 0; held < k && first < shape.vocabulary; first += kScanThreads) {
    const std::int64_t token = first + thread;
    const bool masked = token < shape.vocabulary && !(values(token) > -infinity());
    const unsigned votes = __ballot_sync(~0U, masked);
    __syncthreads();  // everyone is done with the last round's counts
    if (thread % 32 == 0) {
      shared.select.warp_sums[thread / 32] = static_cast<std::uint32_t>(__popc(votes));
    }
    __syncthreads();
    int place = held + __popc(votes & ((1U << (thread % 32)) - 1U));
    for (int warp = 0; warp < kScanWarps; ++warp) {
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
template <class Held, class Values>
__device__ int sort_candidates(const ScanShape& shape, int k, ScanShared& shared,
                               const Values& values) {
  auto found = static_cast<int>(shared.count);
  // A guess that takes in every token above -inf was not too high.
  const bool enough = found >= k || k <= kCertainK || shared.threshold == kAboveNothing;
  if ((shared.flags & ScanShared::kOverflow) != 0 || found > shape.room() || !enough) {
    read_in_order<Held>(shape, k, shared, values);
    found = static_cast<int>(shared.count);
  }
  if (found < k) add_masked(shape, k, shared, values);
  rank_keys(shared.candidates(shape), static_cast<int>(shared.count), k, Held::kEqualBits,
            shape.token_bits, shared.sorted(), shared.select);
  return min(found, k);
}

// The sum of a row that the scan could not give: its exponents overflow, or it has +inf. Reads the
// row once more.
template <class Values>
__device__ Weights unusual_weights(const ScanShape& shape, ScanShared& shared, const Values& values,
                                   Weights weights) {
  weights.row.reference = weights.largest;
  weights.huge = true;
  if (weights.masked()) return weights;
  float sum = 0;
  for (std::int64_t token = threadIdx.x; token < shape.vocabulary; token += kScanThreads) {
    sum += exp2_fast(weights.exponent(values(token)));
  }
  weights.row.sum = block_sum(sum, shared.reduction);
  return weights;
}

// The sum of the row, from those of its segments: by a tree that depends on their number alone.
template <class Values>
__device__ Weights row_weights(const ScanShape& shape, ScanShared& shared, const Values& values,
                               double inverse) {
  Weights weights{inverse, exponent_scale(inverse), value_of(shared.sorted()[0]), {0, 0}, false};
  const float2* const sums = shared.sums();
  const int thread = static_cast<int>(threadIdx.x);
  float reference = -infinity();
  for (int i = thread; i < shape.segments; i += kScanThreads) {
    reference = fmaxf(reference, sums[i].x);
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    reference = fmaxf(reference, __shfl_xor_sync(~0U, reference, offset));
  }
  if (thread % 32 == 0) shared.reduction[kScanWarps + thread / 32] = reference;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kScanWarps; ++w) {
    reference = fmaxf(reference, shared.reduction[kScanWarps + w]);
  }
  if ((shared.flags & ScanShared::kHuge) != 0 || reference == -infinity()) {
    return unusual_weights(shape, shared, values, weights);
  }
  float sum = 0;
  for (int i = thread; i < shape.segments; i += kScanThreads) {
    sum += sums[i].y * exp2_fast(sums[i].x - reference);
  }
  weights.row = {reference, block_sum(sum, shared.reduction)};
  return weights;
}

}  // namespace touchstone::topk
