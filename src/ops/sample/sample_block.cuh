// Sums and searches by a whole block, in an order that depends on nothing, for draws: f64 weights
// and exact integers.
#pragma once

#include "ops/sample/sample_row.h"
#include "ops/softmax_topk/topk_finish.cuh"

namespace touchstone::sampling {

using topk::Key;
using topk::kScanThreads;
using topk::kScanWarps;
using topk::RowSum;
using topk::ScanShape;
using topk::ScanShared;
using topk::Weights;

// Masses that are added up in no fixed order are integers: a weight of 1 is 2^42. The sum of as
// many weights as a scan takes tokens, 2^21, fits.
using Mass = unsigned long long;
inline constexpr double kMassOfOne = 0x1p42;

// What draws need in shared memory beside the scan's.
struct alignas(16) DrawShared {
  RowControls controls;
  double uniform;
  double sums[kScanWarps];
  Mass masses[kScanWarps];
  std::uint32_t least[kScanWarps];
  // A histogram of keys, and the bin that a search goes on in.
  std::uint32_t chosen;
  std::uint32_t within;
  Mass above_count;
  Mass above_mass;
  Mass bin_mass[kScanThreads];
  std::uint32_t bin_count[kScanThreads];
};

// The sum of the values of this thread and all before it; `total` is that of all threads.
template <class Number>
__device__ Number block_prefix(Number value, Number* warp_sums, Number& total) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const Number before = __shfl_up_sync(~0U, value, step);
    if (lane >= step) value += before;
  }
  __syncthreads();  // everyone is done with the last use
  if (lane == 31) warp_sums[warp] = value;
  __syncthreads();
  Number base = 0;
  total = 0;
#pragma unroll
  for (int i = 0; i < kScanWarps; ++i) {
    if (i == warp) base = total;
    total += warp_sums[i];
  }
  return base + value;
}

__device__ inline std::uint32_t block_min(std::uint32_t value, DrawShared& draw) {
  value = __reduce_min_sync(~0U, value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) draw.least[threadIdx.x / 32] = value;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kScanWarps; ++i) value = min(value, draw.least[i]);
  return value;
}

// The distribution that draws are made from: the largest value weighs 1.
struct Distribution {
  float largest;
  double temperature;

  __device__ double weight(float value) const {
    // Also where the largest is infinite.
    if (value == largest) return 1;
    return exp((static_cast<double>(value) - static_cast<double>(largest)) / temperature);
  }
  __device__ Mass mass(float value) const { return __double2ull_rn(weight(value) * kMassOfOne); }
};

// Calls visit(value, token) for the tokens above -inf, a few loads at a time.
template <class Values, class Visit>
__device__ void for_each_value(const Values& values, std::int64_t vocabulary, Visit visit) {
  constexpr int kBatch = 4;
  for (std::int64_t first = threadIdx.x; first < vocabulary; first += kBatch * kScanThreads) {
    float value[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const std::int64_t token = first + i * kScanThreads;
      value[i] = token < vocabulary ? values(token) : -topk::infinity();
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (value[i] > -topk::infinity()) visit(value[i], first + i * kScanThreads);
    }
  }
}

// Weights and their running sums, in the scan's room for candidates.
struct Prefix {
  double* sums;
  double* weights;
};

// Steps of a block's width, so that a sum depends only on what comes before it.
template <class WeightAt>
__device__ void add_up(int count, const WeightAt& weight_at, const Prefix& prefix,
                       DrawShared& draw) {
  double before = 0;
  for (int first = 0; first < count; first += kScanThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const double weight = i < count ? weight_at(i) : 0;
    double total = 0;
    const double sum = block_prefix(weight, draw.sums, total);
    if (i < count) {
      prefix.sums[i] = before + sum;
      prefix.weights[i] = weight;
    }
    before += total;
  }
  __syncthreads();
}

// The first of `count` weights where the running sum exceeds `target`; never one of 0 as long as
// there is another. Sums of different threads are rounded differently, so that no sum may exceed
// a target at the very end: then it is the last weight.
__device__ inline int pick(int count, double target, const Prefix& prefix, DrawShared& draw) {
  const auto none = static_cast<std::uint32_t>(count);
  std::uint32_t first = none;
  std::uint32_t from_end = none;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kScanThreads) {
    if (!(prefix.weights[i] > 0)) continue;
    from_end = static_cast<std::uint32_t>(count - 1 - i);
    if (prefix.sums[i] > target) first = min(first, static_cast<std::uint32_t>(i));
  }
  first = block_min(first, draw);
  if (first < none) return static_cast<int>(first);
  from_end = block_min(from_end, draw);
  return from_end < none ? count - 1 - static_cast<int>(from_end) : 0;
}

}  // namespace touchstone::sampling
