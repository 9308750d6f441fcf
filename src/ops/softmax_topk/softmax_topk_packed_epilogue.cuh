// Epilogue of streaming_packed: bf16 rows whose candidates are 32-bit keys.
#pragma once

#include "ops/selection/packed_key_rank.cuh"
#include "ops/softmax_topk/softmax_topk_epilogue.cuh"

namespace touchstone::topk {

using selection::kStreamingThreads;
using selection::PackedKey32;
using selection::PackedKeyBins;
using selection::PackedKeySort;
using selection::StreamingParams;
using selection::StreamingSmem;

// Stores the slots of a row.
struct PackedKeyEpilogue {
  const SoftmaxTopkProblem& p;
  std::int64_t row;
  PackedKey32 packed_keys;
  Weights weights;

  __device__ void store(int slot, std::uint32_t key, float total) const {
    store_slot(p, row, slot, packed_keys.value(key), packed_keys.token(key), weights, total);
  }

  // All slots, from sorted keys.
  __device__ void store_all(const std::uint32_t* sorted, float* reduction) const {
    const auto k = static_cast<int>(p.k);
    float total = weights.row.sum;
    if (p.renormalize) {
      const auto leaf = [&](int first) {
        float kept = 0;
        for (int j = first; j < k; j += kSumLeaves) {
          kept += weights.weight(packed_keys.value(sorted[j]));
        }
        return kept;
      };
      total = selection::sum_of_leaves<kStreamingThreads>(leaf, reduction);
    }
    for (int j = static_cast<int>(threadIdx.x); j < k; j += kStreamingThreads)
      store(j, sorted[j], total);
  }

  __device__ void store_row_status() const {
    if (threadIdx.x != 0) return;
    if (p.log_sum_exp != nullptr) p.log_sum_exp[row] = weights.log_sum_exp();
    if (p.status != nullptr) p.status[row] = to_int(RowStatus::ok);
  }
};

// Orders the packed candidates of a row and stores its outputs. Returns false, with nothing stored,
// if the row needs the slow path.
__device__ inline bool store_packed_row(const SoftmaxTopkProblem& p, std::int64_t row,
                                        const StreamingParams& params, StreamingSmem& smem,
                                        double inverse) {
  const auto k = static_cast<int>(p.k);
  const auto count = static_cast<int>(smem.count);
  if (smem.flags != 0 || count < k || count > StreamingSmem::max_packed_keys(params)) return false;
  const PackedKey32 packed_keys(selection::unordered(smem.threshold), params.token_bits);
  std::uint32_t* const candidates = smem.packed_keys(params);
  auto* const binned = reinterpret_cast<std::uint32_t*>(smem.staged);
  static_assert(sizeof(smem.staged) / 4 >=
                StreamingSmem::kMaxSorted + PackedKeySort::Scratch::kMaxBinKeys);
  PackedKeySort sort(candidates, count, smem.select);
  __syncthreads();
  const std::uint32_t largest = sort.largest();
  if (packed_keys.is_unknown(largest)) return false;
  const PackedKeyBins bins(largest);
  const bool overfull = !sort.count_bins(bins);
  if (overfull) {
    selection::sort_keys<kStreamingThreads>(candidates, count);
  } else {
    sort.scatter(bins, k, binned);
  }
  if (threadIdx.x / 32 == selection::kStreamingWarps - 1) {
    const RowSum all = selection::warp_row_sum(smem.sums(params), params.segments);
    if (threadIdx.x % 32 == 0) {
      smem.reduction[0] = all.reference;
      smem.reduction[1] = all.sum;
    }
  }
  __syncthreads();
  const RowSum sum{smem.reduction[0], smem.reduction[1]};
  if (sum.reference == -infinity()) return false;
  const PackedKeyEpilogue output{
      p,
      row,
      packed_keys,
      {inverse, exponent_scale(inverse), packed_keys.value(largest), sum, false}};
  // To renormalize, the kept weights are summed in order before anything is stored.
  if (!overfull) {
    selection::rank_binned(binned, count, k, bins, smem.select.pairs,
                           [&](int slot, std::uint32_t key) {
                             if (p.renormalize) {
                               candidates[slot] = key;
                             } else {
                               output.store(slot, key, sum.sum);
                             }
                           });
  }
  if (overfull || p.renormalize) output.store_all(candidates, smem.reduction);
  output.store_row_status();
  return true;
}

// The same for any row. Rare, hence __noinline__.
__device__ __noinline__ inline void process_packed_row_slow_path(const SoftmaxTopkProblem& p,
                                                                 std::int64_t row,
                                                                 const StreamingParams& params,
                                                                 StreamingSmem& smem,
                                                                 double inverse) {
  const RowValues<Bf16> values = values_of<Bf16>(p, row);
  const auto k = static_cast<int>(p.k);
  // A threshold that admits every token above -inf was not too high.
  const bool enough =
      static_cast<int>(smem.count) >= k || smem.threshold == selection::kMinCandidateWord;
  const bool widened = selection::widen_keys(params, smem);
  if (threadIdx.x == 0 && !(enough && widened)) smem.flags |= selection::kFlagOverflow;
  __syncthreads();
  const int above =
      selection::sort_candidates<selection::Segment<Bf16, true>>(params, k, smem, values);
  const Weights weights = selection::row_weights(params, smem, values, inverse);
  store_row(p, row, smem, above, weights);
}

}  // namespace touchstone::topk
