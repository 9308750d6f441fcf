// Powers of two of small numbers, the core of every exponential, and tanh by them.
// No #pragma once: read once per target.
#include <numbers>

#include "cpu/simd.h"

#if defined(TOUCHSTONE_CPU_EXP2_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TOUCHSTONE_CPU_EXP2_H_
#undef TOUCHSTONE_CPU_EXP2_H_
#else
#define TOUCHSTONE_CPU_EXP2_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace touchstone::simd::HWY_NAMESPACE {

// (2^f - 1) / f for |f| <= 1/2.
template <class D>
HWY_INLINE hn::Vec<D> exp2_slope(D d, hn::Vec<D> f) {
  auto p = hn::MulAdd(hn::Set(d, 0.0001545316295F), f, hn::Set(d, 0.001339086336F));
  p = hn::MulAdd(p, f, hn::Set(d, 0.009618082557F));
  p = hn::MulAdd(p, f, hn::Set(d, 0.05550357114F));
  p = hn::MulAdd(p, f, hn::Set(d, 0.2402265076F));
  return hn::MulAdd(p, f, hn::Set(d, 0.693147188F));
}

// 2^f for |f| <= 1/2, error 5e-9 before rounding, 1 exactly at 0.
template <class D>
HWY_INLINE hn::Vec<D> exp2_half(D d, hn::Vec<D> f) {
  return hn::MulAdd(exp2_slope(d, f), f, hn::Set(d, 1.0F));
}

// 2^n for whole numbers n from -126 to 127.
template <class D>
HWY_INLINE hn::Vec<D> exp2_whole(D d, hn::Vec<D> n) {
  const hn::RebindToSigned<D> di;
  return hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127))));
}

// 2^x for x <= 0, and a little above; 0 below 2^-126, NaN for NaN.
template <class D>
HWY_INLINE hn::Vec<D> exp2_not_positive(D d, hn::Vec<D> x) {
  const auto lowest = hn::Set(d, -126.0F);
  const auto tiny = hn::Lt(x, lowest);
  const auto inside = hn::IfThenElse(tiny, lowest, x);
  const auto n = hn::Round(inside);
  const auto power = hn::Mul(exp2_half(d, hn::Sub(inside, n)), exp2_whole(d, n));
  return hn::IfThenZeroElse(tiny, power);
}

// By e^2x - 1 = 2^n (2^f - 1) + (2^n - 1), which keeps its digits near 0.
template <class D>
HWY_INLINE hn::Vec<D> tanh(D d, hn::Vec<D> x) {
  constexpr float kLog2e = std::numbers::log2e_v<float>;
  const auto bounded =
      hn::IfThenElse(hn::Gt(hn::Abs(x), hn::Set(d, 10.0F)), hn::CopySign(hn::Set(d, 10.0F), x), x);
  const auto y = hn::Mul(bounded, hn::Set(d, 2 * kLog2e));
  const auto n = hn::Round(y);
  const auto f = hn::Sub(y, n);
  const auto power = exp2_whole(d, n);
  const auto rest = hn::Mul(exp2_slope(d, f), f);
  const auto less_one = hn::MulAdd(power, rest, hn::Sub(power, hn::Set(d, 1.0F)));
  return hn::Div(less_one, hn::Add(less_one, hn::Set(d, 2.0F)));
}

}  // namespace touchstone::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
