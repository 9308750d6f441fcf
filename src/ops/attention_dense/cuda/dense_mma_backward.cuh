// Dense attention backward on mma.sync: what its kernels share.
#pragma once

#include "ops/attention_dense/cuda/dense_mma.cuh"

namespace touchstone::dense_attention {

struct MmaGradientWork {
  BackwardProblem p;
  TileSchedule schedule;
  const float* delta = nullptr;
  bool changed = false;  // the scores, one by one
  bool capped = false;
  float scale = 1;   // of the scores, to base 2
  float hidden = 0;  // what times the scale is -inf
};

// What a row's weights are relative to, to base 2: without a part in any gradient they are 0.
__device__ inline float log_of(float log_sum_exp) {
  return log_sum_exp == minus_infinity() ? -log_sum_exp : log_sum_exp * kLog2E;
}

// dbias: dense_mma_bias_gradient.cu.
void mma_bias_gradient(Context& context, const MmaGradientWork& work);

}  // namespace touchstone::dense_attention
