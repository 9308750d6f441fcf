// Cross entropy on CUDA: what the implementations share.
#pragma once

#include "cuda/launch.h"
#include "cuda/vector.cuh"
#include "ops/cross_entropy/cross_entropy_problem.h"
#include "ops/cross_entropy/cross_entropy_tuning.h"

namespace touchstone::cross_entropy_op {

inline constexpr float kLog2E = 1.44269504088896340736F;

// e^x; 0 for -infinity, NaN for NaN.
__device__ inline float exp_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(__fmul_rn(x, kLog2E)));
  return y;
}

// The largest logit, the sum of exp(l - largest) and the sum of l, of some of a row's columns.
struct Stats {
  float largest;
  float sum;
  float logits;
};

__device__ inline Stats no_stats() { return {-INFINITY, 0, 0}; }

// A part without a finite logit leaves the other as it is; +infinity and NaN make the sum NaN.
__device__ inline Stats joined(const Stats& a, const Stats& b) {
  const float largest = fmaxf(a.largest, b.largest);
  const auto scaled = [&](const Stats& s) {
    return s.largest == -INFINITY ? s.sum : __fmul_rn(s.sum, exp_of(s.largest - largest));
  };
  return {largest, __fadd_rn(scaled(a), scaled(b)), __fadd_rn(a.logits, b.logits)};
}

__device__ inline float lse_of(const Stats& s) {
  if (s.largest == -INFINITY) return __uint_as_float(0x7fffffffU);
  return __fadd_rn(s.largest, logf(s.sum));
}

// The outputs of a token; null = absent.
struct TokenOutputs {
  Formula formula{};
  Targets targets{};
  float* loss = nullptr;
  float* log_probability = nullptr;
  float* lse = nullptr;
  float* losses = nullptr;  // for the mean
};

enum class TargetKind { in_range, ignored, out_of_range };

__device__ inline TargetKind kind_of(const Formula& f, std::int64_t target) {
  if (target == f.ignore_index) return TargetKind::ignored;
  return target >= 0 && target < f.vocabulary ? TargetKind::in_range : TargetKind::out_of_range;
}

__device__ inline void put_token(const TokenOutputs& o, std::int64_t n, const Stats& s,
                                 float target_logit) {
  const float lse = lse_of(s);
  const TargetKind kind = kind_of(o.formula, o.targets[n]);
  RowResult<float> row{0, 0};
  if (kind == TargetKind::in_range) {
    const float mean = __fdiv_rn(s.logits, static_cast<float>(o.formula.vocabulary));
    row = finish_row<float>(o.formula, lse, target_logit, mean);
  } else if (kind == TargetKind::out_of_range) {
    row.loss = row.log_probability = __uint_as_float(0x7fffffffU);
  }
  if (o.loss != nullptr) o.loss[n] = row.loss;
  if (o.log_probability != nullptr) o.log_probability[n] = row.log_probability;
  if (o.lse != nullptr) o.lse[n] = lse;
  if (o.losses != nullptr) o.losses[n] = row.loss;
}

// The gradient of a token's loss: 0 where it takes no part.
__device__ inline float dloss_of(const TokenOutputs& o, const float* dloss, const float* mean,
                                 std::int64_t n) {
  if (kind_of(o.formula, o.targets[n]) != TargetKind::in_range) return 0;
  return dloss != nullptr ? dloss[n] : *mean;
}

// dl from the logit; `close` is l - lse, which may be known better than l.
__device__ inline float dl_of(const Formula& f, const RowGradient<float>& c, float l, float close,
                              bool is_target) {
  float dl = __fsub_rn(__fmul_rn(c.softmax, exp_of(close)), c.uniform);
  if (is_target) dl = __fsub_rn(dl, c.target);
  if (f.soft_cap > 0) {
    const float ratio = __fdiv_rn(l, static_cast<float>(f.soft_cap));
    dl = __fmul_rn(dl, __fsub_rn(1.0F, __fmul_rn(ratio, ratio)));
  }
  return dl;
}

// ---- host: cross_entropy_portable.cu -----------------------------------------------------------

inline std::int64_t aligned(std::int64_t bytes) { return (bytes + 255) / 256 * 256; }

// Scratch that every implementation has: 1 / counted tokens, and the losses of all tokens where the
// mean wants them.
std::int64_t common_bytes(const Problem& p);
struct Common {
  float* mean_gradient;
  float* losses;
};
Common common_of(const Problem& p, std::byte* memory);
void count_tokens(Context& context, const Problem& p, const Common& common);
void put_mean(Context& context, const Problem& p, const Common& common);
// No tokens: mean_loss and dweight.
void clear_outputs(Context& context, const Problem& p);

// Outputs of tokens from `first` on.
TokenOutputs outputs_of(const Problem& p, const Common& common, std::int64_t first);

}  // namespace touchstone::cross_entropy_op
