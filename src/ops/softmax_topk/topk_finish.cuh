// After the scan, in the one block that finishes a row: the notes are gathered from the cluster,
// the tokens they stand for are read again, cut to the k largest and sorted, and the sum is
// completed.
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

// Brings the notes and sums of all blocks of the cluster to the first. False in the others, which
// are done.
__device__ inline bool gather_cluster(const ScanShape& shape, ScanShared& shared) {
  const int thread = static_cast<int>(threadIdx.x);
  const int share = shape.notes / shape.cluster;
  auto noted = static_cast<int>(shared.noted);
  if (noted > share) {
    noted = 0;
    if (thread == 0) shared.flags |= ScanShared::kOverflow;
  }
  if constexpr (cuda::kHopper) {
    if (shape.cluster > 1) {
      const std::uint32_t rank = cuda::cluster_rank();
      if (thread == 0) shared.noted = static_cast<std::uint32_t>(noted);
      cuda::cluster_barrier();  // the first block's own notes are in place
      if (rank != 0) {
        if (thread == 0) {
          shared.select.taken = cuda::cluster_add(cuda::cluster_address(&shared.noted, 0),
                                                  static_cast<std::uint32_t>(noted));
          cuda::cluster_or(cuda::cluster_address(&shared.flags, 0), shared.flags);
        }
        __syncthreads();
        const Key* const notes = shared.notes(shape);
        const std::uint32_t to = cuda::cluster_address(notes, 0) + 8 * shared.select.taken;
        for (int i = thread; i < noted; i += kScanThreads) {
          cuda::cluster_store(to + 8 * static_cast<std::uint32_t>(i), notes[i]);
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
  }
  __syncthreads();
  return true;
}

// The exact way, for rows with more notes or candidates than fit, or with a threshold that was too
// high: the block goes through the whole row once more, keeps what beats the k-th so far, and
// throws out the rest whenever the room is used up. Rare, and out of line so that the scan keeps
// its registers.
template <class Values>
__device__ __noinline__ void read_in_order(const ScanShape& shape, ScanShared& shared,
                                           Values values) {
  constexpr int kStep = 4 * kScanThreads;
  Key* const candidates = shared.candidates(shape);
  Key* const spare = shared.sorted(shape);
  const int thread = static_cast<int>(threadIdx.x);
  Key bound = static_cast<Key>(kAboveNothing) << 32;
  __syncthreads();
  if (thread == 0) {
    shared.count = 0;
    shared.flags |= ScanShared::kReadTwice;
  }
  __syncthreads();
  for (std::int64_t first = 0; first < shape.vocabulary; first += kStep) {
    const std::int64_t end = min(first + kStep, shape.vocabulary);
    for (std::int64_t token = first + thread; token < end; token += kScanThreads) {
      const float v = values(token);
      if (!(v > -infinity())) continue;
      const Key key = key_of(v, static_cast<std::uint32_t>(token));
      if (key >= bound) candidates[atomicAdd(&shared.count, 1U)] = key;
    }
    __syncthreads();
    const auto held = static_cast<int>(shared.count);
    __syncthreads();  // all have read it before anyone adds to it
    if (held + kStep <= shape.candidates) continue;
    bound = lower_end(candidates, held, shape.k, shape.k, shared.select);
    const int kept = gather(candidates, held, bound, spare, shape.sorted, shared.select);
    for (int j = thread; j < kept; j += kScanThreads) candidates[j] = spare[j];
    if (thread == 0) shared.count = static_cast<std::uint32_t>(kept);
    __syncthreads();
  }
}

// Reads the tokens of the noted lanes again, as far as they may be of the k largest.
template <class Held, class Values>
__device__ void find_candidates(const ScanShape& shape, ScanShared& shared, const Values& values) {
  const Key* notes = shared.notes(shape);
  Key* const candidates = shared.candidates(shape);
  auto noted = static_cast<int>(shared.noted);
  std::uint32_t bound = shared.threshold;
  if (noted > shape.k) {
    // With as many lanes above it as tokens are wanted, the k-th largest maximum is a bound too.
    // Not cut inside a value: the order of notes is not that of tokens.
    const Key low = lower_end(notes, noted, shape.k, shape.k + shape.k / 8, shared.select);
    bound = max(bound, static_cast<std::uint32_t>(low >> 32));
    const int left = gather(notes, noted, static_cast<Key>(bound) << 32, shared.sorted(shape),
                            shape.sorted, shared.select);
    if (left <= shape.sorted) {  // else many maxima are equal, and the notes stay as they are
      notes = shared.sorted(shape);
      noted = left;
    }
  }
  const float least = unordered(bound);
  for (int task = static_cast<int>(threadIdx.x); task < noted * Held::kVectors;
       task += kScanThreads) {
    const Key note = notes[task / Held::kVectors];
    if (static_cast<std::uint32_t>(note >> 32) < bound) continue;
    const std::uint32_t place = token_of(note);
    const std::int64_t first =
        static_cast<std::int64_t>(place / 32) * Held::kTokens +
        static_cast<std::int64_t>(task % Held::kVectors * 32 + place % 32) * Held::kN;
    float v[Held::kN];
#pragma unroll
    for (int i = 0; i < Held::kN; ++i) {
      v[i] = first + i < shape.vocabulary ? values(first + i) : -infinity();
    }
#pragma unroll
    for (int i = 0; i < Held::kN; ++i) {
      if (!(v[i] >= least)) continue;
      const std::uint32_t at = atomicAdd(&shared.count, 1U);
      if (at < static_cast<std::uint32_t>(shape.candidates)) {
        candidates[at] = key_of(v[i], static_cast<std::uint32_t>(first + i));
      }
    }
  }
  __syncthreads();
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
template <class Held, class Values>
__device__ int sort_candidates(const ScanShape& shape, ScanShared& shared, const Values& values) {
  bool complete = (shared.flags & ScanShared::kOverflow) == 0;
  if (complete) {
    find_candidates<Held>(shape, shared, values);
    const auto found = static_cast<int>(shared.count);
    // A guess that takes in every token above -inf was not too high.
    const bool certain = !guesses(shape) || shared.threshold == kAboveNothing;
    complete = found <= shape.candidates && (found >= shape.k || certain);
  }
  if (!complete) read_in_order(shape, shared, values);
  const auto found = static_cast<int>(shared.count);
  if (found < shape.k) add_masked(shape, shared, values);
  const auto count = static_cast<int>(shared.count);
  Key* const candidates = shared.candidates(shape);
  Key* const sorted = shared.sorted(shape);
  // Few are sorted by counting, many by a network, for which only powers of two count.
  const int limit = shape.k <= 128 ? 128 : shape.sorted / (shape.sorted / 2 >= shape.k ? 2 : 1);
  const Key low = lower_end(candidates, count, shape.k, limit, shared.select);
  sort_keys(sorted, gather(candidates, count, low, sorted, shape.sorted, shared.select));
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
