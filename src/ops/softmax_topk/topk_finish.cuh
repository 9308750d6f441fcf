// After the scan, in the one block that finishes a row: its candidates are gathered from the
// cluster, cut to the k largest and sorted, and its sum is completed.
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

// Brings the candidates and sums of all blocks of the cluster to the first. False in the others,
// which are done.
__device__ inline bool gather_cluster(const ScanShape& shape, ScanShared& shared) {
  if constexpr (cuda::kHopper) {
    if (shape.cluster == 1) return true;
    const int thread = static_cast<int>(threadIdx.x);
    const std::uint32_t rank = cuda::cluster_rank();
    Key* const candidates = shared.candidates(shape);
    Key* const spare = shared.sorted(shape);
    auto count = static_cast<int>(shared.count);
    const int share = shape.capacity / shape.cluster;
    if (count > share) {
      const int limit = min(share, shape.sorted);
      const Key low = lower_end(candidates, count, shape.k, limit, shared.select);
      count = gather(candidates, count, low, spare, shared.select);
      for (int i = thread; i < count; i += kScanThreads) candidates[i] = spare[i];
      if (thread == 0) shared.count = static_cast<std::uint32_t>(count);
    }
    cuda::cluster_barrier();  // the first block's own candidates are in place
    if (rank != 0) {
      if (thread == 0) {
        shared.select.taken = cuda::cluster_add(cuda::cluster_address(&shared.count, 0),
                                                static_cast<std::uint32_t>(count));
        cuda::cluster_or(cuda::cluster_address(&shared.flags, 0), shared.flags);
      }
      __syncthreads();
      const std::uint32_t to = cuda::cluster_address(candidates, 0) + 8 * shared.select.taken;
      for (int i = thread; i < count; i += kScanThreads) {
        cuda::cluster_store(to + 8 * static_cast<std::uint32_t>(i), candidates[i]);
      }
      const auto* sums = reinterpret_cast<const Key*>(shared.sums());
      const std::uint32_t sums_to = cuda::cluster_address(sums, 0);
      for (int i = static_cast<int>(rank) + thread * shape.cluster; i < shape.segments;
           i += kScanThreads * shape.cluster) {
        cuda::cluster_store(sums_to + 8 * static_cast<std::uint32_t>(i), sums[i]);
      }
    }
    cuda::cluster_barrier();
    return rank == 0;
  }
  return true;
}

// Adds the first masked tokens where fewer than k are above -inf.
template <class Values>
__device__ void add_masked(const ScanShape& shape, ScanShared& shared, const Values& values) {
  Key* const candidates = shared.candidates(shape);
  const int thread = static_cast<int>(threadIdx.x);
  auto held = static_cast<int>(shared.count);
  for (std::int64_t first = 0; held < shape.k && first < shape.vocabulary; first += kScanThreads) {
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
    if (masked && place < shape.k) {
      candidates[place] = key_of(-infinity(), static_cast<std::uint32_t>(token));
    }
  }
  __syncthreads();
  if (thread == 0) shared.count = static_cast<std::uint32_t>(shape.k);
  __syncthreads();
}

// The k largest keys, in order, at shared.sorted(). Returns how many of them are above -inf.
template <class Values>
__device__ int sort_candidates(const ScanShape& shape, ScanShared& shared, const Values& values) {
  Key* const candidates = shared.candidates(shape);
  Key* const sorted = shared.sorted(shape);
  __syncthreads();
  const auto found = static_cast<int>(shared.count);
  if (found < shape.k) add_masked(shape, shared, values);
  const auto count = static_cast<int>(shared.count);
  const Key low = lower_end(candidates, count, shape.k, shape.sorted, shared.select);
  sort_keys(sorted, gather(candidates, count, low, sorted, shared.select));
  return min(found, shape.k);
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

// The sum of the row, from those of its segments in index order.
template <class Values>
__device__ Weights row_weights(const ScanShape& shape, ScanShared& shared, const Values& values,
                               double inverse) {
  Weights weights{
      inverse, exponent_scale(inverse), value_of(shared.sorted(shape)[0]), {0, 0}, false};
  const float2* const sums = shared.sums();
  float reference = -infinity();
  for (int i = static_cast<int>(threadIdx.x) % 32; i < shape.segments; i += 32) {
    reference = fmaxf(reference, sums[i].x);
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    reference = fmaxf(reference, __shfl_xor_sync(~0U, reference, offset));
  }
  if ((shared.flags & ScanShared::kHuge) != 0 || reference == -infinity()) {
    return unusual_weights(shape, shared, values, weights);
  }
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < shape.segments; i += 32) {
    sum += sums[i].y * exp2_fast(sums[i].x - reference);
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0U, sum, offset);
  weights.row = {reference, sum};
  return weights;
}

}  // namespace touchstone::topk
