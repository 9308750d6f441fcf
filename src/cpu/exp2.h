// Powers of two of small numbers, the core of every exponential. No #pragma once: read once per
// target.
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

}  // namespace touchstone::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
