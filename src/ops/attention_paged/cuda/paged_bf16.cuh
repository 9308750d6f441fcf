// The arithmetic of cached_attention over keys and values of bf16, which the decode kernel, the
// prefill kernel and the merge of splits share: the same bits, however many queries there are.
//
// For one query vector:
//   split   positions [i * kSplit, (i + 1) * kSplit) on the query's own path start from nothing
//   chunk   kChunk positions, ascending from multiples of kChunk on; the running maximum of a split
//           moves with a chunk, when a weight would be above 2^kSlack
//   score   one sum over the head dimension, 16 numbers at a time, ascending
//   weight  2^(score - maximum) as two bf16 (17 bits)
//   value   16 positions at a time, ascending: the first parts of the weights, then the second
//   merge   splits one after another, ascending
// A position that is masked has weight 0 and leaves every sum as it is, so a kernel may skip it or
// not. Sums of zeros may differ in sign, so outputs of -0 become 0.
//
// The tensor cores' sums of 16 products do not depend on the instruction, the number of columns or
// the side of an operand (docs/design/linear.md).
#pragma once

#include "cuda/hopper.cuh"
#include "cuda/tensor_core.cuh"
#include "ops/attention_paged/cuda/paged_cuda.cuh"

namespace touchstone::paged_attention {

template <int kDim_>
struct Bf16Scheme {
  static constexpr int kDim = kDim_;
  static constexpr int kRowBytes = 2 * kDim;
  static constexpr int kChunk = 4096 / kRowBytes;
  // By bytes: what a split costs besides is the same.
  static constexpr int kSplit = tuning::kSplit * 256 / kRowBytes;
  static constexpr int kProducts = kDim / 16;  // of a score
};

// What scores are multiplied with; a query has the sign of `scale`, so that larger products are
// larger scores. Never 0, so that -inf stays -inf.
__device__ inline float score_multiplier(const PagedAttentionProblem& p) {
  return fmaxf(fabsf(p.scale), 0x1p-100F);
}

// Whether a score moves the maximum. While that is -inf every score but -inf does.
__device__ inline bool is_above(float score, float largest, float to_log2) {
  constexpr float kSlack = 8;
  return __fmul_rn(__fsub_rn(score, largest), to_log2) > kSlack;
}

// Brings sums under a maximum that has moved; exactly 1 where it has not.
__device__ inline float moving_factor(float before, float after, float to_log2) {
  return before == after ? 1.0F : exp2f(__fmul_rn(__fsub_rn(before, after), to_log2));
}

// Weights are 2^(score * to_log2 + weight_base).
__device__ inline float weight_base(float largest, float to_log2) {
  return largest == minus_infinity() ? 0.0F : __fmul_rn(-largest, to_log2);
}
__device__ inline float bf16_weight(float score, float to_log2, float base) {
  return cuda::exp2_flushed(fmaf(score, to_log2, base));
}

__device__ inline std::uint32_t bf16_pair(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
// Two weights as bf16; what is left of them stays.
__device__ inline std::uint32_t take_bf16_pair(float& low, float& high) {
  const std::uint32_t pair = bf16_pair(low, high);
  low = __fsub_rn(low, __uint_as_float(pair << 16));
  high = __fsub_rn(high, __uint_as_float(pair & 0xffff0000U));
  return pair;
}

__device__ __noinline__ inline float capped_bf16_score(float score, float cap) {
  return __fmul_rn(cap, tanhf(score / cap));
}

// Over the four lanes of a row of scores.
__device__ inline float max_of_row(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}
__device__ inline float sum_of_row(float x) {
  x = __fadd_rn(x, __shfl_xor_sync(kAllLanes, x, 1));
  return __fadd_rn(x, __shfl_xor_sync(kAllLanes, x, 2));
}

// The next split joins the sums so far: each is multiplied with its factor.
struct MergeFactors {
  float so_far, split;

  // `largest` of the sums so far becomes that of both.
  __device__ MergeFactors(float& largest, float of_split) {
    const float both = fmaxf(largest, of_split);
    so_far = largest == both && both != minus_infinity() ? 1.0F : weight_of(largest, both);
    split = weight_of(of_split, both);
    largest = both;
  }
  __device__ float merged(float sum, float of_split) const {
    return fmaf(sum, so_far, __fmul_rn(of_split, split));
  }
};

// A sum of weighted values becomes an output.
__device__ inline float finished_value(float sum, const SoftmaxEpilogue& epilogue) {
  return epilogue.nothing ? 0.0F : __fadd_rn(__fmul_rn(sum, epilogue.factor), 0.0F);
}

}  // namespace touchstone::paged_attention
