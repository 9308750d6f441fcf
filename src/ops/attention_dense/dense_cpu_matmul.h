// The products of dense attention, and how tokens are packed for them. No
// #pragma once: read once per target.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cpu/simd.h"
#include "ops/attention_dense/dense_cpu.h"

#if defined(TOUCHSTONE_DENSE_CPU_MATMUL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TOUCHSTONE_DENSE_CPU_MATMUL_H_
#undef TOUCHSTONE_DENSE_CPU_MATMUL_H_
#else
#define TOUCHSTONE_DENSE_CPU_MATMUL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace touchstone::dense_attention::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace sd = touchstone::simd::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
inline constexpr std::size_t kLanes = hn::MaxLanes(D());

HWY_INLINE std::size_t in_vectors(std::size_t n) { return (n + kLanes - 1) / kLanes; }
HWY_INLINE std::size_t in_vectors(std::int64_t n) {
  return in_vectors(static_cast<std::size_t>(n));
}
// n rounded up to whole vectors of every target, so that all parts of scratch memory are aligned.
HWY_INLINE std::size_t whole_lines(std::int64_t n) {
  return (static_cast<std::size_t>(n) + 15) / 16 * 16;
}

// ---- C = A B, C = f C + A B -------------------------------------------------------------------

struct Product {
  std::size_t depth = 0;
  std::size_t rows = 0;
  std::size_t vectors = 0;  // columns, in vectors
  // A[r][k] is a[r * a_row + k * a_step].
  const float* a = nullptr;
  std::size_t a_row = 0;
  std::size_t a_step = 0;
  const float* b = nullptr;  // [depth, b_row]
  std::size_t b_row = 0;
  float* c = nullptr;  // [rows, c_row]
  std::size_t c_row = 0;
  const float* factors = nullptr;  // [rows], of what is in C already; null = 1
};

// Sums held in registers: kRows x kVectors, beside the vectors of B and one number of A.
constexpr bool kManyRegisters = HWY_ARCH_X86 ? HWY_TARGET <= HWY_AVX3 : HWY_ARCH_ARM_A64;
constexpr std::size_t kMaxRows = 6;
constexpr std::size_t kMaxVectors = kManyRegisters ? 4 : 2;

template <bool kAdd, std::size_t kRows, std::size_t kVectors>
HWY_INLINE void product_block(const Product& p, std::size_t row, std::size_t vector) {
  const D d;
  const float* HWY_RESTRICT b = p.b + vector * kLanes;
  const float* a[kRows];
  for (std::size_t r = 0; r < kRows; ++r) a[r] = p.a + (row + r) * p.a_row;
  V sums[kRows][kVectors];
  for (auto& sum : sums) {
    for (V& s : sum) s = hn::Zero(d);
  }
  const std::size_t end = p.depth * p.a_step;
  for (std::size_t k = 0; k < end; k += p.a_step) {
    V columns[kVectors];
    for (std::size_t v = 0; v < kVectors; ++v) columns[v] = hn::LoadU(d, b + v * kLanes);
    for (std::size_t r = 0; r < kRows; ++r) {
      const V x = hn::Set(d, a[r][k]);
      for (std::size_t v = 0; v < kVectors; ++v) sums[r][v] = hn::MulAdd(x, columns[v], sums[r][v]);
    }
    b += p.b_row;
  }
  for (std::size_t r = 0; r < kRows; ++r) {
    float* const c = p.c + (row + r) * p.c_row + vector * kLanes;
    const V factor = hn::Set(d, p.factors == nullptr ? 1.0F : p.factors[row + r]);
    for (std::size_t v = 0; v < kVectors; ++v) {
      V value = sums[r][v];
      if constexpr (kAdd) value = hn::MulAdd(factor, hn::LoadU(d, c + v * kLanes), value);
      hn::StoreU(value, d, c + v * kLanes);
    }
  }
}

// A panel of columns stays in L1 while all rows pass over it.
template <bool kAdd, std::size_t kVectors>
HWY_NOINLINE void product_panel(const Product& p, std::size_t vector) {
  std::size_t row = 0;
  for (; row + kMaxRows <= p.rows; row += kMaxRows) {
    product_block<kAdd, kMaxRows, kVectors>(p, row, vector);
  }
  for (; row + 3 <= p.rows; row += 3) product_block<kAdd, 3, kVectors>(p, row, vector);
  for (; row < p.rows; ++row) product_block<kAdd, 1, kVectors>(p, row, vector);
}

template <bool kAdd>
HWY_INLINE void product(const Product& p) {
  std::size_t vector = 0;
  for (; vector + kMaxVectors <= p.vectors; vector += kMaxVectors) {
    product_panel<kAdd, kMaxVectors>(p, vector);
  }
  if constexpr (kMaxVectors == 4) {
    if (vector + 2 <= p.vectors) {
      product_panel<kAdd, 2>(p, vector);
      vector += 2;
    }
  }
  if (vector < p.vectors) product_panel<kAdd, 1>(p, vector);
}

// C = f C + A B over the pairs with seen(k, row) alone: a masked row of B that is not finite does
// not reach C. The same bits as product() where all of B is finite.
template <class Seen>
HWY_NOINLINE void careful_product(const Product& p, const Seen& seen) {
  const D d;
  for (std::size_t row = 0; row < p.rows; ++row) {
    const V factor = hn::Set(d, p.factors == nullptr ? 1.0F : p.factors[row]);
    for (std::size_t v = 0; v < p.vectors; ++v) {
      V sum = hn::Zero(d);
      for (std::size_t k = 0; k < p.depth; ++k) {
        if (!seen(k, row)) continue;
        const V x = hn::Set(d, p.a[row * p.a_row + k * p.a_step]);
        sum = hn::MulAdd(x, hn::LoadU(d, p.b + k * p.b_row + v * kLanes), sum);
      }
      float* const c = p.c + row * p.c_row + v * kLanes;
      hn::StoreU(hn::MulAdd(factor, hn::LoadU(d, c), sum), d, c);
    }
  }
}

// ---- scratch memory ---------------------------------------------------------------------------

// Deals out parts of a task's scratch memory; without memory it only counts.
class Parts {
 public:
  explicit Parts(float* memory) : memory_(memory) {}

  float* take(std::size_t floats) {
    float* const part = memory_ == nullptr ? nullptr : memory_ + taken_;
    taken_ += floats;
    return part;
  }
  std::size_t taken() const { return taken_; }

 private:
  float* memory_;
  std::size_t taken_ = 0;
};

// ---- tokens -----------------------------------------------------------------------------------

// Tokens in f32, one every `stride` floats. Whole vectors may be read.
struct Rows {
  const float* data = nullptr;
  std::size_t stride = 0;
};

// Tokens [first, first + count) of one head: where they are if that serves, else copied. Other
// strides are copied too, since those of a power of two fall on the same few lines of a cache.
template <class T>
HWY_INLINE Rows rows_of(const ConstHeads& heads, std::int64_t sequence, std::int64_t head,
                        std::int64_t first, std::size_t count, std::int64_t dim, float* scratch) {
  const D d;
  const T* from = token_of<T>(heads, sequence, head, first);
  const auto n = static_cast<std::size_t>(dim);
  if constexpr (std::is_same_v<T, float>) {
    if (heads.token_stride == dim && n % kLanes == 0) return {from, n};
  }
  const std::size_t stride = whole_lines(dim);
  for (std::size_t t = 0; t < count; ++t) {
    float* const to = scratch + t * stride;
    std::size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) hn::Store(sd::load(d, from + i), d, to + i);
    if (i < n) hn::Store(sd::load_partial(d, from + i, n - i), d, to + i);
    from += heads.token_stride;
  }
  return {scratch, stride};
}

HWY_INLINE bool all_finite(const Rows& rows, std::size_t count, std::size_t vectors) {
  const D d;
  V sum = hn::Zero(d);
  for (std::size_t t = 0; t < count; ++t) {
    for (std::size_t v = 0; v < vectors; ++v) {
      sum = hn::MulAdd(hn::Zero(d), hn::LoadU(d, rows.data + t * rows.stride + v * kLanes), sum);
    }
  }
  return sd::sum_lanes(d, sum) == 0;  // 0 * x is NaN for infinity and for NaN
}

// One token as column `column` of [dim, kOwn].
template <class T>
HWY_INLINE void pack_column(const T* from, std::int64_t dim, float factor, float* to,
                            std::size_t column) {
  const D d;
  const V f = hn::Set(d, factor);
  const auto n = static_cast<std::size_t>(dim);
  alignas(64) float some[kLanes];
  for (std::size_t i = 0; i < n; i += kLanes) {
    const std::size_t count = std::min(kLanes, n - i);
    hn::Store(hn::Mul(sd::load_some(d, from + i, count), f), d, some);
    for (std::size_t k = 0; k < count; ++k) to[(i + k) * kOwn + column] = some[k];
  }
}

// Rounds to T and stores `factor` times a row.
template <class T>
HWY_INLINE void store_row(const float* from, std::int64_t dim, float factor, T* to) {
  const D d;
  const auto n = static_cast<std::size_t>(dim);
  const V f = hn::Set(d, factor);
  // Adding 0 makes 0 of -0: which of the two a sum of nothing is must not show.
  for (std::size_t i = 0; i < n; i += kLanes) {
    const V x = hn::MulAdd(sd::load_some(d, from + i, std::min(kLanes, n - i)), f, hn::Zero(d));
    sd::store_some(x, d, to + i, std::min(kLanes, n - i));
  }
}

}  // namespace touchstone::dense_attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
