// Many places of rows of bf16: from the candidates of a scan, as keys of 32 bits, to the outputs.
#pragma once

#include "ops/softmax_topk/topk_warp.cuh"

namespace touchstone::topk {

// Spreads short keys over all bins, the largest key into the first.
struct ShortKeyBins {
  static constexpr int kBins = SelectScratch<kScanThreads>::kBins;
  std::uint32_t factor;

  // Rounding may make a bin too few, but not too many.
  __device__ explicit ShortKeyBins(std::uint32_t largest)
      : factor(static_cast<std::uint32_t>(fminf(
            0x1.fffffep31F, 0x1p32F * (kBins - 0.01F) / (static_cast<float>(largest) + 1)))) {}
  __device__ int operator()(std::uint32_t key) const {
    return kBins - 1 - static_cast<int>(__umulhi(key, factor));
  }
};

// The keys that a thread of a block holds on their way into bins.
class ShortKeySort {
 public:
  using Scratch = SelectScratch<kScanThreads>;
  static constexpr int kEach = ScanShared::kMaxShortKeys / kScanThreads;

  // Fetches them. The largest of all is known after the next barrier.
  __device__ ShortKeySort(const std::uint32_t* candidates, int candidate_count, Scratch& scratch)
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

  // Into bins, whose counts are 0. False when one is crowded.
  __device__ bool count_bins(const ShortKeyBins& bins) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (!is_there(j)) continue;
      const int bin = bins(keys[j]);
      const std::uint32_t pair = atomicAdd(&s.pairs[bin / 2], Bins::one_in(bin));
      before[j] = bin % 2 == 0 ? pair & 0xffffU : pair >> 16;
    }
    __syncthreads();
    return !place_bins(s);
  }

  // Bin by bin, as far as k places may reach.
  __device__ void place(const ShortKeyBins& bins, int k, std::uint32_t* placed) const {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      if (!is_there(j)) continue;
      const int at = Bins::half_of(s.pairs, bins(keys[j])) + static_cast<int>(before[j]);
      if (at < k + Scratch::kCrowded) placed[at] = keys[j];
    }
  }

 private:
  __device__ static int index(int j) { return j * kScanThreads + static_cast<int>(threadIdx.x); }
  __device__ bool is_there(int j) const { return index(j) < count; }

  int count;
  Scratch& s;
  std::uint32_t keys[kEach];
  std::uint32_t before[kEach];  // in the bin
};

// Calls put(place, key) for the first k of the keys that lie bin by bin: each is ranked by those of
// its bin.
template <class Put>
__device__ void rank_placed(const std::uint32_t* placed, int count, int k, const ShortKeyBins& bins,
                            const std::uint32_t* pairs, const Put& put) {
  const int held = min(count, k + SelectScratch<kScanThreads>::kCrowded);
  for (int i = static_cast<int>(threadIdx.x); i < held; i += kScanThreads) {
    const std::uint32_t key = placed[i];
    const int bin = bins(key);
    int place = Bins::half_of(pairs, bin);
    const int end = bin + 1 < ShortKeyBins::kBins ? min(held, Bins::half_of(pairs, bin + 1)) : held;
#pragma unroll 4
    for (int other = place; other < end; ++other) {
      place += placed[other] > key ? 1 : 0;
    }
    if (place < k) put(place, key);
  }
}

// Puts out the places of a row.
struct ShortKeyOutput {
  const Topk& p;
  std::int64_t row;
  ShortKeys short_keys;
  Weights weights;

  __device__ void put(int place, std::uint32_t key, float total) const {
    put_place(p, row, place, short_keys.value(key), short_keys.token(key), weights, total);
  }

  // All of them, where the keys are in order.
  __device__ void put_all(const std::uint32_t* sorted, float* reduction) const {
    const auto k = static_cast<int>(p.k);
    float total = weights.row.sum;
    if (p.renormalize) {
      const auto leaf = [&](int first) {
        float kept = 0;
        for (int j = first; j < k; j += kSumLeaves) {
          kept += weights.weight(short_keys.value(sorted[j]));
        }
        return kept;
      };
      total = sum_of_leaves<kScanThreads>(leaf, reduction);
    }
    for (int j = static_cast<int>(threadIdx.x); j < k; j += kScanThreads) put(j, sorted[j], total);
  }

  __device__ void put_usual_status() const {
    if (threadIdx.x != 0) return;
    if (p.log_sum_exp != nullptr) p.log_sum_exp[row] = weights.log_sum_exp();
    if (p.status != nullptr) p.status[row] = 0;
  }
};

// The outputs of a row that the scan has read, from its short keys. False, with nothing put out,
// when something is not usual.
__device__ inline bool put_short_keys(const Topk& p, std::int64_t row, const ScanShape& shape,
                                      ScanShared& shared, double inverse) {
  const auto k = static_cast<int>(p.k);
  const auto count = static_cast<int>(shared.count);
  if (shared.flags != 0 || count < k || count > ScanShared::most_short_keys(shape)) return false;
  const ShortKeys short_keys(unordered(shared.threshold), shape.token_bits);
  std::uint32_t* const candidates = shared.short_keys(shape);
  auto* const placed = reinterpret_cast<std::uint32_t*>(shared.staged);
  static_assert(sizeof(shared.staged) / 4 >=
                ScanShared::kMaxSorted + ShortKeySort::Scratch::kCrowded);
  ShortKeySort sort(candidates, count, shared.select);
  __syncthreads();
  const std::uint32_t largest = sort.largest();
  if (short_keys.is_unknown(largest)) return false;
  const ShortKeyBins bins(largest);
  const bool crowded = !sort.count_bins(bins);
  if (crowded) {
    sort_keys<kScanThreads>(candidates, count);
  } else {
    sort.place(bins, k, placed);
  }
  if (threadIdx.x / 32 == kScanWarps - 1) {
    const RowSum all = warp_row_sum(shared.sums(shape), shape.segments);
    if (threadIdx.x % 32 == 0) {
      shared.reduction[0] = all.reference;
      shared.reduction[1] = all.sum;
    }
  }
  __syncthreads();
  const RowSum sum{shared.reduction[0], shared.reduction[1]};
  if (sum.reference == -infinity()) return false;
  const ShortKeyOutput output{
      p,
      row,
      short_keys,
      {inverse, exponent_scale(inverse), short_keys.value(largest), sum, false}};
  // Where all that is kept must be added up first, the keys are put in order before.
  if (!crowded) {
    rank_placed(placed, count, k, bins, shared.select.pairs, [&](int place, std::uint32_t key) {
      if (p.renormalize) {
        candidates[place] = key;
      } else {
        output.put(place, key, sum.sum);
      }
    });
  }
  if (crowded || p.renormalize) output.put_all(candidates, shared.reduction);
  output.put_usual_status();
  return true;
}

// Makes keys of 64 bits of them, as many as fit. False when there are some of unknown value.
__device__ inline bool widen_keys(const ScanShape& shape, ScanShared& shared) {
  constexpr int kEach = (ScanShared::kMaxSorted + kScanThreads) / kScanThreads;
  const ShortKeys short_keys(unordered(shared.threshold), shape.token_bits);
  const int count = min(static_cast<int>(shared.count), shape.candidates);
  const auto index = [](int j) { return j * kScanThreads + static_cast<int>(threadIdx.x); };
  Key keys[kEach];
  bool unknown = false;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    if (index(j) >= count) continue;
    const std::uint32_t key = shared.short_keys(shape)[index(j)];
    unknown = unknown || short_keys.is_unknown(key);
    keys[j] = key_of(short_keys.value(key), short_keys.token(key));
  }
  unknown = __syncthreads_or(unknown ? 1 : 0) != 0;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    if (index(j) < count) shared.candidates(shape)[index(j)] = keys[j];
  }
  __syncthreads();
  return !unknown;
}

// The same for any row. Out of line: few rows come here.
__device__ __noinline__ inline void put_rare_row(const Topk& p, std::int64_t row,
                                                 const ScanShape& shape, ScanShared& shared,
                                                 double inverse) {
  const RowValues<Bf16> values = values_of<Bf16>(p, row);
  const auto k = static_cast<int>(p.k);
  // A guess that takes in every token above -inf was not too high.
  const bool enough = static_cast<int>(shared.count) >= k || shared.threshold == kAboveNothing;
  const bool widened = widen_keys(shape, shared);
  if (threadIdx.x == 0 && !(enough && widened)) shared.flags |= ScanShared::kOverflow;
  __syncthreads();
  const int above = sort_candidates<Segment<Bf16, true>>(shape, k, shared, values);
  const Weights weights = row_weights(shape, shared, values, inverse);
  put_row(p, row, shared, above, weights);
}

}  // namespace touchstone::topk
