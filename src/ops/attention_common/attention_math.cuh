// The numbers all attention kernels on CUDA use: the exponential of a softmax and how a row ends.
#pragma once

#include <cstdint>
#include <numbers>

#include "cuda/tensor_core.cuh"

namespace touchstone::attention_common {

inline constexpr unsigned kAllLanes = 0xffffffffU;
inline constexpr float kLog2E = std::numbers::log2e_v<float>;
inline constexpr float kLn2 = std::numbers::ln2_v<float>;

__device__ inline float minus_infinity() { return __uint_as_float(0xff800000U); }

// exp(x - largest), where `largest` may be -inf: then 0, or NaN for NaN.
__device__ inline float weight_of(float x, float largest) {
  return exp2f(__fmul_rn(x - (largest == minus_infinity() ? 0.0F : largest), kLog2E));
}

// tanh to a few units in the last place, without branches: a series where the quotient would
// cancel.
__device__ inline float tanh_of(float x) {
  const float power = cuda::exp2_flushed(fabsf(x) * (-2 * kLog2E));
  const float quotient = copysignf(__fdividef(1 - power, 1 + power), x);
  const float y = x * x;
  float series = fmaf(y, 0.0218694885F, -0.0539682540F);
  series = fmaf(y, series, 0.133333333F);
  series = fmaf(y, series, -0.333333333F);
  return y < 0.0625F ? fmaf(x * y, series, x) : quotient;
}

// The sum of weights with the sink, ready to end with.
struct SoftmaxEpilogue {
  float factor;  // of the sums of weighted values
  float log_sum_exp;
  bool nothing;  // attended to: the output is 0

  // `sinks` [heads] or null; the largest score and the sum of weights relative to it.
  __device__ SoftmaxEpilogue(const float* sinks, std::int64_t head, float largest, float sum) {
    const float sink = sinks != nullptr ? sinks[head] : minus_infinity();
    const float top = sink > largest || sink != sink ? sink : largest;
    const float own = weight_of(largest, top);
    const float total = fmaf(sum, own, weight_of(sink, top));
    nothing = top == minus_infinity() && total == 0;
    factor = own / total;
    log_sum_exp = nothing ? top : __fadd_rn(top, logf(total));
  }
};

}  // namespace touchstone::attention_common
