// 2^x for the scan of CPU selections. No #pragma once: read once per target, after cpu/simd.h.
// cpu/exp2.h takes x itself; this one never rounds x = v * s - c, which large logits need, and
// looks up fractions.
//
// x = v * s - c with an integer c near the largest v * s. It is split into a grid point and a rest
// without ever being rounded itself: fma(v, s, magic - c) rounds the exact x to the grid, and
// fma(v, s, -(grid point + c)) is the exact rest, rounded once. Large logits lose nothing, and sums
// with different c are merged by exact powers of two.
#include <cmath>
#include <cstdint>

#include "cpu/exp2.h"

#if defined(TOUCHSTONE_SELECTION_CPU_EXP2_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TOUCHSTONE_SELECTION_CPU_EXP2_H_
#undef TOUCHSTONE_SELECTION_CPU_EXP2_H_
#else
#define TOUCHSTONE_SELECTION_CPU_EXP2_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace touchstone::selection::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace sd = touchstone::simd::HWY_NAMESPACE;

// Grid points per octave, as a power of two. With vectors of 8 or 16 lanes one permutation looks up
// the fraction of 2^x, in one or two vectors, which saves two or three terms of the polynomial.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
constexpr int kGridBits = 5;
#elif HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
constexpr int kGridBits = 3;
#else
constexpr int kGridBits = 0;
#endif

// Offset of the rest f. With 32 points, 2^f is close to c (u^2 + k) for u = f + kAside, with c in
// the table, which leaves one operation of the polynomial. A whole number of grid steps, to be part
// of what is subtracted anyway: the nearest to log2(e), where both coefficients match.
constexpr float kAside = kGridBits == 5 ? 46.0F / 32 : 0;

// Bits of c 2^(j / grid), or 2^(j / grid), less those that the shifted grid point contributes.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
alignas(64) constexpr std::uint32_t kFractions[32] = {
    0x3e76e2c4, 0x3e784aba, 0x3e78e87f, 0x3e77bb1d, 0x3e769d8e, 0x3e75902a, 0x3e74934c, 0x3e73a751,
    0x3e72cc97, 0x3e72037f, 0x3e714c6d, 0x3e70a7c4, 0x3e7015ed, 0x3e6f9750, 0x3e6f2c59, 0x3e6ed577,
    0x3e6e931b, 0x3e6e65b6, 0x3e6e4dc0, 0x3e6e4baf, 0x3e6e5fff, 0x3e6e8b2d, 0x3e6ecdb9, 0x3e6f2826,
    0x3e6f9afb, 0x3e7026bf, 0x3e70cbff, 0x3e718b4a, 0x3e726531, 0x3e735a4a, 0x3e746b2d, 0x3e759876};
// The same with all bits, for the instruction that scales by the octave of the grid point less
// kAside, which is one or two lower.
alignas(64) constexpr std::uint32_t kPowers[32] = {
    0x3f76e2c4, 0x3f7c4aba, 0x3f80e87f, 0x3f83bb1d, 0x3f869d8e, 0x3f89902a, 0x3f8c934c, 0x3f8fa751,
    0x3f92cc97, 0x3f96037f, 0x3f994c6d, 0x3f9ca7c4, 0x3fa015ed, 0x3fa39750, 0x3f272c59, 0x3f2ad577,
    0x3f2e931b, 0x3f3265b6, 0x3f364dc0, 0x3f3a4baf, 0x3f3e5fff, 0x3f428b2d, 0x3f46cdb9, 0x3f4b2826,
    0x3f4f9afb, 0x3f5426bf, 0x3f58cbff, 0x3f5d8b4a, 0x3f626531, 0x3f675a4a, 0x3f6c6b2d, 0x3f719876};
#elif HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
alignas(64) constexpr std::uint32_t kFractions[8] = {
    0x3f800000, 0x3f7b95c2, 0x3f7837f0, 0x3f75fed7, 0x3f7504f3, 0x3f75672a, 0x3f7744fd, 0x3f7ac0c7};
#endif

// Whether there is an instruction for x * 2^n that flushes underflow to 0 (exp2_free). Sufficient
// for rows with references between these: what underflows lies 100 octaves below.
constexpr bool kCanScale = HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3;
constexpr double kLowestFree = -20;
constexpr double kHighestFree = 40;

// Added to x, leaves the nearest grid point in the low bits.
constexpr float kMagic = 0x1.8p23F / static_cast<float>(1 << kGridBits);
// Beyond this c the grid point plus c is not exact, at any grid.
constexpr double kMaxReference = 0x1p18;
// Terms below 2^-120 of the largest are clamped to that: 2^20 of them are 2^-100 of the sum.
constexpr double kLowestExponent = -120;

// max(v, low) that keeps NaN, which is how NaN is detected: x86 and Arm return the second operand,
// or NaN.
template <class D>
HWY_INLINE hn::Vec<D> at_least(D d, hn::Vec<D> v, hn::Vec<D> low) {
  (void)d;
#if HWY_ARCH_X86 && HWY_TARGET < HWY_EMU128
  return hn::Max(low, v);
#else
  return hn::IfThenElse(hn::Lt(v, low), low, v);
#endif
}

// 2^f, less the factor that is in the table, from f + kAside; f is at most half a grid step.
template <class D>
HWY_INLINE hn::Vec<D> exp2_rest(D d, hn::Vec<D> f) {
  if constexpr (kGridBits == 0) return sd::exp2_half(d, f);
  // Error 1.3e-7.
  if constexpr (kGridBits == 5) return hn::MulAdd(f, f, hn::Set(d, 2.081259966F));
  // Error 4e-8.
  auto p = hn::MulAdd(hn::Set(d, 0.05550801511F), f, hn::Set(d, 0.2402546864F));
  p = hn::MulAdd(p, f, hn::Set(d, 0.6931471806F));
  return hn::MulAdd(p, f, hn::Set(d, 1.0F));
}

// 2^(the grid point in the low bits of t).
template <class D>
HWY_INLINE hn::Vec<D> exp2_grid(D d, hn::Vec<D> t) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, t);
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  // A lookup in two vectors, which Highway 1.0.3 does not expose.
  const hn::Vec<decltype(du)> fraction{_mm512_permutex2var_epi32(
      hn::Load(du, kFractions).raw, bits.raw, hn::Load(du, kFractions + 16).raw)};
#elif HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  // Not IndicesFromVec, which requires indices below the number of lanes. The instruction ignores
  // the other bits, and masking them would be one operation in a dozen.
  const auto table = hn::Load(du, kFractions);
  const decltype(hn::IndicesFromVec(du, bits)) low_bits{bits.raw};
  const auto fraction = hn::TableLookupLanes(table, low_bits);
#else
  const auto fraction = hn::Set(du, 0x3f800000U);
#endif
  return hn::BitCast(d, hn::Add(hn::ShiftLeft<23 - kGridBits>(bits), fraction));
}

// A power of two as two factors, of the rest and on the grid, so that sums use fused multiply-add.
template <class D>
struct Factors {
  hn::Vec<D> near;
  hn::Vec<D> grid;
};

// Maps v of a segment, or of a row, to 2^(v * s - reference).
struct Exponent {
  // `largest` is finite; s the f32 nearest to log2(e) / T.
  Exponent(float largest, float scale) : s(scale), m(largest) {
    const double product = static_cast<double>(largest) * static_cast<double>(scale);
    integral = HWY_NATIVE_FMA != 0 && std::abs(product) < kMaxReference;
    reference = integral ? std::nearbyint(product) : product;
    shift = kMagic - static_cast<float>(integral ? reference : 0);
    // Finite, so that -inf is clamped: |reference| < 2^18 and T <= 2^100.
    const double low = (reference + kLowestExponent) / static_cast<double>(scale);
    lowest = static_cast<float>(integral ? low : 0);
  }

  // As the estimate for a row: reference 0 without a lower clamp, where that is valid.
  void set_free() {
    free = kCanScale && integral && reference >= kLowestFree && reference <= kHighestFree;
    if (free) reference = 0;
  }

  // Whether a sum of weights up to that of `value` is accurate in f32: far above clamped terms and
  // far below overflow.
  bool serves(float value) const {
    const double distance = static_cast<double>(value) * static_cast<double>(s) - reference;
    return distance >= kLowestExponent / 2 && distance <= 100;
  }

  float s;
  float m;
  bool free = false;  // reference 0, no lower clamp: -inf gives NaN
  bool integral;      // reference is an integer; else it is m * s, and x is (v - m) * s
  double reference;
  float shift;
  float lowest;  // if integral: the lower clamp
};

// The exact split; e.integral.
template <class D>
HWY_INLINE Factors<D> exp2_exact(D d, hn::Vec<D> v, const Exponent& e) {
  const auto s = hn::Set(d, e.s);
  const auto shift = hn::Set(d, e.shift);
  v = at_least(d, v, hn::Set(d, e.lowest));
  const auto t = hn::MulAdd(v, s, shift);
  const auto f = hn::MulSub(v, s, hn::Sub(t, hn::Set(d, e.shift + kAside)));
  return {exp2_rest(d, f), exp2_grid(d, t)};
}

// e.free: the same bits as exp2_exact with one operation less; NaN for -inf.
template <class D>
HWY_INLINE Factors<D> exp2_free(D d, hn::Vec<D> v, const Exponent& e) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  const hn::RebindToUnsigned<D> du;
  const auto s = hn::Set(d, e.s);
  const auto t = hn::MulAdd(v, s, hn::Set(d, kMagic));
  const auto below = hn::Sub(t, hn::Set(d, kMagic + kAside));
  const auto f = hn::MulSub(v, s, below);
  const auto low = hn::BitCast(d, hn::Load(du, kPowers));
  const auto high = hn::BitCast(d, hn::Load(du, kPowers + 16));
  const auto power = _mm512_permutex2var_ps(low.raw, hn::BitCast(du, t).raw, high.raw);
  return {exp2_rest(d, f), hn::Vec<D>{_mm512_scalef_ps(power, below.raw)}};
#else
  return exp2_exact(d, v, e);
#endif
}

// x = (v - m) * s, for references that are large and for targets without fused multiply and add.
// Halved first, since v - m may overflow where s is small.
template <class D>
HWY_INLINE hn::Vec<D> exponent_from_distance(D d, hn::Vec<D> v, const Exponent& e) {
  const auto half = hn::Set(d, 0.5F);
  return hn::Mul(hn::MulSub(v, half, hn::Set(d, 0.5F * e.m)), hn::Set(d, 2 * e.s));
}

template <class D>
HWY_INLINE Factors<D> exp2_distance(D d, hn::Vec<D> v, const Exponent& e) {
  const auto shift = hn::Set(d, kMagic);
  const auto x =
      at_least(d, exponent_from_distance(d, v, e), hn::Set(d, static_cast<float>(kLowestExponent)));
  const auto t = hn::Add(x, shift);
  const auto f = hn::Sub(x, hn::Sub(t, hn::Set(d, kMagic + kAside)));
  return {exp2_rest(d, f), exp2_grid(d, t)};
}

// For the outputs: down to the smallest subnormal, and 0 for -inf. Not as fast.
template <class D>
HWY_INLINE hn::Vec<D> exp2_full(D d, hn::Vec<D> v, const Exponent& e) {
  constexpr float kRounding = 0x1.8p23F;
  const auto s = hn::Set(d, e.s);
  hn::Vec<D> n;
  hn::Vec<D> f;
  if (e.integral) {
    // Weights 150 octaves below round to 0 anyway.
    const double low = (e.reference - 160) / static_cast<double>(e.s);
    v = hn::Max(v, hn::Set(d, static_cast<float>(low)));
    const auto shift = hn::Set(d, kRounding - static_cast<float>(e.reference));
    const auto grid = hn::Sub(hn::MulAdd(v, s, shift), shift);
    f = hn::MulSub(v, s, grid);
    n = hn::Sub(grid, hn::Set(d, static_cast<float>(e.reference)));
  } else {
    const auto x = hn::Max(exponent_from_distance(d, v, e), hn::Set(d, -160.0F));
    const auto shift = hn::Set(d, kRounding);
    n = hn::Sub(hn::Add(x, shift), shift);
    f = hn::Sub(x, n);
  }
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  return hn::Vec<D>{_mm512_scalef_ps(sd::exp2_half(d, f).raw, n.raw)};
#else
  // In two steps, so that each factor is normal.
  const hn::RebindToSigned<D> di;
  const auto exponent = hn::ConvertTo(di, n);
  const auto part = hn::ShiftRight<1>(exponent);
  const auto bias = hn::Set(di, 127);
  const auto a = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(part, bias)));
  const auto b = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::Sub(exponent, part), bias)));
  return hn::Mul(hn::Mul(sd::exp2_half(d, f), a), b);
#endif
}

}  // namespace touchstone::selection::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
