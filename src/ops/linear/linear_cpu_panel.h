// Shared by the forward kernels of linear: the rows of W behind a panel of columns, and their
// epilogue. No #pragma once: read once per target, after cpu/simd.h.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "ops/linear/linear_cpu.h"
#include "ops/linear/linear_epilogue.h"
#include "ops/linear/linear_tuning.h"

#if defined(TOUCHSTONE_LINEAR_CPU_PANEL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TOUCHSTONE_LINEAR_CPU_PANEL_H_
#undef TOUCHSTONE_LINEAR_CPU_PANEL_H_
#else
#define TOUCHSTONE_LINEAR_CPU_PANEL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace touchstone::linear_layer::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace sd = touchstone::simd::HWY_NAMESPACE;

// For lambdas that must not become functions of their own: those would keep vectors in memory.
#undef TOUCHSTONE_INLINE_LAMBDA
#define TOUCHSTONE_INLINE_LAMBDA HWY_ATTR __attribute__((always_inline))

// body.operator()<i>() for i in [0, kCount).
template <std::size_t kCount, class Body>
HWY_INLINE void unrolled(const Body& body) {
  [&]<std::size_t... kI>(std::index_sequence<kI...>) TOUCHSTONE_INLINE_LAMBDA {
    (body.template operator()<kI>(), ...);
  }
  (std::make_index_sequence<kCount>());
}

// Rows of W and of x whose sums are held in registers, and rows of x that share a pass over blocks
// which are decoded on the way.
constexpr bool kManyRegisters = HWY_ARCH_X86 ? HWY_TARGET <= HWY_AVX3 : HWY_ARCH_ARM_A64;
constexpr std::size_t kW = 4;
constexpr std::size_t kMaxX = kManyRegisters ? 6 : 2;
constexpr std::size_t kMaxDirectX = kManyRegisters ? 4 : 2;
// How far ahead of the loads W is prefetched, in bytes: whole tiles of rows, unless a tile is so
// large that it would leave the cache again.
constexpr std::size_t prefetch_distance(std::size_t tile_bytes) {
  constexpr std::size_t kMin = tuning::kPrefetchBytes;
  if (tile_bytes == 0 || tile_bytes > tuning::kMaxPrefetchBytes) return kMin;
  return (kMin + tile_bytes - 1) / tile_bytes * tile_bytes;
}

// The rows of W that make the columns of a panel: with a gate, half of them lie `columns` further
// on.
struct Panel {
  std::int64_t first = 0;    // column of y
  std::int64_t columns = 0;  // of y
  std::int64_t rows = 0;     // of W

  Panel(const Forward& p, std::int64_t number) {
    const std::int64_t width = panel_columns(p);
    first = number * width;
    columns = std::min(width, p.columns() - first);
    rows = p.gate == LinearGate::none ? columns : 2 * columns;
  }
  const std::byte* row(const Forward& p, std::int64_t i) const {
    return p.weight.row(i < columns ? first + i : p.columns() + first + i - columns);
  }
  // Whether rows [from, from + count) of the panel follow each other in W.
  bool in_a_row(std::int64_t from, std::int64_t count) const {
    return from + count <= rows && (from + count <= columns || from >= columns);
  }
};

// The epilogue without a gate and a soft cap in vectors: the same operations as the scalar one.
template <class C, class T, class Y>
HWY_INLINE void store_sums(const ForwardJob& job, const Panel& panel, const C* totals) {
  const hn::ScalableTag<C> d;
  const Forward& p = *job.p;
  const auto columns = static_cast<std::size_t>(panel.columns);
  C bias[kPanel + hn::MaxLanes(d)] = {};
  if (p.bias != nullptr) {
    visit_float_dtype(p.bias_dtype, [&]<class B>() {
      const B* const from = static_cast<const B*>(p.bias) + panel.first;
      for (std::size_t c = 0; c < columns; ++c) bias[c] = convert<C>(from[c]);
    });
  }
  for (std::int64_t r = 0; r < job.rows; ++r) {
    const C* const sums = totals + r * kPanel;
    const auto scale = hn::Set(d, static_cast<C>(job.scales[r]));
    const std::int64_t row = job.first + r;
    const T* residual = static_cast<const T*>(p.residual.data);
    if (residual != nullptr) residual += row * p.residual.stride + panel.first;
    Y* const y = static_cast<Y*>(p.y.data) + row * p.y.stride + panel.first;
    for (std::size_t c = 0; c < columns; c += hn::Lanes(d)) {
      const std::size_t n = std::min(hn::Lanes(d), columns - c);
      auto v = hn::Mul(hn::LoadU(d, sums + c), scale);
      if (p.bias != nullptr) v = hn::Add(v, hn::LoadU(d, bias + c));
      if (residual != nullptr) v = hn::Add(v, sd::load_some(d, residual + c, n));
      v = hn::IfThenElse(hn::IsNaN(v), hn::Set(d, std::numeric_limits<C>::quiet_NaN()), v);
      sd::store_some(v, d, y + c, n);
    }
  }
}

// `totals` are overwritten.
template <class C>
HWY_INLINE void store_panel(const ForwardJob& job, const Panel& panel, C* totals) {
  if (job.p->gate == LinearGate::none && !(job.p->soft_cap > 0)) {
    visit_float_dtype(job.p->dtype, [&]<class T>() {
      if constexpr (std::is_same_v<T, double> == std::is_same_v<C, double>) {
        if (job.p->y_dtype == job.p->dtype) return store_sums<C, T, T>(job, panel, totals);
        store_sums<C, T, C>(job, panel, totals);
      }
    });
    return;
  }
  const Epilogue<C> epilogue(*job.p);
  for (std::int64_t r = 0; r < job.rows; ++r) {
    C* const sums = totals + r * kPanel;
    const auto scale = static_cast<C>(job.scales[r]);
    for (std::int64_t i = 0; i < panel.rows; ++i) sums[i] *= scale;
    epilogue.store(job.first + r, panel.first, panel.columns, sums, sums + panel.columns);
  }
}

}  // namespace touchstone::linear_layer::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
