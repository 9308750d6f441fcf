// Backward kernels of the SIMD implementation, for every target.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

#include "ops/norm/norm_cpu.h"
#include "ops/norm/norm_row.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/norm/norm_cpu_backward.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h, as Highway requires.
#include "cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace touchstone::norm::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace sd = touchstone::simd::HWY_NAMESPACE;

// Terms of a running sum before it is added to a wider one: bounds its rounding error by 32 * 2^-24
// of the sum of magnitudes, and in practice far below.
constexpr std::size_t kRunTerms = 32;

// Columns of a run, and of dx written at a time: their weight and column sums stay in L1 while all
// rows of a group pass over them.
template <class T>
std::size_t run_columns() {
  return kRunTerms * hn::Lanes(hn::ScalableTag<Compute<T>>());
}
// With the longest vectors Highway has on x86, 64 bytes.
constexpr std::size_t kMaxRunColumns = kRunTerms * 16;

// Columns whose sums are made in the type of arithmetic.
template <class T>
std::size_t block_columns() {
  return 4 * run_columns<T>();
}

// One row, and the numbers that hold for all of it.
template <class T>
struct BackwardRow {
  const T* dy = nullptr;
  const T* x = nullptr;
  const T* dsum = nullptr;
  T* dx = nullptr;
  // From this row to the one to be fetched meanwhile; 0 when there is none.
  std::ptrdiff_t next_dy = 0;
  std::ptrdiff_t next_x = 0;
  Compute<T> mean = 0;
  Compute<T> rstd = 0;
  Compute<T> shift = 0;
  Compute<T> c1 = 0;
  Compute<T> c2 = 0;
};

// `ahead` is how many rows further on the one to be fetched is.
template <class T>
void set_row(const BackwardJob& job, std::int64_t row, std::int64_t ahead, BackwardRow<T>* r) {
  using C = Compute<T>;
  const Backward& p = job.p;
  // Any NaN of the caller becomes one with a lower half of zeros, as stores to bf16 require.
  const auto clean = [](C value) {
    return std::isnan(value) ? std::numeric_limits<C>::quiet_NaN() : value;
  };
  r->dy = static_cast<const T*>(p.dy.data) + row * p.dy.stride;
  r->x = static_cast<const T*>(p.x.data) + row * p.x.stride;
  r->next_dy = ahead * p.dy.stride;
  r->next_x = ahead * p.x.stride;
  if (p.dsum.data != nullptr) {
    r->dsum = static_cast<const T*>(p.dsum.data) + row * p.dsum.stride;
  }
  r->dx = static_cast<T*>(p.dx.data) + row * p.dx.stride;
  if (p.kind == Kind::layer) r->mean = clean(static_cast<const C*>(p.mean)[row]);
  r->rstd = clean(static_cast<const C*>(p.rstd)[row]);
}

template <class T>
void set_coefficients(const RowCoefficients& coefficients, BackwardRow<T>* row) {
  row->shift = static_cast<Compute<T>>(coefficients.shift);
  row->c1 = static_cast<Compute<T>>(coefficients.c1);
  row->c2 = static_cast<Compute<T>>(coefficients.c2);
}

// ---- sums over a row -------------------------------------------------------------------------

// The sums of one row as vectors. One running sum each: with two rows and the loads of the second
// between them, the latency of addition is hidden, and a row has the same bits alone or in company.
template <class V>
struct VectorSums {
  V t;
  V g;
  V gt;
};

template <class D>
HWY_INLINE VectorSums<hn::Vec<D>> zero_sums(D d) {
  return {hn::Zero(d), hn::Zero(d), hn::Zero(d)};
}

template <Kind kKind, class V>
HWY_INLINE void add_terms(V dy, V x, V weight, V mean, V rstd, VectorSums<V>* sums) {
  const auto g = hn::Mul(dy, weight);
  if constexpr (kKind == Kind::layer) {
    const auto t = hn::Mul(hn::Sub(x, mean), rstd);
    sums->t = hn::Add(sums->t, t);
    sums->g = hn::Add(sums->g, g);
    sums->gt = hn::MulAdd(g, t, sums->gt);
  } else {
    sums->gt = hn::MulAdd(g, hn::Mul(x, rstd), sums->gt);
  }
}

// Adds the sums over columns [begin, end), a run, of kRows rows, lane by lane, to `sums`.
template <Kind kKind, int kRows, class T, class D, class V = hn::Vec<D>>
HWY_INLINE void add_run(D d, const BackwardRow<T>* rows, const Compute<T>* weight,
                        std::size_t begin, std::size_t end, VectorSums<V>* sums) {
  constexpr std::size_t kVectors = sd::template kPack<T>;
  const std::size_t lanes = hn::Lanes(d);
  VectorSums<V> s[kRows];
  for (int r = 0; r < kRows; ++r) s[r] = zero_sums(d);
  std::size_t i = begin;
  for (; i + kVectors * lanes <= end; i += kVectors * lanes) {
    for (int r = 0; r < kRows; ++r) {
      const BackwardRow<T>& row = rows[r];
      if (i % kPrefetchColumns<T> == 0) sd::prefetch(row.x + row.next_x + i);
      V dy[kVectors];
      V x[kVectors];
      sd::load_pack(d, row.dy + i, dy);
      sd::load_pack(d, row.x + i, x);
      for (std::size_t k = 0; k < kVectors; ++k) {
        add_terms<kKind>(dy[k], x[k], sd::load(d, weight + i + k * lanes), hn::Set(d, row.mean),
                         hn::Set(d, row.rstd), &s[r]);
      }
    }
  }
  for (; i < end; i += lanes) {
    const std::size_t n = std::min(lanes, end - i);
    const auto w = sd::load_some(d, weight + i, n);
    for (int r = 0; r < kRows; ++r) {
      const BackwardRow<T>& row = rows[r];
      const auto mean = hn::Set(d, row.mean);
      // Lanes past the end hold the mean, so that they add nothing.
      const auto x = hn::IfThenElse(hn::FirstN(d, n), sd::load_some(d, row.x + i, n), mean);
      add_terms<kKind>(sd::load_some(d, row.dy + i, n), x, w, mean, hn::Set(d, row.rstd), &s[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    sums[r].t = hn::Add(sums[r].t, s[r].t);
    sums[r].g = hn::Add(sums[r].g, s[r].g);
    sums[r].gt = hn::Add(sums[r].gt, s[r].gt);
  }
}

// Adds the sums over one block, columns [begin, end), of every row to `sums`. Not inlined, as
// write_range: two callers each, for eight kinds of rows and every target.
template <Kind kKind, class T>
HWY_NOINLINE void sum_block(const BackwardRow<T>* rows, std::int64_t count,
                            const Compute<T>* weight, std::size_t begin, std::size_t end,
                            RowSums* sums) {
  const hn::ScalableTag<Compute<T>> d;
  VectorSums<hn::Vec<decltype(d)>> s[kMaxGroupRows];
  for (std::int64_t r = 0; r < count; ++r) s[r] = zero_sums(d);
  for (std::size_t i = begin; i < end; i += run_columns<T>()) {
    const std::size_t stop = std::min(end, i + run_columns<T>());
    std::int64_t r = 0;
    for (; r + 2 <= count; r += 2) add_run<kKind, 2>(d, rows + r, weight, i, stop, s + r);
    if (r < count) add_run<kKind, 1>(d, rows + r, weight, i, stop, s + r);
  }
  for (std::int64_t r = 0; r < count; ++r) {
    sums[r].t += static_cast<double>(sd::sum_lanes(d, s[r].t));
    sums[r].g += static_cast<double>(sd::sum_lanes(d, s[r].g));
    sums[r].gt += static_cast<double>(sd::sum_lanes(d, s[r].gt));
  }
}

// ---- dx and the column sums --------------------------------------------------------------------

template <class T>
struct Columns {
  const Compute<T>* weight = nullptr;
  Compute<T>* sum_weight = nullptr;
  Compute<T>* sum_bias = nullptr;
};

// The numbers of a row, one in every lane.
template <class V>
struct VectorCoefficients {
  V mean;
  V rstd;
  V shift;
  V c1;
  V c2;
};

template <class D, class T>
HWY_INLINE VectorCoefficients<hn::Vec<D>> coefficients_of(D d, const BackwardRow<T>& row) {
  return {hn::Set(d, row.mean), hn::Set(d, row.rstd), hn::Set(d, row.shift), hn::Set(d, row.c1),
          hn::Set(d, row.c2)};
}

// dx of one row at one vector of columns; its terms of the weight gradients are added to *dweight
// and *dbias.
template <Kind kKind, class V>
HWY_INLINE V dx_of(const VectorCoefficients<V>& c, V dy, V x, V weight, V* dweight, V* dbias) {
  auto g = hn::Mul(dy, weight);
  auto xhat = x;
  if constexpr (kKind == Kind::layer) {
    xhat = hn::MulAdd(hn::Sub(x, c.mean), c.rstd, c.shift);
    g = hn::Sub(g, c.c1);
    *dbias = hn::Add(*dbias, dy);
  } else {
    xhat = hn::Mul(x, c.rstd);
  }
  *dweight = hn::MulAdd(dy, xhat, *dweight);
  return hn::Mul(c.rstd, hn::NegMulAdd(xhat, c.c2, g));
}

// Columns [i, i + n), at most a vector, of every row, to dx[row] + at.
template <Kind kKind, class T, class D>
HWY_INLINE void write_tail(D d, const BackwardRow<T>* rows, std::int64_t count,
                           const Columns<T>& columns, std::size_t i, std::size_t n, std::size_t at,
                           T* const* dx) {
  const auto weight = sd::load_some(d, columns.weight + i, n);
  auto dweight = sd::load_some(d, columns.sum_weight + i, n);
  auto dbias = sd::load_some(d, columns.sum_bias + i, n);
  for (std::int64_t r = 0; r < count; ++r) {
    const BackwardRow<T>& row = rows[r];
    auto v = dx_of<kKind>(coefficients_of(d, row), sd::load_some(d, row.dy + i, n),
                          sd::load_some(d, row.x + i, n), weight, &dweight, &dbias);
    if (row.dsum != nullptr) v = hn::Add(v, sd::load_some(d, row.dsum + i, n));
    sd::store_some(v, d, dx[r] + at, n);
  }
  sd::store_some(dweight, d, columns.sum_weight + i, n);
  if constexpr (kKind == Kind::layer) sd::store_some(dbias, d, columns.sum_bias + i, n);
}

// A tile: kVectors vectors of columns, from column i on, of every row, to dx[row] + at. weight and
// the column sums stay in registers while all rows of the group pass. Row after row, so that a
// column sum has the same bits however rows are grouped.
template <Kind kKind, bool kStream, std::size_t kVectors, class T, class D>
HWY_INLINE void write_tile(D d, const BackwardRow<T>* rows, std::int64_t count,
                           const Columns<T>& columns, std::size_t i, std::size_t at, T* const* dx) {
  using V = hn::Vec<D>;
  const std::size_t lanes = hn::Lanes(d);
  V weight[kVectors];
  V dweight[kVectors];
  V dbias[kVectors];
  for (std::size_t k = 0; k < kVectors; ++k) {
    weight[k] = sd::load(d, columns.weight + i + k * lanes);
    dweight[k] = sd::load(d, columns.sum_weight + i + k * lanes);
    if constexpr (kKind == Kind::layer) dbias[k] = sd::load(d, columns.sum_bias + i + k * lanes);
  }
  for (std::int64_t r = 0; r < count; ++r) {
    const BackwardRow<T>& row = rows[r];
    const auto c = coefficients_of(d, row);
    T* const to = dx[r] + at;
    for (std::size_t k = 0; k < kVectors; k += sd::template kPack<T>) {
      const std::size_t column = i + k * lanes;
      if (column % kPrefetchColumns<T> == 0) {
        sd::prefetch(row.dy + row.next_dy + column);
      }
      V dy[sd::template kPack<T>];
      V v[sd::template kPack<T>];
      sd::load_pack(d, row.dy + column, dy);
      sd::load_pack(d, row.x + column, v);
      for (std::size_t j = 0; j < sd::template kPack<T>; ++j) {
        v[j] = dx_of<kKind>(c, dy[j], v[j], weight[k + j], &dweight[k + j], &dbias[k + j]);
      }
      if (row.dsum != nullptr) {
        sd::load_pack(d, row.dsum + column, dy);
        for (std::size_t j = 0; j < sd::template kPack<T>; ++j) v[j] = hn::Add(v[j], dy[j]);
      }
      if constexpr (kStream) {
        sd::stream_pack(v, d, to + k * lanes);
      } else {
        sd::store_pack(v, d, to + k * lanes);
      }
    }
  }
  for (std::size_t k = 0; k < kVectors; ++k) {
    sd::store(dweight[k], d, columns.sum_weight + i + k * lanes);
    if constexpr (kKind == Kind::layer) sd::store(dbias[k], d, columns.sum_bias + i + k * lanes);
  }
}

// Vectors of a tile: with the five numbers of a row and what is being computed, three times as many
// fit into the 32 registers of AVX-512, or the 16 of the others.
constexpr std::size_t kTile = HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3 ? 4 : 2;

// Columns [begin, end) of every row, to `dx`, which points at column `begin` of each. kStream: all
// of those are aligned for it.
template <Kind kKind, bool kStream, class T>
void write_columns(const BackwardRow<T>* rows, std::int64_t count, const Columns<T>& columns,
                   std::size_t begin, std::size_t end, T* const* dx) {
  const hn::ScalableTag<Compute<T>> d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = begin;
  for (; i + kTile * lanes <= end; i += kTile * lanes) {
    write_tile<kKind, kStream, kTile>(d, rows, count, columns, i, i - begin, dx);
  }
  for (; i + sd::pack_columns<T>() <= end; i += sd::pack_columns<T>()) {
    write_tile<kKind, kStream, sd::template kPack<T>>(d, rows, count, columns, i, i - begin, dx);
  }
  for (; i < end; i += lanes) {
    write_tail<kKind>(d, rows, count, columns, i, std::min(lanes, end - i), i - begin, dx);
  }
}

// As write_columns, at most a run; past the cache when `stream`, where need be by way of a buffer
// that is aligned as dx is not.
template <Kind kKind, class T>
void write_run(const BackwardRow<T>* rows, std::int64_t count, const Columns<T>& columns,
               std::size_t begin, std::size_t end, bool stream) {
  T* dx[kMaxGroupRows];
  bool aligned = true;
  for (std::int64_t r = 0; r < count; ++r) {
    dx[r] = rows[r].dx + begin;
    aligned = aligned && sd::is_pack_aligned(dx[r]);
  }
  if (!stream || !sd::kCanStream) {
    write_columns<kKind, false>(rows, count, columns, begin, end, dx);
  } else if (aligned) {
    write_columns<kKind, true>(rows, count, columns, begin, end, dx);
  } else {
    alignas(64) T buffer[kMaxGroupRows][kMaxRunColumns];
    for (std::int64_t r = 0; r < count; ++r) dx[r] = buffer[r];
    write_columns<kKind, false>(rows, count, columns, begin, end, dx);
    for (std::int64_t r = 0; r < count; ++r) {
      sd::stream_copy(buffer[r], rows[r].dx + begin, end - begin);
    }
  }
}

template <Kind kKind, class T>
HWY_NOINLINE void write_range(const BackwardJob& job, const BackwardRow<T>* rows,
                              std::int64_t count, std::size_t begin, std::size_t end,
                              const Accumulators& sums) {
  using C = Compute<T>;
  const Columns<T> columns = {static_cast<const C*>(job.weight), static_cast<C*>(sums.weight),
                              static_cast<C*>(sums.bias)};
  for (std::size_t i = begin; i < end; i += run_columns<T>()) {
    const std::size_t stop = std::min(end, i + run_columns<T>());
    write_run<kKind>(rows, count, columns, i, stop, job.stream);
  }
  // All of such a row is NaN, of a sign that depends on the order of operands in the code that was
  // run, which may differ between one row and several.
  for (std::int64_t r = 0; r < count; ++r) {
    if (!std::isnan(rows[r].c2)) continue;
    std::fill(rows[r].dx + begin, rows[r].dx + end,
              convert<T>(std::numeric_limits<Compute<T>>::quiet_NaN()));
  }
}

// ---- what is exported ------------------------------------------------------------------------

// Calls body with T and kind as constants.
template <class Body>
void specialize(const BackwardJob& job, Body&& body) {
  visit_float_dtype(job.p.dtype, [&]<class T>() {
    if (job.p.kind == Kind::layer) {
      body.template operator()<T, Kind::layer>();
    } else {
      body.template operator()<T, Kind::rms>();
    }
  });
}

template <class T, Kind kKind>
void run_group(const BackwardJob& job, std::int64_t first, std::int64_t count, std::int64_t ahead,
               const Accumulators& sums) {
  const auto cols = static_cast<std::size_t>(job.p.cols);
  BackwardRow<T> rows[kMaxGroupRows];
  for (std::int64_t r = 0; r < count; ++r) set_row(job, first + r, ahead, &rows[r]);
  RowSums row_sums[kMaxGroupRows];
  for (std::size_t c = 0; c < cols; c += block_columns<T>()) {
    sum_block<kKind>(rows, count, static_cast<const Compute<T>*>(job.weight), c,
                     std::min(cols, c + block_columns<T>()), row_sums);
  }
  for (std::int64_t r = 0; r < count; ++r) {
    set_coefficients(backward_finish(job, row_sums[r]), &rows[r]);
  }
  write_range<kKind>(job, rows, count, 0, cols, sums);
}

void rows_of(const BackwardJob& job, std::int64_t begin, std::int64_t end,
             const Accumulators& sums) {
  specialize(job, [&]<class T, Kind kKind>() {
    const std::int64_t group = backward_group_rows(job);
    for (std::int64_t row = begin; row < end; row += group) {
      const std::int64_t count = std::min(group, end - row);
      // Rows past the last are never fetched: there may be no memory there.
      const std::int64_t ahead = row + 2 * group <= end ? group : 0;
      run_group<T, kKind>(job, row, count, ahead, sums);
    }
  });
  if (job.stream) hwy::FlushStream();
}

void columns_of(const BackwardJob& job, std::int64_t* columns) {
  visit_float_dtype(job.p.dtype,
                    [&]<class T>() { *columns = static_cast<std::int64_t>(block_columns<T>()); });
}

// A double cut to 24 bits, the last of them set where anything was cut off: rounding that once
// more, to fewer bits, gives what rounding the double would have given.
template <class D>
HWY_INLINE hn::Vec<D> cut_to_odd(D d, hn::Vec<D> v) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, v);
  const auto rest = hn::And(bits, hn::Set(du, (std::uint64_t{1} << 29) - 1));
  const auto last =
      hn::IfThenElseZero(hn::Ne(rest, hn::Zero(du)), hn::Set(du, std::uint64_t{1} << 29));
  return hn::BitCast(d, hn::Or(hn::Xor(bits, rest), last));
}

template <class W>
void write_sums(const double* from, std::size_t n, W* to) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
  // There Highway's own conversion has no infinity.
  for (std::size_t i = 0; i < n; ++i) to[i] = convert<W>(from[i]);
#else
  const hn::ScalableTag<double> d;
  for (std::size_t i = 0; i < n; i += hn::Lanes(d)) {
    const std::size_t some = std::min(hn::Lanes(d), n - i);
    const auto v = sd::load_some(d, from + i, some);
    if constexpr (std::is_same_v<W, double>) {
      sd::store_some(v, d, to + i, some);
    } else {
      const hn::Rebind<float, decltype(d)> df;
      if constexpr (sd::template kIs16<W>) {
        sd::store_some(hn::DemoteTo(df, cut_to_odd(d, v)), df, to + i, some);
      } else {
        sd::store_some(hn::DemoteTo(df, v), df, to + i, some);
      }
    }
  }
#endif
}

void merge_of(const BackwardJob& job, const void* sums, bool is_f64, std::int64_t stride,
              std::int64_t count, std::size_t n, void* out) {
  double total[kMergeColumns];
  std::fill_n(total, n, 0.0);
  for (std::int64_t chunk = 0; chunk < count; ++chunk) {
    if (is_f64) {
      const double* const from = static_cast<const double*>(sums) + chunk * stride;
      for (std::size_t i = 0; i < n; ++i) total[i] += from[i];
    } else {
      const float* const from = static_cast<const float*>(sums) + chunk * stride;
      for (std::size_t i = 0; i < n; ++i) total[i] += static_cast<double>(from[i]);
    }
  }
  for (double& sum : std::span(total).first(n)) {  // as NaN in dx
    if (std::isnan(sum)) sum = std::numeric_limits<double>::quiet_NaN();
  }
  double column[kMergeColumns];
  visit_float_dtype(job.p.dtype,
                    [&]<class T>() { sd::template from_pack_order<T>(total, n, column); });
  visit_float_dtype(job.p.weight_grad_dtype,
                    [&]<class W>() { write_sums(column, n, static_cast<W*>(out)); });
}

void sums_of(const BackwardJob& job, std::int64_t row, std::int64_t block, RowSums* sums) {
  specialize(job, [&]<class T, Kind kKind>() {
    const std::size_t begin = static_cast<std::size_t>(block) * block_columns<T>();
    const std::size_t end =
        std::min(static_cast<std::size_t>(job.p.cols), begin + block_columns<T>());
    BackwardRow<T> r;
    set_row(job, row, 0, &r);
    sum_block<kKind>(&r, 1, static_cast<const Compute<T>*>(job.weight), begin, end, sums);
  });
}

void write_of(const BackwardJob& job, std::int64_t row, std::int64_t begin, std::int64_t end,
              const RowCoefficients& coefficients, const Accumulators& sums) {
  specialize(job, [&]<class T, Kind kKind>() {
    BackwardRow<T> r;
    set_row(job, row, 0, &r);
    set_coefficients(coefficients, &r);
    write_range<kKind>(job, &r, 1, static_cast<std::size_t>(begin), static_cast<std::size_t>(end),
                       sums);
  });
  if (job.stream) hwy::FlushStream();
}

}  // namespace touchstone::norm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace touchstone::norm {
namespace {

HWY_EXPORT(columns_of);
HWY_EXPORT(merge_of);
HWY_EXPORT(rows_of);
HWY_EXPORT(sums_of);
HWY_EXPORT(write_of);

}  // namespace

void backward_rows(const BackwardJob& job, std::int64_t begin, std::int64_t end,
                   const Accumulators& sums) {
  HWY_DYNAMIC_DISPATCH(rows_of)(job, begin, end, sums);
}

std::int64_t backward_block_columns(const BackwardJob& job) {
  std::int64_t columns = 0;
  HWY_DYNAMIC_DISPATCH(columns_of)(job, &columns);
  return columns;
}

void backward_merge(const BackwardJob& job, const void* sums, bool is_f64, std::int64_t stride,
                    std::int64_t count, std::int64_t columns, void* out) {
  HWY_DYNAMIC_DISPATCH(merge_of)
  (job, sums, is_f64, stride, count, static_cast<std::size_t>(columns), out);
}

RowSums backward_sums(const BackwardJob& job, std::int64_t row, std::int64_t block) {
  RowSums sums;
  HWY_DYNAMIC_DISPATCH(sums_of)(job, row, block, &sums);
  return sums;
}

void backward_write(const BackwardJob& job, std::int64_t row, std::int64_t begin, std::int64_t end,
                    const RowCoefficients& coefficients, const Accumulators& sums) {
  HWY_DYNAMIC_DISPATCH(write_of)(job, row, begin, end, coefficients, sums);
}

}  // namespace touchstone::norm
#endif  // HWY_ONCE
