// The end of a softmax that was summed in parts, for every kind of attention on the CPU. No #pragma
// once: read once per target.
#include <cmath>
#include <limits>
#include <numbers>

#include "cpu/exp2.h"

#if defined(TOUCHSTONE_ATTENTION_COMMON_CPU_SOFTMAX_FINISH_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TOUCHSTONE_ATTENTION_COMMON_CPU_SOFTMAX_FINISH_H_
#undef TOUCHSTONE_ATTENTION_COMMON_CPU_SOFTMAX_FINISH_H_
#else
#define TOUCHSTONE_ATTENTION_COMMON_CPU_SOFTMAX_FINISH_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace touchstone::attention_common::HWY_NAMESPACE {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLog2e = std::numbers::log2e_v<float>;

// 2^x of one number.
HWY_INLINE float exp2_scalar(float x) {
  const hwy::HWY_NAMESPACE::ScalableTag<float> d;
  return hwy::HWY_NAMESPACE::GetLane(
      simd::HWY_NAMESPACE::exp2_not_positive(d, hwy::HWY_NAMESPACE::Set(d, x)));
}

struct Finished {
  float factor = 0;  // of the weighted sum of values: then it is the output
  float log_sum_exp = -kInfinity;
};

// Finishes a softmax from the largest score, to base 2, and the sum of weights relative to it. The
// sink, to base 2 too, is one more weight, whose value is 0; -inf: there is none. Without any
// weight the output is 0.
HWY_INLINE Finished finish_softmax(float largest, float sum, float sink) {
  if (largest == -kInfinity && sink == -kInfinity && sum == 0) return {};
  const float most = sink <= largest ? largest : sink;
  const float factor = exp2_scalar(largest - most);
  const float all = sum * factor + exp2_scalar(sink - most);
  constexpr double kLn2 = std::numbers::ln2;
  const double log2 = static_cast<double>(most) + std::log2(static_cast<double>(all));
  return {factor / all, static_cast<float>(log2 * kLn2)};
}

}  // namespace touchstone::attention_common::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
