// The activation functions on the device, in f32: one place for activation, gate and the gate of linear.
// Products and sums are spelled out, so that no kernel merges what another does not.
//
// What is promised is act(x) within 16 roundings of |x|, so probabilities need an absolute accuracy of
// 2^-20 and no relative one: the approximations of the special function units (2^-22 relative) serve.
#pragma once

#include "touchstone/ops/activation.h"

namespace touchstone::activation_op {

struct DeviceSlope {
  float value;
  float slope;
};

__device__ inline float approximate_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float approximate_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 0 where e^-x overflows.
__device__ inline float sigmoid(float x) {
  const float e = approximate_exp2(__fmul_rn(x, -1.44269504088896340736F));
  return approximate_reciprocal(__fadd_rn(1.0F, e));
}

// Abramowitz and Stegun 7.1.26: erfc(z) = t (a1 + t (a2 + ..)) e^(-z^2) within 1.5e-7, t = 1 / (1 + p z).
// `gauss` is e^(-x^2 / 2).
__device__ inline float normal_cdf(float x, float gauss) {
  const float z = __fmul_rn(fabsf(x), 0.70710678118654752440F);
  const float t = approximate_reciprocal(__fmaf_rn(0.3275911F, z, 1.0F));
  float a = __fmaf_rn(1.061405429F, t, -1.453152027F);
  a = __fmaf_rn(a, t, 1.421413741F);
  a = __fmaf_rn(a, t, -0.284496736F);
  a = __fmaf_rn(a, t, 0.254829592F);
  const float tail = __fmul_rn(__fmul_rn(__fmul_rn(a, t), gauss), 0.5F);
  return x < 0 ? tail : __fsub_rn(1.0F, tail);
}

template <Activation kKind>
__device__ inline DeviceSlope act(float x) {
  if constexpr (kKind == Activation::silu) {
    const float s = sigmoid(x);
    return {__fmul_rn(x, s), __fmul_rn(s, __fmaf_rn(x, __fsub_rn(1.0F, s), 1.0F))};
  } else if constexpr (kKind == Activation::gelu) {
    const float gauss = approximate_exp2(__fmul_rn(__fmul_rn(x, x), -0.72134752044448170368F));
    const float phi = normal_cdf(x, gauss);
    const float density = __fmul_rn(0.39894228040143267794F, gauss);
    return {__fmul_rn(x, phi), __fmaf_rn(x, density, phi)};
  } else if constexpr (kKind == Activation::gelu_tanh) {
    // (1 + tanh z) / 2 is the sigmoid of 2 z.
    constexpr float kScale = 2 * 0.79788456080286535588F;
    const float x2 = fminf(__fmul_rn(x, x), 1e30F);  // 0 * infinity below
    const float s = sigmoid(__fmul_rn(__fmul_rn(kScale, x), __fmaf_rn(0.044715F, x2, 1.0F)));
    const float rise = __fmul_rn(kScale, __fmaf_rn(3 * 0.044715F, x2, 1.0F));
    const float bend = __fmul_rn(__fmul_rn(s, __fsub_rn(1.0F, s)), rise);
    return {__fmul_rn(x, s), __fmaf_rn(x, bend, s)};
  } else {
    const float positive = x < 0 ? 0 : x;
    return {__fmul_rn(positive, positive), __fadd_rn(positive, positive)};
  }
}

// f.template operator()<kind>().
template <class F>
__device__ inline decltype(auto) visit_kind(Activation kind, const F& f) {
  switch (kind) {
    case Activation::silu:
      return f.template operator()<Activation::silu>();
    case Activation::gelu:
      return f.template operator()<Activation::gelu>();
    case Activation::gelu_tanh:
      return f.template operator()<Activation::gelu_tanh>();
    default:
      return f.template operator()<Activation::relu_squared>();
  }
}

}  // namespace touchstone::activation_op
