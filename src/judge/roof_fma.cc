// The arithmetic peak, compiled for every SIMD target of this machine's kind.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "judge/roof_fma.cc"
#include <cstdint>

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "judge/roof.h"

HWY_BEFORE_NAMESPACE();
namespace touchstone::judge {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

std::int64_t MultiplyAdd(std::int64_t steps, float& sink) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  // Ten chains: more than latency times ports on every core of today, fewer than there are
  // registers. The factors keep all values near 1.
  const V a = hn::Set(d, 0.999F);
  const V b = hn::Set(d, 0.001F);
  V s0 = hn::Set(d, 1.0F);
  V s1 = hn::Set(d, 1.1F);
  V s2 = hn::Set(d, 1.2F);
  V s3 = hn::Set(d, 1.3F);
  V s4 = hn::Set(d, 1.4F);
  V s5 = hn::Set(d, 1.5F);
  V s6 = hn::Set(d, 1.6F);
  V s7 = hn::Set(d, 1.7F);
  V s8 = hn::Set(d, 1.8F);
  V s9 = hn::Set(d, 1.9F);
  for (std::int64_t i = 0; i < steps; ++i) {
    s0 = hn::MulAdd(s0, a, b);
    s1 = hn::MulAdd(s1, a, b);
    s2 = hn::MulAdd(s2, a, b);
    s3 = hn::MulAdd(s3, a, b);
    s4 = hn::MulAdd(s4, a, b);
    s5 = hn::MulAdd(s5, a, b);
    s6 = hn::MulAdd(s6, a, b);
    s7 = hn::MulAdd(s7, a, b);
    s8 = hn::MulAdd(s8, a, b);
    s9 = hn::MulAdd(s9, a, b);
  }
  const V sum = hn::Add(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)),
                        hn::Add(hn::Add(hn::Add(s4, s5), hn::Add(s6, s7)), hn::Add(s8, s9)));
  sink = hn::GetLane(hn::SumOfLanes(d, sum));
  return steps * 10 * 2 * static_cast<std::int64_t>(hn::Lanes(d));
}

}  // namespace HWY_NAMESPACE
}  // namespace touchstone::judge
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace touchstone::judge {

HWY_EXPORT(MultiplyAdd);

std::int64_t multiply_add(std::int64_t steps, float& sink) {
  return HWY_DYNAMIC_DISPATCH(MultiplyAdd)(steps, sink);
}

}  // namespace touchstone::judge
#endif
