#include "ops/selection/cpu/cpu_weights.h"

#include <cstddef>
#include <cstdint>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/selection/cpu/cpu_weights.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h, as Highway asks.
#include "cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace touchstone::selection::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace sd = touchstone::simd::HWY_NAMESPACE;

// exp(x) for x <= 0: x = n ln 2 + r, |r| <= ln 2 / 2, and a Taylor polynomial of degree 13 for
// exp(r), whose remainder is below 5e-18. 0 below -700.
template <class D>
HWY_INLINE hn::Vec<D> exp_of_negative(D d, hn::Vec<D> x) {
  const hn::RebindToUnsigned<D> du;
  constexpr double kMagic = 0x1.8p52;  // leaves n in the low bits of the sum
  const auto t = hn::MulAdd(x, hn::Set(d, 1.44269504088896340736), hn::Set(d, kMagic));
  const auto n = hn::Sub(t, hn::Set(d, kMagic));
  auto r = hn::NegMulAdd(n, hn::Set(d, 6.93147180369123816490e-01), x);
  r = hn::NegMulAdd(n, hn::Set(d, 1.90821492927058770002e-10), r);
  constexpr double kInverseFactorials[] = {1.0 / 6227020800,
                                           1.0 / 479001600,
                                           1.0 / 39916800,
                                           1.0 / 3628800,
                                           1.0 / 362880,
                                           1.0 / 40320,
                                           1.0 / 5040,
                                           1.0 / 720,
                                           1.0 / 120,
                                           1.0 / 24,
                                           1.0 / 6,
                                           1.0 / 2,
                                           1.0,
                                           1.0};
  auto p = hn::Set(d, kInverseFactorials[0]);
  HWY_UNROLL(13)
  for (std::size_t i = 1; i < 14; ++i) p = hn::MulAdd(p, r, hn::Set(d, kInverseFactorials[i]));
  const auto scaled = hn::Add(hn::BitCast(du, p), hn::ShiftLeft<52>(hn::BitCast(du, t)));
  return hn::IfThenElseZero(hn::Ge(x, hn::Set(d, -700.0)), hn::BitCast(d, scaled));
}

double weigh_of(const float* values, std::size_t n, float largest, double temperature, float step,
                std::uint16_t last_bin, double* weights, std::uint16_t* bins) {
  const hn::ScalableTag<double> wide;
  const hn::Rebind<float, decltype(wide)> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<std::uint16_t, decltype(d)> d16;
  const std::size_t lanes = hn::Lanes(wide);
  const auto lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  const auto last = hn::Set(d, static_cast<float>(last_bin));
  const auto top = hn::Set(wide, static_cast<double>(largest));
  const auto inverse = hn::Set(wide, 1 / temperature);
  auto even = hn::Zero(wide);
  auto odd = hn::Zero(wide);
  for (std::size_t i = 0; i < n; i += lanes) {
    auto v = lowest;
    if (n - i >= lanes) {
      v = hn::LoadU(d, values + i);
    } else {
      v = hn::IfThenElse(hn::FirstN(d, n - i), sd::load_partial(d, values + i, n - i), lowest);
    }
    const auto distance = hn::Mul(hn::Sub(hn::Set(d, largest), v), hn::Set(d, step));
    hn::StoreU(hn::DemoteTo(d16, hn::ConvertTo(di, hn::Min(distance, last))), d16, bins + i);
    const auto x = hn::Mul(hn::Sub(hn::PromoteTo(wide, v), top), inverse);
    const auto weight = exp_of_negative(wide, x);
    hn::StoreU(weight, wide, weights + i);
    const auto older = even;
    even = odd;
    odd = hn::Add(older, weight);
  }
  const auto sums = hn::Add(even, odd);
  alignas(64) double lane[hn::MaxLanes(wide)];
  hn::Store(sums, wide, lane);
  double total = 0;
  for (std::size_t i = 0; i < hn::Lanes(wide); ++i) total += lane[i];
  return total;
}

}  // namespace touchstone::selection::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace touchstone::selection {
namespace {

HWY_EXPORT(weigh_of);

}  // namespace

double weigh_and_bin(const float* values, std::size_t n, float largest, double temperature,
                     float step, std::uint16_t last_bin, double* weights, std::uint16_t* bins) {
  return HWY_DYNAMIC_DISPATCH(weigh_of)(values, n, largest, temperature, step, last_bin, weights,
                                        bins);
}

}  // namespace touchstone::selection
#endif  // HWY_ONCE
