// Forward kernels of the SIMD implementation, for every target.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "ops/norm/norm_cpu.h"
#include "ops/norm/norm_row.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/norm/norm_cpu_forward.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h, as Highway requires.
#include "cpu/simd.h"
#include "ops/norm/norm_cpu_forward_loop.h"

HWY_BEFORE_NAMESPACE();
namespace touchstone::norm::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace sd = touchstone::simd::HWY_NAMESPACE;

// Columns whose sums are made in the type of arithmetic.
template <class T>
std::size_t block_columns() {
  return 4 * run_columns<T>();
}

// Columns from which the first guess of a block's mean is made.
constexpr std::size_t kSample = 8;

// One row: xhat = (h - mean) * rstd + shift.
template <class T>
struct ForwardRow {
  const T* x = nullptr;
  const T* residual = nullptr;
  T* y = nullptr;
  T* sum = nullptr;
  Compute<T> mean = 0;
  Compute<T> rstd = 0;
  Compute<T> shift = 0;
};

template <class T>
void set_row(const ForwardJob& job, std::int64_t row, ForwardRow<T>* r) {
  const Forward& p = job.p;
  r->x = static_cast<const T*>(p.x.data) + row * p.x.stride;
  r->y = static_cast<T*>(p.y.data) + row * p.y.stride;
  if (p.residual.data != nullptr) {
    r->residual = static_cast<const T*>(p.residual.data) + row * p.residual.stride;
    r->sum = static_cast<T*>(p.sum.data) + row * p.sum.stride;
  }
}

template <class T>
void set_statistics(const RowStatistics& statistics, ForwardRow<T>* row) {
  row->mean = static_cast<Compute<T>>(statistics.mean);
  row->rstd = static_cast<Compute<T>>(statistics.rstd);
  row->shift = static_cast<Compute<T>>(statistics.shift);
}

// ---- statistics ----------------------------------------------------------------------------

template <class D, class T>
HWY_INLINE hn::Vec<D> load_sample(D d, const T* x, const T* residual, std::size_t i,
                                  std::size_t n) {
  return residual == nullptr ? load_h_tail<false>(d, x, residual, i, n)
                             : load_h_tail<true>(d, x, residual, i, n);
}

// Mean of the first columns of a block of n, somewhere near the mean of all.
template <class T>
HWY_INLINE Compute<T> sample_mean(const T* x, const T* residual, std::size_t n) {
  const hn::CappedTag<Compute<T>, kSample> d;
  const std::size_t stop = std::min(n, kSample);
  auto sum = hn::Zero(d);
  for (std::size_t i = 0; i < stop; i += hn::Lanes(d)) {
    sum = hn::Add(sum, load_sample(d, x, residual, i, std::min(hn::Lanes(d), stop - i)));
  }
  return sd::sum_lanes(d, sum) / static_cast<Compute<T>>(stop);
}

// The moments of a block of n columns from its sums about m.
template <class T>
HWY_INLINE Moments moments_of_sums(const LaneSums<T>& sums, Compute<T> m, std::size_t n) {
  const hn::ScalableTag<Compute<T>> d;
  const auto count = static_cast<double>(n);
  const double offset = static_cast<double>(sd::sum_lanes(d, hn::Load(d, sums.sum))) / count;
  return {
      count, static_cast<double>(m), offset,
      static_cast<double>(sd::sum_lanes(d, hn::Load(d, sums.squares))) - offset * (offset * count)};
}

// The moments of a block about m, in a sweep of their own.
template <class T>
HWY_NOINLINE Moments moments_about(Kind kind, const ForwardRow<T>& row, std::size_t begin,
                                   std::size_t end, Compute<T> m) {
  LaneSums<T> sums;
  for (std::size_t i = begin; i < end; i += span_columns<T>()) {
    const T* const x = row.x + i;
    const T* const residual = row.residual == nullptr ? nullptr : row.residual + i;
    const std::size_t columns = std::min(end - i, span_columns<T>());
    do_spans<T>(kind, {}, {x, residual, x, residual, columns, m}, &sums);
  }
  return moments_of_sums(sums, m, end - begin);
}

// One sweep about a guess of the mean is enough but where the guess is further than one standard
// deviation from the mean, so that the squares it adds would cost accuracy: then a second sweep,
// about the mean itself. Of rows of independent elements one in 200 needs it.
template <class T>
Moments moments_checked(Kind kind, const ForwardRow<T>& row, std::size_t begin, std::size_t end,
                        const Moments& found) {
  if (kind == Kind::rms || !(found.offset * (found.offset * found.count) > found.squares)) {
    return found;
  }
  const auto mean = static_cast<Compute<T>>(found.anchor + found.offset);
  return moments_about(kind, row, begin, end, mean);
}

template <class T>
Compute<T> guess_of(Kind kind, const ForwardRow<T>& row, std::size_t begin, std::size_t end) {
  if (kind == Kind::rms) return 0;
  const T* const residual = row.residual == nullptr ? nullptr : row.residual + begin;
  return sample_mean(row.x + begin, residual, end - begin);
}

// What the elements of rows first, first + 1, .. are computed from. Writes mean and rstd of those
// that are sound. A square root and a division for all of them, not for each.
template <class C>
HWY_NOINLINE void finish_rows(const ForwardJob& job, std::int64_t first, std::int64_t count,
                              const Moments* moments, RowStatistics* statistics) {
  constexpr double kSmall =
      std::is_same_v<C, double> ? std::numeric_limits<double>::min() * 0x1p52 : kSmallMeanSquare;
  const Forward& p = job.p;
  const hn::ScalableTag<double> d;
  alignas(64) double root[kMaxGroupRows] = {};
  for (std::int64_t r = 0; r < count; ++r) {
    double variance = moments[r].squares * job.inverse_cols;
    if (variance < 0) variance = 0;  // not std::max, which would turn NaN into 0
    root[r] = variance + p.eps;
    statistics[r].sound = root[r] >= kSmall && root[r] <= std::numeric_limits<double>::max();
  }
  for (std::int64_t r = 0; r < count; r += static_cast<std::int64_t>(hn::Lanes(d))) {
    hn::Store(hn::Div(hn::Set(d, 1.0), hn::Sqrt(hn::Load(d, root + r))), d, root + r);
  }
  for (std::int64_t r = 0; r < count; ++r) {
    if (!statistics[r].sound) continue;
    const auto mean = static_cast<C>(moments[r].anchor + moments[r].offset);
    const auto rstd = static_cast<C>(root[r]);
    const double delta = (moments[r].anchor - static_cast<double>(mean)) + moments[r].offset;
    statistics[r].mean = static_cast<double>(mean);
    statistics[r].rstd = static_cast<double>(rstd);
    statistics[r].shift = -delta * static_cast<double>(rstd);
    if (p.mean != nullptr) static_cast<C*>(p.mean)[first + r] = mean;
    if (p.rstd != nullptr) static_cast<C*>(p.rstd)[first + r] = rstd;
  }
}

// ---- groups of rows ----------------------------------------------------------------------------

// Up to kMaxGroupRows rows from `first` on, and how far their sums are.
template <class T>
struct Group {
  ForwardRow<T> rows[kMaxGroupRows];
  Moments moments[kMaxGroupRows];
  RowStatistics statistics[kMaxGroupRows];
  std::int64_t first = 0;
  std::int64_t count = 0;
  // Where the next span begins.
  std::int64_t row = 0;
  std::size_t column = 0;
  // The block it is in: a guess of its mean, and the sums about it so far.
  Compute<T> guess = 0;
  LaneSums<T> sums;

  bool is_summed() const { return row >= count; }
};

// Rows [first, first + count), to be summed from the start.
template <class T>
void set_group(const ForwardJob& job, std::int64_t first, std::int64_t count, Group<T>* group) {
  group->first = first;
  group->count = count;
  group->row = 0;
  group->column = 0;
  for (std::int64_t r = 0; r < count; ++r) set_row(job, first + r, &group->rows[r]);
}

// Sets what is to be fetched while columns from `column` on of `row` are summed: the columns
// kPrefetchBytes further on.
template <class T>
HWY_INLINE void set_fetch(const ForwardJob& job, std::int64_t row, std::size_t column,
                          std::int64_t rows_end, SumSpan<T>* span) {
  const Forward& p = job.p;
  const auto cols = static_cast<std::size_t>(p.cols);
  std::size_t ahead = column + static_cast<std::size_t>(kPrefetchBytes) / sizeof(T);
  if (ahead >= 2 * cols) {
    row += job.prefetch_rows;  // without a division
    ahead = column;
  } else if (ahead >= cols) {
    ++row;
    ahead -= cols;
  }
  // Rows past the last are never fetched: there may be no memory there.
  if (row >= rows_end) return;
  const auto at = static_cast<std::int64_t>(ahead);
  span->fetch_x = static_cast<const T*>(p.x.data) + row * p.x.stride + at;
  if (p.residual.data != nullptr) {
    span->fetch_residual = static_cast<const T*>(p.residual.data) + row * p.residual.stride + at;
  }
}

// The next span of the sums of `group`.
template <class T>
SumSpan<T> next_span(const ForwardJob& job, std::int64_t rows_end, Group<T>* group) {
  const ForwardRow<T>& row = group->rows[group->row];
  const auto cols = static_cast<std::size_t>(job.p.cols);
  const std::size_t from = group->column;
  if (from % block_columns<T>() == 0) {
    group->sums = LaneSums<T>();
    group->guess = guess_of(job.p.kind, row, from, std::min(cols, from + block_columns<T>()));
  }
  const T* const x = row.x + from;
  const T* const residual = row.residual == nullptr ? nullptr : row.residual + from;
  SumSpan<T> span = {x,           residual, x, residual, std::min(cols - from, span_columns<T>()),
                     group->guess};
  set_fetch(job, group->first + group->row, from, rows_end, &span);
  return span;
}

// After the span that next_span gave has been summed.
template <class T>
void end_span(const ForwardJob& job, Group<T>* group) {
  const auto cols = static_cast<std::size_t>(job.p.cols);
  const std::size_t block = group->column - group->column % block_columns<T>();
  const std::size_t to = std::min(cols, group->column + span_columns<T>());
  group->column = to;
  if (to != cols && to != block + block_columns<T>()) return;
  const ForwardRow<T>& row = group->rows[group->row];
  const Moments found = moments_checked(job.p.kind, row, block, to,
                                        moments_of_sums(group->sums, group->guess, to - block));
  Moments& total = group->moments[group->row];
  total = block == 0 ? found : merge(total, found);
  if (to != cols) return;
  ++group->row;
  group->column = 0;
}

template <class T>
WriteSpan<T> span_of(const ForwardJob& job, const ForwardRow<T>& row, std::size_t begin,
                     std::size_t end) {
  using C = Compute<T>;
  WriteSpan<T> span;
  span.x = row.x + begin;
  span.y = row.y + begin;
  span.weight = static_cast<const C*>(job.weight) + begin;
  if (job.bias != nullptr) span.bias = static_cast<const C*>(job.bias) + begin;
  if (row.residual != nullptr) {
    span.residual = row.residual + begin;
    span.sum = row.sum + begin;
  }
  span.columns = end - begin;
  span.mean = row.mean;
  span.rstd = row.rstd;
  span.shift = row.shift;
  span.round_before = job.p.round_before_weight;
  return span;
}

// do_spans; past the cache when `job.stream`, where need be by way of a buffer that is aligned as y
// and sum are not.
template <class T>
HWY_NOINLINE void do_aligned_spans(const ForwardJob& job, WriteSpan<T>& write,
                                   const SumSpan<T>& sum, LaneSums<T>* lane_sums) {
  const bool fused = write.residual != nullptr;
  if (!job.stream || !sd::kCanStream ||
      (sd::is_pack_aligned(write.y) && (!fused || sd::is_pack_aligned(write.sum)))) {
    write.stream = job.stream;
    do_spans(job.p.kind, write, sum, lane_sums);
    return;
  }
  alignas(64) T aligned_y[kMaxSpanColumns];
  alignas(64) T aligned_sum[kMaxSpanColumns];
  T* const y = std::exchange(write.y, aligned_y);
  T* const to_sum = std::exchange(write.sum, aligned_sum);
  do_spans(job.p.kind, write, sum, lane_sums);
  for (int i = 0; i < (fused ? 2 : 1); ++i) {
    sd::stream_copy(i == 0 ? aligned_y : aligned_sum, i == 0 ? y : to_sum, write.columns);
  }
}

// y of one group, span by span, so that the span of weight and bias comes from L1 for all rows but
// the first; with each of them a span of the sums of the next group.
template <class T>
void write_group(const ForwardJob& job, const Group<T>& group, std::int64_t rows_end,
                 Group<T>* next) {
  const auto cols = static_cast<std::size_t>(job.p.cols);
  for (std::size_t i = 0; i < cols; i += span_columns<T>()) {
    const std::size_t stop = std::min(cols, i + span_columns<T>());
    for (std::int64_t r = 0; r < group.count; ++r) {
      WriteSpan<T> write = span_of(job, group.rows[r], i, stop);
      if (next->is_summed()) {
        do_aligned_spans(job, write, SumSpan<T>(), &next->sums);
        continue;
      }
      do_aligned_spans(job, write, next_span(job, rows_end, next), &next->sums);
      end_span(job, next);
    }
  }
  while (!next->is_summed()) {
    do_spans(job.p.kind, WriteSpan<T>(), next_span(job, rows_end, next), &next->sums);
    end_span(job, next);
  }
}

// From sums to statistics. Leaves the rows that are sound, and does the others.
template <class T>
void finish_group(const ForwardJob& job, Group<T>* group) {
  finish_rows<Compute<T>>(job, group->first, group->count, group->moments, group->statistics);
  std::int64_t sound = 0;
  for (std::int64_t r = 0; r < group->count; ++r) {
    if (!group->statistics[r].sound) {
      forward_slow_row(job, group->first + r);
      continue;
    }
    if (sound != r) group->rows[sound] = group->rows[r];
    set_statistics(group->statistics[r], &group->rows[sound++]);
  }
  group->count = sound;
}

// ---- what is exported ------------------------------------------------------------------------

void rows_of(const ForwardJob& job, std::int64_t begin, std::int64_t end) {
  visit_float_dtype(job.p.dtype, [&]<class T>() {
    const std::int64_t most = forward_group_rows(job);
    Group<T> groups[2];
    Group<T>* now = &groups[0];
    Group<T>* next = &groups[1];
    for (std::int64_t row = begin; row < end || now->count > 0; row += most) {
      set_group(job, row, std::clamp<std::int64_t>(end - row, 0, most), next);
      write_group(job, *now, end, next);
      finish_group(job, next);
      std::swap(now, next);
    }
  });
  if (job.stream) hwy::FlushStream();
}

void columns_of(const ForwardJob& job, std::int64_t* columns) {
  visit_float_dtype(job.p.dtype,
                    [&]<class T>() { *columns = static_cast<std::int64_t>(block_columns<T>()); });
}

void moments_of(const ForwardJob& job, std::int64_t row, std::int64_t block, Moments* moments) {
  visit_float_dtype(job.p.dtype, [&]<class T>() {
    const std::size_t begin = static_cast<std::size_t>(block) * block_columns<T>();
    const std::size_t end =
        std::min(static_cast<std::size_t>(job.p.cols), begin + block_columns<T>());
    ForwardRow<T> r;
    set_row(job, row, &r);
    const Kind kind = job.p.kind;
    const Moments found = moments_about(kind, r, begin, end, guess_of(kind, r, begin, end));
    *moments = moments_checked(kind, r, begin, end, found);
  });
}

void finish_of(const ForwardJob& job, std::int64_t row, const Moments& moments,
               RowStatistics* statistics) {
  visit_float_dtype(job.p.dtype,
                    [&]<class T>() { finish_rows<Compute<T>>(job, row, 1, &moments, statistics); });
}

void write_of(const ForwardJob& job, std::int64_t row, std::int64_t begin, std::int64_t end,
              const RowStatistics& statistics) {
  visit_float_dtype(job.p.dtype, [&]<class T>() {
    ForwardRow<T> r;
    set_row(job, row, &r);
    set_statistics(statistics, &r);
    LaneSums<T> none;
    const auto stop = static_cast<std::size_t>(end);
    for (auto i = static_cast<std::size_t>(begin); i < stop; i += span_columns<T>()) {
      const std::size_t to = std::min(stop, i + span_columns<T>());
      WriteSpan<T> write = span_of(job, r, i, to);
      do_aligned_spans(job, write, SumSpan<T>(), &none);
    }
  });
  if (job.stream) hwy::FlushStream();
}

// dst[i] = src[i] + offset, then in the order of packs of T.
template <class T, class W>
void widen_all(const W* src, double offset, Compute<T>* dst, std::size_t n) {
  const hn::ScalableTag<Compute<T>> d;
  const auto add = hn::Set(d, static_cast<Compute<T>>(offset));
  for (std::size_t i = 0; i < n; i += hn::Lanes(d)) {
    const std::size_t some = std::min(hn::Lanes(d), n - i);
    const auto w = hn::Add(sd::load_some(d, src + i, some), add);
    sd::store_some(sd::clean_nan(d, w), d, dst + i, some);
  }
  sd::template to_pack_order<T>(dst, n);
}

void widen_of(DType x_dtype, const void* src, DType dtype, double offset, void* dst,
              std::size_t n) {
  visit_float_dtype(x_dtype, [&]<class T>() {
    visit_float_dtype(dtype, [&]<class W>() {
      if constexpr (std::is_same_v<Compute<W>, Compute<T>>) {
        widen_all<T>(static_cast<const W*>(src), offset, static_cast<Compute<T>*>(dst), n);
      }
    });
  });
}

}  // namespace touchstone::norm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace touchstone::norm {
namespace {

HWY_EXPORT(columns_of);
HWY_EXPORT(finish_of);
HWY_EXPORT(moments_of);
HWY_EXPORT(rows_of);
HWY_EXPORT(widen_of);
HWY_EXPORT(write_of);

}  // namespace

void forward_rows(const ForwardJob& job, std::int64_t begin, std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(rows_of)(job, begin, end);
}

std::int64_t forward_block_columns(const ForwardJob& job) {
  std::int64_t columns = 0;
  HWY_DYNAMIC_DISPATCH(columns_of)(job, &columns);
  return columns;
}

Moments forward_moments(const ForwardJob& job, std::int64_t row, std::int64_t block) {
  Moments moments;
  HWY_DYNAMIC_DISPATCH(moments_of)(job, row, block, &moments);
  return moments;
}

RowStatistics forward_finish(const ForwardJob& job, std::int64_t row, const Moments& moments) {
  RowStatistics statistics;
  HWY_DYNAMIC_DISPATCH(finish_of)(job, row, moments, &statistics);
  return statistics;
}

void forward_write(const ForwardJob& job, std::int64_t row, std::int64_t begin, std::int64_t end,
                   const RowStatistics& statistics) {
  HWY_DYNAMIC_DISPATCH(write_of)(job, row, begin, end, statistics);
}

void widen_weights(DType x_dtype, const void* weights, DType dtype, double offset, void* dst,
                   std::int64_t cols) {
  HWY_DYNAMIC_DISPATCH(widen_of)
  (x_dtype, weights, dtype, offset, dst, static_cast<std::size_t>(cols));
}

}  // namespace touchstone::norm
#endif  // HWY_ONCE
