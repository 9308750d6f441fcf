// Exponentials of a tile of logits in vectors: see cross_entropy_cpu.h.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numbers>

#include "ops/cross_entropy/cross_entropy_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cross_entropy/cross_entropy_cpu_rows.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "cpu/exp2.h"
#include "cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace touchstone::cross_entropy_op::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace sd = touchstone::simd::HWY_NAMESPACE;

using Tag = hn::ScalableTag<float>;
using Vector = hn::Vec<Tag>;

constexpr float kLog2e = std::numbers::log2e_v<float>;

// Calls body(values, first) with vectors of `count` numbers, `pad` after the last.
template <class Body>
HWY_INLINE void for_vectors(const float* values, std::size_t count, float pad, Body&& body) {
  const Tag d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i + lanes <= count; i += lanes) body(hn::LoadU(d, values + i), i);
  if (i == count) return;
  const auto inside = hn::FirstN(d, count - i);
  body(hn::IfThenElse(inside, hn::MaskedLoad(inside, d, values + i), hn::Set(d, pad)), i);
}

double add_lanes(Vector v) {
  const Tag d;
  HWY_ALIGN float lanes[hn::MaxLanes(d)];
  hn::Store(v, d, lanes);
  double sum = 0;
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) sum += static_cast<double>(lanes[i]);
  return sum;
}

TileSums sum_rows(const float* logits, std::int64_t count) {
  const Tag d;
  const auto size = static_cast<std::size_t>(count);
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  Vector largest = hn::Set(d, kNone);
  Vector total = hn::Zero(d);
  for_vectors(logits, size, kNone,
              [&](Vector l, std::size_t /*first*/) HWY_ATTR { largest = hn::Max(largest, l); });
  for_vectors(logits, size, 0,
              [&](Vector l, std::size_t /*first*/) HWY_ATTR { total = hn::Add(total, l); });
  const Vector top = hn::MaxOfLanes(d, largest);
  // A tile of -inf alone adds nothing: exp(-inf - 0) = 0, where -inf - top would be NaN.
  const Vector base = hn::IfThenZeroElse(hn::Eq(top, hn::Set(d, kNone)), top);
  Vector sum = hn::Zero(d);
  for_vectors(logits, size, kNone, [&](Vector l, std::size_t /*first*/) HWY_ATTR {
    const auto x = hn::Mul(hn::Sub(l, base), hn::Set(d, kLog2e));
    sum = hn::Add(sum, sd::exp2_not_positive(d, x));
  });
  return {static_cast<double>(hn::GetLane(top)), add_lanes(sum), add_lanes(total)};
}

void gradient_rows(const TileGradient& g, float* logits, std::int64_t count) {
  const Tag d;
  const auto size = static_cast<std::size_t>(count);
  const auto high = static_cast<float>(g.lse);
  const Vector lse = hn::Set(d, high);
  const Vector rest = hn::Set(d, static_cast<float>(g.lse - static_cast<double>(high)));
  const Vector softmax = hn::Set(d, static_cast<float>(g.softmax));
  const Vector uniform = hn::Set(d, static_cast<float>(g.uniform));
  const bool caps = g.soft_cap > 0;
  const Vector slope = hn::Set(d, caps ? static_cast<float>(1 / g.soft_cap) : 0.0F);
  for_vectors(logits, size, 0, [&](Vector l, std::size_t first) HWY_ATTR {
    const auto x = hn::Mul(hn::Sub(hn::Sub(l, lse), rest), hn::Set(d, kLog2e));
    auto dl = hn::MulSub(softmax, sd::exp2_not_positive(d, x), uniform);
    if (caps) {  // without a cap a logit may be -inf, and its ratio would be NaN
      const auto ratio = hn::Mul(l, slope);
      dl = hn::Mul(dl, hn::NegMulAdd(ratio, ratio, hn::Set(d, 1.0F)));
    }
    if (first + hn::Lanes(d) <= size) {
      hn::StoreU(dl, d, logits + first);
    } else {
      hn::BlendedStore(dl, hn::FirstN(d, size - first), d, logits + first);
    }
  });
}

}  // namespace touchstone::cross_entropy_op::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace touchstone::cross_entropy_op {

HWY_EXPORT(sum_rows);
HWY_EXPORT(gradient_rows);

TileSums sum_tile(const float* logits, std::int64_t count) {
  return HWY_DYNAMIC_DISPATCH(sum_rows)(logits, count);
}
void to_tile_gradient(const TileGradient& gradient, float* logits, std::int64_t count) {
  HWY_DYNAMIC_DISPATCH(gradient_rows)(gradient, logits, count);
}

TileSums sum_tile(const double* tile, std::int64_t count) {
  TileSums sums{-std::numeric_limits<double>::infinity(), 0, 0};
  for (std::int64_t i = 0; i < count; ++i) sums.largest = std::max(sums.largest, tile[i]);
  const double base = std::isinf(sums.largest) && sums.largest < 0 ? 0 : sums.largest;
  for (std::int64_t i = 0; i < count; ++i) {
    sums.sum += std::exp(tile[i] - base);
    sums.logits += tile[i];
  }
  return sums;
}

void to_tile_gradient(const TileGradient& g, double* tile, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const double ratio = g.soft_cap > 0 ? tile[i] / g.soft_cap : 0;
    tile[i] = (g.softmax * std::exp(tile[i] - g.lse) - g.uniform) * (1 - ratio * ratio);
  }
}

}  // namespace touchstone::cross_entropy_op
#endif
