// The softmax denominator of a row.
//
// A warp sums the exponentials of each segment against the segment's own maximum (sum_segment); a
// fixed tree of kSumLeaves leaves combines the segment sums (row_weights, warp_row_sum). Both
// orders depend on the vocabulary alone, so the bits do not depend on the kernel, the number of
// threads or the batch. `Weights` turns values into probabilities against the result.
#pragma once

#include "ops/selection/key.cuh"

namespace touchstone::selection {

// log2(e) / T clamped to normal f32; 0 if `inverse` is 0 (invalid temperature).
__device__ inline float exponent_scale(double inverse) {
  if (inverse == 0) return 0;
  const auto scale = static_cast<float>(kLog2E * inverse);
  return fminf(fmaxf(scale, 1.175494351e-38F), 3.402823466e38F);
}

// Up to this magnitude f32 holds v * scale with an error of at most half a unit of the exponent.
inline constexpr float kLargeExponent = 0x1p24F;

// sum = sum over tokens of 2^(v * scale - reference).
struct RowSum {
  float reference;
  float sum;
};

// The distribution of a row: its denominator and how values map to weights.
struct Weights {
  double inverse;  // 1 / T
  float scale;     // log2(e) / T
  float largest;   // largest value of the row
  RowSum row;
  bool huge;  // largest * scale exceeds kLargeExponent: `row.reference` is `largest` itself

  // The +inf tokens share the row equally; `row.sum` is their number.
  __device__ bool infinite() const { return largest == infinity(); }
  __device__ bool masked() const { return largest == -infinity(); }

  __device__ float exponent(float v) const {
    if (v == -infinity()) return v;
    if (infinite()) return v == infinity() ? 0.0F : -infinity();
    return huge ? (v - largest) * scale : fmaf(v, scale, -row.reference);
  }
  __device__ float weight(float v) const { return exp2f(exponent(v)); }

  // The logarithm of a sum of weights, relative to the largest value. In f64, since it is added to
  // values that may be large.
  __device__ double log_of_sum(float sum) const {
    const double against_largest =
        huge ? 0.0
             : static_cast<double>(row.reference) -
                   static_cast<double>(largest) * static_cast<double>(scale);
    return static_cast<double>(logf(sum)) + against_largest * kLn2;
  }
  __device__ float log_sum_exp() const {
    if (masked() || infinite()) return largest;
    return static_cast<float>(static_cast<double>(largest) * inverse + log_of_sum(row.sum));
  }
  // log(weight(v) / total), clamped to 0: the maximum and the sum are rounded differently.
  __device__ float log_probability(float v, float total) const {
    if (v == -infinity() || (infinite() && v != infinity())) return -infinity();
    const double distance =
        v == largest ? 0.0 : (static_cast<double>(v) - static_cast<double>(largest)) * inverse;
    const double log_total = infinite() ? static_cast<double>(logf(total)) : log_of_sum(total);
    return fminf(static_cast<float>(distance - log_total), 0.0F);
  }
};

// Leaves of the tree that combines segment sums, independent of the number of threads.
inline constexpr int kSumLeaves = 256;

// Row flags in shared memory, collected while a row is read.
inline constexpr std::uint32_t kFlagNan = 1;
inline constexpr std::uint32_t kFlagHuge = 2;      // +inf, or v * scale overflows
inline constexpr std::uint32_t kFlagOverflow = 4;  // the candidate list is not usable: rescan
inline constexpr std::uint32_t kFlagTwoPass = 8;   // the row was read twice

// Sums the exponentials of the segment that a warp holds; the result is in every lane. Returns the
// lane's maximum.
template <class Held>
__device__ float sum_segment(const Held& held, float scale, std::uint32_t& flags, RowSum& sum) {
  const float largest = held.largest();
  RowSum own{largest * scale, 0};
  if (fabsf(own.reference) < kLargeExponent) {
    own.sum = held.sum(scale, own.reference);
  } else {
    // NaN, infinities, and exponents that f32 rounds to integers. Below -2 * kLargeExponent the
    // terms vanish unless the whole row lies there; row_weights_slow_path() handles that row and
    // all rows with a flag.
    if (!(own.reference <= -2 * kLargeExponent)) {
      atomicOr(&flags, isnan(largest) ? kFlagNan : kFlagHuge);
    }
    own.reference = -infinity();
  }
  sum.reference = warp_max(own.reference);
  sum.sum = sum.reference == -infinity() ? 0 : own.sum * exp2_fast(own.reference - sum.reference);
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    sum.sum += __shfl_xor_sync(~0U, sum.sum, offset);
  }
  return largest;
}

// Sums leaf(0) .. leaf(kSumLeaves - 1) by a fixed tree; the result is in every thread.
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

// The row sum from the segment sums, by one warp; the same bits as row_weights().
__device__ inline RowSum warp_row_sum(const float2* sums, int segments) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float reference = -infinity();
  for (int i = lane; i < segments; i += 32) reference = fmaxf(reference, sums[i].x);
  reference = warp_max(reference);
  float total = 0;
#pragma unroll 1
  for (int first = lane; first < min(segments + lane, kSumLeaves); first += 32) {
    float value = 0;
    for (int i = first; i < segments; i += kSumLeaves) {
      value += sums[i].y * exp2_fast(sums[i].x - reference);
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0U, value, offset);
    total += value;
  }
  return {reference, total};
}

// The row sum where segment sums are unusable (exponent overflow, +inf): reads the row once more.
template <class Smem, class Values>
__device__ Weights row_weights_slow_path(const typename Smem::Params& params, Smem& smem,
                                         const Values& values, Weights weights) {
  weights.row.reference = weights.largest;
  weights.huge = true;
  if (weights.masked()) return weights;
  const auto leaf = [&](int i) {
    float sum = 0;
    for (std::int64_t token = i; token < params.vocabulary; token += kSumLeaves) {
      sum += exp2_fast(weights.exponent(values(token)));
    }
    return sum;
  };
  weights.row.sum = sum_of_leaves<Smem::kThreads>(leaf, smem.reduction);
  return weights;
}

// The row sum from the segment sums, by the whole block.
template <class Smem, class Values>
__device__ Weights row_weights(const typename Smem::Params& params, Smem& smem,
                               const Values& values, double inverse) {
  constexpr int kWarps = Smem::kWarps;
  Weights weights{inverse, exponent_scale(inverse), value_of(smem.sorted()[0]), {0, 0}, false};
  const float2* const sums = smem.sums(params);
  const int thread = static_cast<int>(threadIdx.x);
  float reference = -infinity();
  for (int i = thread; i < params.segments; i += Smem::kThreads) {
    reference = fmaxf(reference, sums[i].x);
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    reference = fmaxf(reference, __shfl_xor_sync(~0U, reference, offset));
  }
  float* const largest = smem.reduction + kSumLeaves / 32;
  static_assert(sizeof(smem.reduction) / 4 >= kSumLeaves / 32 + kWarps);
  if (thread % 32 == 0) largest[thread / 32] = reference;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kWarps; ++w) reference = fmaxf(reference, largest[w]);
  if ((smem.flags & kFlagHuge) != 0 || reference == -infinity()) {
    return row_weights_slow_path(params, smem, values, weights);
  }
  const auto leaf = [&](int first) {
    float sum = 0;
    for (int i = first; i < params.segments; i += kSumLeaves) {
      sum += sums[i].y * exp2_fast(sums[i].x - reference);
    }
    return sum;
  };
  weights.row = {reference, sum_of_leaves<Smem::kThreads>(leaf, smem.reduction)};
  return weights;
}

}  // namespace touchstone::selection
