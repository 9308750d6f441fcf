// The backward of linear in vectors: see linear_cpu.h.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/linear/linear_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/linear/linear_cpu_backward.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace touchstone::linear_layer::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace sd = touchstone::simd::HWY_NAMESPACE;

template <class C>
using Tag = hn::ScalableTag<C>;
template <class C>
inline constexpr std::size_t kLanes = hn::MaxLanes(Tag<C>());

constexpr bool kManyRegisters = HWY_ARCH_X86 ? HWY_TARGET <= HWY_AVX3 : HWY_ARCH_ARM_A64;
constexpr std::size_t kRows = 6;
constexpr std::size_t kVectors = kManyRegisters ? 4 : 2;

// A tile and what it is made of, all in the type of the sums: C += A B, A [kTileRows, kDepth],
// B [kDepth, kTileColumns].
template <class C>
struct Tiles {
  explicit Tiles(void* scratch)
      : a(static_cast<C*>(scratch)), b(a + kTileRows * kDepth), c(b + kDepth * kTileColumns) {}
  C* a;
  C* b;
  C* c;
};

// Rows [row, row + kRowCount) and kVectorCount vectors from `column` on, over `depth` rows of B.
template <class C, std::size_t kRowCount, std::size_t kVectorCount>
HWY_INLINE void add_block(const Tiles<C>& t, std::size_t depth, std::size_t row,
                          std::size_t column) {
  const Tag<C> d;
  using Vector = hn::Vec<Tag<C>>;
  Vector sums[kRowCount][kVectorCount];
  for (auto& sum : sums) {
    for (Vector& s : sum) s = hn::Zero(d);
  }
  const C* b = t.b + column;
  const C* const a = t.a + row * kDepth;
  for (std::size_t k = 0; k < depth; ++k, b += kTileColumns) {
    Vector columns[kVectorCount];
    for (std::size_t v = 0; v < kVectorCount; ++v) columns[v] = hn::LoadU(d, b + v * kLanes<C>);
    for (std::size_t r = 0; r < kRowCount; ++r) {
      const Vector factor = hn::Set(d, a[r * kDepth + k]);
      for (std::size_t v = 0; v < kVectorCount; ++v) {
        sums[r][v] = hn::MulAdd(factor, columns[v], sums[r][v]);
      }
    }
  }
  for (std::size_t r = 0; r < kRowCount; ++r) {
    C* const to = t.c + (row + r) * kTileColumns + column;
    for (std::size_t v = 0; v < kVectorCount; ++v) {
      const Vector before = hn::LoadU(d, to + v * kLanes<C>);
      hn::StoreU(hn::Add(before, sums[r][v]), d, to + v * kLanes<C>);
    }
  }
}

// Columns are computed in whole blocks of vectors: B is zero past its last column.
template <class C>
HWY_NOINLINE void add_segment(const Tiles<C>& t, std::size_t rows, std::size_t columns,
                              std::size_t depth) {
  constexpr std::size_t kBlock = kVectors * kLanes<C>;
  for (std::size_t column = 0; column < columns; column += kBlock) {
    std::size_t row = 0;
    for (; row + kRows <= rows; row += kRows) add_block<C, kRows, kVectors>(t, depth, row, column);
    for (; row < rows; ++row) add_block<C, 1, kVectors>(t, depth, row, column);
  }
}

// [rows, columns] of a matrix into `to`, rows `stride` apart and zero up to it.
template <class T, class C>
HWY_INLINE void copy_rows(const T* from, std::int64_t from_stride, std::size_t rows,
                          std::size_t columns, C* to, std::size_t stride) {
  const Tag<C> d;
  for (std::size_t r = 0; r < rows; ++r) {
    const T* const source = from + static_cast<std::int64_t>(r) * from_stride;
    C* const row = to + r * stride;
    std::size_t i = 0;
    for (; i + kLanes<C> <= columns; i += kLanes<C>)
      hn::StoreU(sd::load(d, source + i), d, row + i);
    for (; i < columns; ++i) row[i] = convert<C>(source[i]);
    std::fill(row + columns, row + stride, C{0});
  }
}

// The same of W: `columns` from `first` on, both whole blocks unless the row ends.
template <class C>
void copy_weights(const Backward& p, std::int64_t row, std::int64_t rows, std::int64_t first,
                  std::int64_t columns, C* to) {
  for (std::int64_t r = 0; r < rows; ++r) {
    C* const target = to + r * kTileColumns;
    const std::byte* const from = p.weight.row(row + r);
    if constexpr (std::is_same_v<C, double>) {
      std::copy_n(reinterpret_cast<const double*>(from) + first, columns, target);
    } else {
      const WeightFormat& format = *p.weight.format;
      format.decode(from + first / format.block_elements * format.block_bytes,
                    columns / format.block_elements, target);
    }
    std::fill(target + columns, target + kTileColumns, C{0});
  }
}

// Columns [first, first + rows) of dy, rows [from, from + depth): A of dweight, transposed.
template <class T, class C>
void copy_transposed(const Backward& p, std::int64_t from, std::int64_t depth, std::int64_t first,
                     std::int64_t rows, C* to) {
  for (std::int64_t k = 0; k < depth; ++k) {
    const T* const dy = static_cast<const T*>(p.dy.data) + (from + k) * p.dy.stride + first;
    for (std::int64_t r = 0; r < rows; ++r) to[r * kDepth + k] = convert<C>(dy[r]);
  }
}

template <class T>
using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;

std::size_t size_at(std::int64_t n) { return static_cast<std::size_t>(n); }

void dx_tile(const Backward& p, std::int64_t row, std::int64_t column, void* scratch) {
  visit_float_dtype(p.dtype, [&]<class T>() {
    using C = Sum<T>;
    const Tiles<C> t(scratch);
    const std::int64_t rows = std::min(kTileRows, p.rows - row);
    const std::int64_t columns = std::min(kTileColumns, p.in - column);
    std::fill_n(t.c, kTileRows * kTileColumns, C{0});
    for (std::int64_t o = 0; o < p.out; o += kDepth) {
      const std::int64_t depth = std::min(kDepth, p.out - o);
      copy_rows(static_cast<const T*>(p.dy.data) + row * p.dy.stride + o, p.dy.stride,
                size_at(rows), size_at(depth), t.a, size_at(kDepth));
      copy_weights(p, o, depth, column, columns, t.b);
      add_segment(t, size_at(rows), size_at(columns), size_at(depth));
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      T* const to = static_cast<T*>(p.dx.data) + (row + r) * p.dx.stride + column;
      for (std::int64_t c = 0; c < columns; ++c) to[c] = convert<T>(t.c[r * kTileColumns + c]);
    }
  });
}

void dweight_tile(const Backward& p, std::int64_t row, std::int64_t column, void* scratch) {
  visit_float_dtype(p.dtype, [&]<class T>() {
    using C = Sum<T>;
    const Tiles<C> t(scratch);
    const std::int64_t rows = std::min(kTileRows, p.out - row);
    const std::int64_t columns = std::min(kTileColumns, p.in - column);
    std::fill_n(t.c, kTileRows * kTileColumns, C{0});
    for (std::int64_t n = 0; n < p.rows; n += kDepth) {
      const std::int64_t depth = std::min(kDepth, p.rows - n);
      copy_transposed<T>(p, n, depth, row, rows, t.a);
      copy_rows(static_cast<const T*>(p.x.data) + n * p.x.stride + column, p.x.stride,
                size_at(depth), size_at(columns), t.b, size_at(kTileColumns));
      add_segment(t, size_at(rows), size_at(columns), size_at(depth));
    }
    visit_float_dtype(p.dweight_dtype, [&]<class G>() {
      for (std::int64_t r = 0; r < rows; ++r) {
        G* const to = static_cast<G*>(p.dweight.data) + (row + r) * p.dweight.stride + column;
        const C* const sums = t.c + r * kTileColumns;
        for (std::int64_t c = 0; c < columns; ++c) {
          to[c] = convert<G>(p.accumulate ? convert<C>(to[c]) + sums[c] : sums[c]);
        }
      }
    });
  });
}

}  // namespace touchstone::linear_layer::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace touchstone::linear_layer {

HWY_EXPORT(dx_tile);
HWY_EXPORT(dweight_tile);

void run_dx_tile(const Backward& p, std::int64_t row, std::int64_t column, void* scratch) {
  HWY_DYNAMIC_DISPATCH(dx_tile)(p, row, column, scratch);
}
void run_dweight_tile(const Backward& p, std::int64_t row, std::int64_t column, void* scratch) {
  HWY_DYNAMIC_DISPATCH(dweight_tile)(p, row, column, scratch);
}

}  // namespace touchstone::linear_layer
#endif
