#include "ops/selection/cpu/cpu_weights.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/selection/cpu/cpu_weights.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h, as Highway requires.
#include "cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace touchstone::selection::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Vectors whose polynomials are evaluated side by side: one alone is a chain of 13 dependent
// multiplications.
constexpr std::size_t kTogether = 4;

using Wide = hn::ScalableTag<double>;

// x = exp(x) for x <= 0: x = n ln 2 + r, |r| <= ln 2 / 2, and a Taylor polynomial of degree 13 for
// exp(r), whose remainder is below 5e-18. 0 below -700.
template <class D>
HWY_INLINE void exp_of_negative(D d, hn::Vec<D>* x) {
  const hn::RebindToUnsigned<D> du;
  constexpr double kMagic = 0x1.8p52;  // leaves n in the low bits of the sum
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
  hn::Vec<D> t[kTogether];
  hn::Vec<D> r[kTogether];
  hn::Vec<D> p[kTogether];
  HWY_UNROLL(4)
  for (std::size_t k = 0; k < kTogether; ++k) {
    t[k] = hn::MulAdd(x[k], hn::Set(d, 1.44269504088896340736), hn::Set(d, kMagic));
    const auto n = hn::Sub(t[k], hn::Set(d, kMagic));
    r[k] = hn::NegMulAdd(n, hn::Set(d, 6.93147180369123816490e-01), x[k]);
    r[k] = hn::NegMulAdd(n, hn::Set(d, 1.90821492927058770002e-10), r[k]);
    p[k] = hn::Set(d, kInverseFactorials[0]);
  }
  HWY_UNROLL(13)
  for (std::size_t i = 1; i < 14; ++i) {
    HWY_UNROLL(4)
    for (std::size_t k = 0; k < kTogether; ++k) {
      p[k] = hn::MulAdd(p[k], r[k], hn::Set(d, kInverseFactorials[i]));
    }
  }
  HWY_UNROLL(4)
  for (std::size_t k = 0; k < kTogether; ++k) {
    const auto scaled = hn::Add(hn::BitCast(du, p[k]), hn::ShiftLeft<52>(hn::BitCast(du, t[k])));
    x[k] = hn::IfThenElseZero(hn::Ge(x[k], hn::Set(d, -700.0)), hn::BitCast(d, scaled));
  }
}

// Weighs tokens in steps of kTogether vectors.
class Weigher {
 public:
  static constexpr std::size_t kMaxStep = kTogether * hn::MaxLanes(Wide());

  explicit Weigher(const Weighing& how)
      : largest_(how.largest),
        bins_per_unit_(how.step),
        last_(static_cast<float>(how.last_bin)),
        inverse_(1 / how.temperature) {}

  static std::size_t step() { return kTogether * hn::Lanes(Wide()); }

  // One step of values into bins and weights.
  HWY_INLINE void run(const float* HWY_RESTRICT values, std::uint16_t* HWY_RESTRICT bins,
                      double* HWY_RESTRICT weights) {
    const hn::ScalableTag<float> d;
    const hn::RebindToSigned<decltype(d)> di;
    const hn::Rebind<std::uint16_t, decltype(d)> d16;
    for (std::size_t i = 0; i < step(); i += hn::Lanes(d)) {
      const auto down = hn::Sub(hn::Set(d, largest_), hn::LoadU(d, values + i));
      const auto bin = hn::Min(hn::Mul(down, hn::Set(d, bins_per_unit_)), hn::Set(d, last_));
      hn::StoreU(hn::DemoteTo(d16, hn::ConvertTo(di, bin)), d16, bins + i);
    }
    const Wide wide;
    const hn::Rebind<float, Wide> half;
    const std::size_t lanes = hn::Lanes(wide);
    const auto top = hn::Set(wide, static_cast<double>(largest_));
    hn::Vec<Wide> weight[kTogether];
    HWY_UNROLL(4)
    for (std::size_t k = 0; k < kTogether; ++k) {
      const auto value = hn::PromoteTo(wide, hn::LoadU(half, values + k * lanes));
      weight[k] = hn::Mul(hn::Sub(value, top), hn::Set(wide, inverse_));
    }
    exp_of_negative(wide, weight);
    HWY_UNROLL(4)
    for (std::size_t k = 0; k < kTogether; ++k) {
      hn::StoreU(weight[k], wide, weights + k * lanes);
      const auto older = even_;
      even_ = odd_;
      odd_ = hn::Add(older, weight[k]);
    }
  }

  double total() const {
    const Wide wide;
    alignas(64) double lane[hn::MaxLanes(wide)];
    hn::Store(hn::Add(even_, odd_), wide, lane);
    double total = 0;
    for (std::size_t i = 0; i < hn::Lanes(wide); ++i) total += lane[i];
    return total;
  }

 private:
  float largest_;
  float bins_per_unit_;
  float last_;
  double inverse_;
  hn::Vec<Wide> even_ = hn::Zero(Wide());
  hn::Vec<Wide> odd_ = hn::Zero(Wide());
};

HWY_INLINE void add_masses(const std::uint16_t* HWY_RESTRICT bins,
                           const double* HWY_RESTRICT weights, std::size_t count,
                           double* HWY_RESTRICT masses) {
  for (std::size_t i = 0; i < count; ++i) masses[bins[i]] += weights[i];
}

double weigh_of(const float* values, std::size_t n, const Weighing& how, const WeighedTokens& to) {
  const std::size_t step = Weigher::step();
  std::uint16_t* const bins = to.bins;
  double* const weights = to.weights;
  double* const masses = to.masses;
  Weigher weigher(how);
  std::size_t i = 0;
  for (; i + step <= n; i += step) {
    weigher.run(values + i, bins + i, weights + i);
    // Between the polynomials, whose multiplications leave the ports of loads and stores idle; a
    // step late, so that nothing waits for the vectors just stored.
    if (i > 0 && masses != nullptr) add_masses(bins + i - step, weights + i - step, step, masses);
  }
  const std::size_t added = i < step ? 0 : i - step;
  if (i < n) {
    // What is beyond the end weighs nothing.
    float rest[Weigher::kMaxStep];
    std::uint16_t rest_bins[Weigher::kMaxStep];
    double rest_weights[Weigher::kMaxStep];
    std::fill_n(rest, Weigher::kMaxStep, -std::numeric_limits<float>::infinity());
    std::copy(values + i, values + n, rest);
    weigher.run(rest, rest_bins, rest_weights);
    std::copy_n(rest_bins, n - i, bins + i);
    std::copy_n(rest_weights, n - i, weights + i);
  }
  if (masses != nullptr) add_masses(bins + added, weights + added, n - added, masses);
  return weigher.total();
}

std::size_t collect_of(const std::uint16_t* bins, std::size_t n, std::uint16_t bin,
                       std::uint32_t* tokens) {
  const hn::ScalableTag<std::uint16_t> d;
  const std::size_t lanes = hn::Lanes(d);
  const auto wanted = hn::Set(d, bin);
  std::size_t count = 0;
  std::size_t first = 0;
  for (; first + lanes <= n; first += lanes) {
    const auto equal = hn::Eq(hn::LoadU(d, bins + first), wanted);
    if (hn::AllFalse(d, equal)) continue;
    std::uint64_t bits[(hn::MaxLanes(d) + 63) / 64] = {};
    hn::StoreMaskBits(d, equal, reinterpret_cast<std::uint8_t*>(bits));
    for (std::uint64_t word = bits[0]; word != 0; word &= word - 1) {
      tokens[count++] =
          static_cast<std::uint32_t>(first) + static_cast<std::uint32_t>(std::countr_zero(word));
    }
  }
  for (; first < n; ++first) {
    if (bins[first] == bin) tokens[count++] = static_cast<std::uint32_t>(first);
  }
  return count;
}

}  // namespace touchstone::selection::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace touchstone::selection {
namespace {

HWY_EXPORT(weigh_of);
HWY_EXPORT(collect_of);

}  // namespace

double weigh_and_bin(const float* values, std::size_t n, const Weighing& how,
                     const WeighedTokens& to) {
  return HWY_DYNAMIC_DISPATCH(weigh_of)(values, n, how, to);
}

std::size_t collect_bin(const std::uint16_t* bins, std::size_t n, std::uint16_t bin,
                        std::uint32_t* tokens) {
  return HWY_DYNAMIC_DISPATCH(collect_of)(bins, n, bin, tokens);
}

}  // namespace touchstone::selection
#endif  // HWY_ONCE
