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
// After foreach_target.h, as Highway asks.
#include "cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace touchstone::norm::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace sd = touchstone::simd::HWY_NAMESPACE;

// Terms that a running sum of squares takes before it is put away. Not for speed: on a row that
// sits on a coarse grid (mean = 1e4 sigma, say) the low bits of squares are far from random (k^2
// mod 8 is 0, 1 or 4), and a long sum rounds them away in one direction: 5e-7 of the variance
// after 64 terms, 8e-6 after 1024.
constexpr std::size_t kRunTerms = 16;

template <class T>
std::size_t run_columns() {
  return kRunTerms * 4 * hn::Lanes(hn::ScalableTag<Compute<T>>());
}

// Columns whose sums are made in the type of arithmetic.
template <class T>
std::size_t block_columns() {
  return 4 * run_columns<T>();
}

// With the longest vectors Highway has on x86, 64 bytes.
constexpr std::size_t kMostRunColumns = kRunTerms * 4 * 16;

// How far ahead of the sums memory is asked for.
constexpr std::size_t kFetchBytes = 8192;

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

// ---- h: x, or x + residual rounded to T --------------------------------------------------------
//
// The sum is computed again in each sweep: only the last one then writes, and can do so past the
// cache.

// A pack at column i.
template <bool kFused, class D, class T>
HWY_INLINE void load_h(D d, const T* x, const T* residual, std::size_t i, hn::Vec<D>* h) {
  sd::load_pack(d, x + i, h);
  if constexpr (kFused) {
    hn::Vec<D> other[sd::template kPack<T>];
    sd::load_pack(d, residual + i, other);
    for (std::size_t k = 0; k < sd::template kPack<T>; ++k) {
      h[k] = sd::template round_to<T>(d, hn::Add(h[k], other[k]));
    }
  }
}

// At most a vector, columns [i, i + n).
template <bool kFused, class D, class T>
HWY_INLINE hn::Vec<D> load_h_tail(D d, const T* x, const T* residual, std::size_t i,
                                  std::size_t n) {
  const auto h = sd::load_some(d, x + i, n);
  if constexpr (!kFused) return h;
  return sd::template round_to<T>(d, hn::Add(h, sd::load_some(d, residual + i, n)));
}

// ---- statistics ----------------------------------------------------------------------------

// Mean of the first columns of a block, somewhere near the mean of all.
template <bool kFused, class T>
HWY_INLINE Compute<T> sample_mean(const ForwardRow<T>& row, std::size_t begin, std::size_t end) {
  const hn::CappedTag<Compute<T>, kSample> d;
  if (end - begin >= kSample) {
    auto sum = hn::Zero(d);
    for (std::size_t i = 0; i < kSample; i += hn::Lanes(d)) {
      sum = hn::Add(sum, load_h_tail<kFused>(d, row.x, row.residual, begin + i, hn::Lanes(d)));
    }
    return sd::sum_lanes(d, sum) * (Compute<T>{1} / kSample);
  }
  auto sum = hn::Zero(d);
  for (std::size_t i = begin; i < end; i += hn::Lanes(d)) {
    sum = hn::Add(sum,
                  load_h_tail<kFused>(d, row.x, row.residual, i, std::min(hn::Lanes(d), end - i)));
  }
  return sd::sum_lanes(d, sum) / static_cast<Compute<T>>(end - begin);
}

// Columns of a row to be summed, and what is to be fetched meanwhile, column by column.
template <class T>
struct SumRun {
  const T* x = nullptr;
  const T* residual = nullptr;
  const T* fetch_x = nullptr;
  const T* fetch_residual = nullptr;
  std::size_t columns = 0;
};

// Running sums of h - m and (h - m)^2; m is 0 for RMS, which needs squares only. Four of each hide
// the latency of addition.
template <Kind kKind, bool kFused, class T>
struct Sums {
  hn::ScalableTag<Compute<T>> d;
  using V = hn::Vec<decltype(d)>;
  const T* x;
  const T* residual;
  const T* fetch_x;
  const T* fetch_residual;
  V m;
  V s[4];
  V q[4];

  HWY_INLINE Sums(const SumRun<T>& run, Compute<T> about)
      : x(run.x),
        residual(run.residual),
        fetch_x(run.fetch_x),
        fetch_residual(run.fetch_residual),
        m(hn::Set(d, about)) {
    for (int k = 0; k < 4; ++k) s[k] = q[k] = hn::Zero(d);
  }
  HWY_INLINE void add(V h, std::size_t k) {
    if constexpr (kKind == Kind::layer) {
      h = hn::Sub(h, m);
      s[k] = hn::Add(s[k], h);
    }
    q[k] = hn::MulAdd(h, h, q[k]);
  }
  // A pack at column i, to the running sums from k on.
  HWY_INLINE void add_pack(std::size_t i, std::size_t k) {
    if (i % kFetchColumns<T> == 0) {
      sd::prefetch(fetch_x + i);
      if constexpr (kFused) sd::prefetch(fetch_residual + i);
    }
    V h[sd::template kPack<T>];
    load_h<kFused>(d, x, residual, i, h);
    for (std::size_t j = 0; j < sd::template kPack<T>; ++j) add(h[j], k + j);
  }
  // Columns [i, end), the rest of the run.
  HWY_INLINE void add_rest(std::size_t i, std::size_t end) {
    const std::size_t lanes = hn::Lanes(d);
    for (; i + 4 * lanes <= end; i += 4 * lanes) {
      for (std::size_t k = 0; k < 4; k += sd::template kPack<T>) add_pack(i + k * lanes, k);
    }
    for (; i < end; i += lanes) {
      const std::size_t n = std::min(lanes, end - i);
      // Lanes past the end hold m, so that they add nothing.
      const auto h = load_h_tail<kFused>(d, x, residual, i, n);
      add(hn::IfThenElse(hn::FirstN(d, n), h, m), 0);
    }
  }
  HWY_INLINE V sum() const { return hn::Add(hn::Add(s[0], s[1]), hn::Add(s[2], s[3])); }
  HWY_INLINE V squares() const { return hn::Add(hn::Add(q[0], q[1]), hn::Add(q[2], q[3])); }
};

// The moments of a block of n columns from its sums about m.
template <class D, class V = hn::Vec<D>>
HWY_INLINE Moments moments_of_sums(D d, V sum, V squares, hn::TFromD<D> m, std::size_t n) {
  const auto count = static_cast<double>(n);
  const double offset = static_cast<double>(sd::sum_lanes(d, sum)) / count;
  return {count, static_cast<double>(m), offset,
          static_cast<double>(sd::sum_lanes(d, squares)) - offset * (offset * count)};
}

// The moments of a block about m, in a sweep of their own.
template <Kind kKind, bool kFused, class T>
HWY_NOINLINE Moments moments_about(const ForwardRow<T>& row, std::size_t begin, std::size_t end,
                                   Compute<T> m) {
  const hn::ScalableTag<Compute<T>> d;
  auto sum = hn::Zero(d);
  auto squares = hn::Zero(d);
  for (std::size_t i = begin; i < end; i += run_columns<T>()) {
    const std::size_t stop = std::min(end, i + run_columns<T>());
    const T* const x = row.x + i;
    const T* const residual = kFused ? row.residual + i : nullptr;
    Sums<kKind, kFused, T> sums({x, residual, x, residual, stop - i}, m);
    sums.add_rest(0, stop - i);
    sum = hn::Add(sum, sums.sum());
    squares = hn::Add(squares, sums.squares());
  }
  return moments_of_sums(d, sum, squares, m, end - begin);
}

// One sweep about a guess of the mean is enough but where the guess is further than one standard
// deviation from the mean, so that the squares it adds would cost accuracy: then a second sweep,
// about the mean itself. Of rows of independent elements one in 200 needs it.
template <Kind kKind>
HWY_INLINE bool is_far_off(const Moments& found) {
  return kKind == Kind::layer && found.offset * (found.offset * found.count) > found.squares;
}

template <Kind kKind, bool kFused, class T>
Moments moments_again(const ForwardRow<T>& row, std::size_t begin, std::size_t end,
                      const Moments& found) {
  const auto mean = static_cast<Compute<T>>(found.anchor + found.offset);
  return moments_about<kKind, kFused>(row, begin, end, mean);
}

// What the elements of rows first, first + 1, .. are computed from. Writes mean and rstd of those
// that are sound. A square root and a division for all of them, not for each.
template <class C>
void finish_rows(const ForwardJob& job, std::int64_t first, std::int64_t count,
                 const Moments* moments, RowStatistics* statistics) {
  constexpr double kSmall =
      std::is_same_v<C, double> ? std::numeric_limits<double>::min() * 0x1p52 : kSmallMeanSquare;
  const Forward& p = job.p;
  const hn::ScalableTag<double> d;
  alignas(64) double root[kMostRows] = {};
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

// ---- y -------------------------------------------------------------------------------------

// What the elements of y are made with.
template <class T>
struct Weights {
  const Compute<T>* gamma = nullptr;
  const Compute<T>* beta = nullptr;
  bool round_before = false;
};

// Columns of a row of y to be written, from `begin` on.
template <class T>
struct WriteRun {
  const ForwardRow<T>* row = nullptr;
  std::size_t begin = 0;
  std::size_t columns = 0;
  T* y = nullptr;
  T* sum = nullptr;
};

// kStream: y and sum are aligned for it.
template <Kind kKind, bool kFused, bool kStream, class T>
struct Writer {
  hn::ScalableTag<Compute<T>> d;
  using V = hn::Vec<decltype(d)>;
  const T* x;
  const T* residual;
  T* y;
  T* to_sum;
  const Compute<T>* gamma;
  const Compute<T>* beta;
  bool round_before;
  V mean;
  V rstd;
  V shift;

  HWY_INLINE Writer(const Weights<T>& w, const WriteRun<T>& run)
      : x(run.row->x + run.begin),
        residual(kFused ? run.row->residual + run.begin : nullptr),
        y(run.y),
        to_sum(run.sum),
        gamma(w.gamma + run.begin),
        beta(kKind == Kind::layer ? w.beta + run.begin : nullptr),
        round_before(w.round_before),
        mean(hn::Set(d, run.row->mean)),
        rstd(hn::Set(d, run.row->rstd)),
        shift(hn::Set(d, run.row->shift)) {}
  HWY_INLINE V xhat(V h) const {
    if constexpr (kKind == Kind::layer) return hn::MulAdd(hn::Sub(h, mean), rstd, shift);
    h = hn::Mul(h, rstd);
    if constexpr (sd::template kIs16<T>) {
      if (round_before) h = sd::template round_to<T>(d, h);
    }
    return h;
  }
  HWY_INLINE void put(const V* pack, T* p) const {
    if constexpr (kStream) {
      sd::stream_pack(pack, d, p);
    } else {
      sd::store_pack(pack, d, p);
    }
  }
  // One pack, at column i.
  HWY_INLINE void write_pack(std::size_t i) const {
    V h[sd::template kPack<T>];
    load_h<kFused>(d, x, residual, i, h);
    if constexpr (kFused) put(h, to_sum + i);
    for (std::size_t k = 0; k < sd::template kPack<T>; ++k) {
      const std::size_t c = i + k * hn::Lanes(d);
      if constexpr (kKind == Kind::layer) {
        h[k] = hn::MulAdd(xhat(h[k]), sd::load(d, gamma + c), sd::load(d, beta + c));
      } else {
        h[k] = hn::Mul(xhat(h[k]), sd::load(d, gamma + c));
      }
    }
    put(h, y + i);
  }
  // Columns [i, end), the rest of the run.
  HWY_INLINE void write_rest(std::size_t i, std::size_t end) const {
    const std::size_t lanes = hn::Lanes(d);
    const std::size_t pack = sd::template kPack<T> * lanes;
    for (; i + pack <= end; i += pack) write_pack(i);
    for (; i < end; i += lanes) {
      const std::size_t n = std::min(lanes, end - i);
      auto h = load_h_tail<kFused>(d, x, residual, i, n);
      if constexpr (kFused) sd::store_some(h, d, to_sum + i, n);
      h = xhat(h);
      const auto w = sd::load_some(d, gamma + i, n);
      if constexpr (kKind == Kind::layer) {
        h = hn::MulAdd(h, w, sd::load_some(d, beta + i, n));
      } else {
        h = hn::Mul(h, w);
      }
      sd::store_some(h, d, y + i, n);
    }
  }
};

// ---- both at once ----------------------------------------------------------------------------

// Writes one run and sums another, vector by vector: so memory is read and written at the same
// time. Either may be empty. The sums about m are added to *sum and *squares, lane by lane.
template <Kind kKind, bool kFused, bool kStream, class T, class V>
HWY_INLINE void write_and_sum(const Weights<T>& weights, const WriteRun<T>& write_run,
                              const SumRun<T>& sum_run, Compute<T> m, V* sum, V* squares) {
  const Writer<kKind, kFused, kStream, T> writer(weights, write_run);
  Sums<kKind, kFused, T> sums(sum_run, m);
  const std::size_t written = write_run.columns;
  const std::size_t summed = sum_run.columns;
  const std::size_t lanes = hn::Lanes(sums.d);
  const std::size_t both = std::min(written, summed) / (4 * lanes) * (4 * lanes);
  for (std::size_t i = 0; i < both; i += 4 * lanes) {
    for (std::size_t k = 0; k < 4; k += sd::template kPack<T>) {
      sums.add_pack(i + k * lanes, k);
      writer.write_pack(i + k * lanes);
    }
  }
  sums.add_rest(both, summed);
  writer.write_rest(both, written);
  *sum = hn::Add(*sum, sums.sum());
  *squares = hn::Add(*squares, sums.squares());
}

// As write_and_sum with columns [begin, end) of y of `row`; past the cache when `stream`, where
// need be by way of a buffer that is aligned as y and sum are not.
template <Kind kKind, bool kFused, class T, class V>
HWY_INLINE void run_pair(const Weights<T>& weights, bool stream, const ForwardRow<T>& row,
                         std::size_t begin, std::size_t end, const SumRun<T>& sum_run, Compute<T> m,
                         V* sum, V* squares) {
  T* const to_sum = kFused ? row.sum + begin : nullptr;
  WriteRun<T> run = {&row, begin, end - begin, row.y + begin, to_sum};
  if (!stream || !sd::kCanStream) {
    write_and_sum<kKind, kFused, false>(weights, run, sum_run, m, sum, squares);
  } else if (sd::is_pack_aligned(run.y) && (!kFused || sd::is_pack_aligned(run.sum))) {
    write_and_sum<kKind, kFused, true>(weights, run, sum_run, m, sum, squares);
  } else {
    alignas(64) T aligned_y[kMostRunColumns];
    alignas(64) T aligned_sum[kFused ? kMostRunColumns : 1];
    run.y = aligned_y;
    run.sum = aligned_sum;
    write_and_sum<kKind, kFused, false>(weights, run, sum_run, m, sum, squares);
    if constexpr (kFused) sd::stream_copy(aligned_sum, to_sum, end - begin);
    sd::stream_copy(aligned_y, row.y + begin, end - begin);
  }
}

// Up to kMostRows rows from `first` on, and how far their sums are.
template <class T>
struct Group {
  ForwardRow<T> rows[kMostRows];
  Moments moments[kMostRows];
  RowStatistics statistics[kMostRows];
  std::int64_t first = 0;
  std::int64_t count = 0;
  // Where the next run begins.
  std::int64_t row = 0;
  std::size_t column = 0;
  // The block it is in: a guess of its mean, and the sums about it so far.
  Compute<T> guess = 0;
  alignas(64) Compute<T> sum[hn::MaxLanes(hn::ScalableTag<Compute<T>>())];
  alignas(64) Compute<T> squares[hn::MaxLanes(hn::ScalableTag<Compute<T>>())];
};

// Sets what is to be fetched while columns from `column` on of `row` are summed: the columns
// kFetchBytes further on.
template <class T>
HWY_INLINE void set_fetch(const ForwardJob& job, std::int64_t row, std::size_t column,
                          std::int64_t rows_end, SumRun<T>* run) {
  const Forward& p = job.p;
  const auto cols = static_cast<std::size_t>(p.cols);
  std::size_t ahead = column + kFetchBytes / sizeof(T);
  if (ahead >= cols) {
    const std::size_t rows = ahead < 2 * cols ? 1 : ahead / cols;
    row += static_cast<std::int64_t>(rows);
    ahead -= rows * cols;
  }
  // Rows past the last are never fetched: there may be no memory there.
  if (row >= rows_end) return;
  const auto at = static_cast<std::int64_t>(ahead);
  run->fetch_x = static_cast<const T*>(p.x.data) + row * p.x.stride + at;
  if (p.residual.data != nullptr) {
    run->fetch_residual = static_cast<const T*>(p.residual.data) + row * p.residual.stride + at;
  }
}

// The next run of the sums of `group`, if there is one, while columns [begin, end) of `written` are
// written.
template <Kind kKind, bool kFused, class T>
HWY_INLINE void step(const ForwardJob& job, const Weights<T>& weights, const ForwardRow<T>& written,
                     std::size_t begin, std::size_t end, std::int64_t rows_end, Group<T>* group) {
  const hn::ScalableTag<Compute<T>> d;
  const auto cols = static_cast<std::size_t>(job.p.cols);
  auto sum = hn::Zero(d);
  auto squares = hn::Zero(d);
  if (group->row >= group->count) {
    run_pair<kKind, kFused>(weights, job.stream, written, begin, end, SumRun<T>(), 0, &sum,
                            &squares);
    return;
  }
  const ForwardRow<T>& row = group->rows[group->row];
  const std::size_t from = group->column;
  const std::size_t to = std::min(cols, from + run_columns<T>());
  const std::size_t block = from - from % block_columns<T>();
  if (from != block) {
    sum = hn::Load(d, group->sum);
    squares = hn::Load(d, group->squares);
  } else if constexpr (kKind == Kind::layer) {
    group->guess = sample_mean<kFused>(row, from, std::min(cols, block + block_columns<T>()));
  }
  const T* const x = row.x + from;
  const T* const residual = kFused ? row.residual + from : nullptr;
  SumRun<T> run = {x, residual, x, residual, to - from};
  set_fetch(job, group->first + group->row, from, rows_end, &run);
  run_pair<kKind, kFused>(weights, job.stream, written, begin, end, run, group->guess, &sum,
                          &squares);
  group->column = to;
  if (to != cols && to != block + block_columns<T>()) {
    hn::Store(sum, d, group->sum);
    hn::Store(squares, d, group->squares);
    return;
  }
  Moments found = moments_of_sums(d, sum, squares, group->guess, to - block);
  if (is_far_off<kKind>(found)) found = moments_again<kKind, kFused>(row, block, to, found);
  Moments& total = group->moments[group->row];
  total = block == 0 ? found : merge(total, found);
  if (to == cols) {
    ++group->row;
    group->column = 0;
  }
}

// ---- what is exported ------------------------------------------------------------------------

// Calls body with T, kind and fused as constants.
template <class Body>
void specialize(const ForwardJob& job, Body&& body) {
  visit_float_dtype(job.p.dtype, [&]<class T>() {
    const bool fused = job.p.residual.data != nullptr;
    if (job.p.kind == Kind::layer) {
      if (fused) {
        body.template operator()<T, Kind::layer, true>();
      } else {
        body.template operator()<T, Kind::layer, false>();
      }
    } else {
      if (fused) {
        body.template operator()<T, Kind::rms, true>();
      } else {
        body.template operator()<T, Kind::rms, false>();
      }
    }
  });
}

template <class T>
Weights<T> weights_of(const ForwardJob& job) {
  return {static_cast<const Compute<T>*>(job.gamma), static_cast<const Compute<T>*>(job.beta),
          job.p.round_before_weight};
}

// Rows [first, first + count), to be summed from the start.
template <class T>
void set_group(const ForwardJob& job, std::int64_t first, std::int64_t count, Group<T>* group) {
  group->first = first;
  group->count = count;
  group->row = 0;
  group->column = 0;
  for (std::int64_t r = 0; r < count; ++r) set_row(job, first + r, &group->rows[r]);
}

// From sums to statistics. Leaves the rows that are sound, and does the others.
template <class T>
void finish_group(const ForwardJob& job, Group<T>* group) {
  finish_rows<Compute<T>>(job, group->first, group->count, group->moments, group->statistics);
  std::int64_t sound = 0;
  for (std::int64_t r = 0; r < group->count; ++r) {
    if (!group->statistics[r].sound) {
      forward_rescue(job, group->first + r);
      continue;
    }
    if (sound != r) group->rows[sound] = group->rows[r];
    set_statistics(group->statistics[r], &group->rows[sound++]);
  }
  group->count = sound;
}

// y of one group, run by run, so that the run of gamma and beta comes from L1 for all rows but the
// first; with each of them a run of the sums of the next group.
template <class T, Kind kKind, bool kFused>
void write_group(const ForwardJob& job, const Group<T>& group, std::int64_t rows_end,
                 Group<T>* next) {
  const Weights<T> weights = weights_of<T>(job);
  const auto cols = static_cast<std::size_t>(job.p.cols);
  for (std::size_t i = 0; i < cols; i += run_columns<T>()) {
    const std::size_t stop = std::min(cols, i + run_columns<T>());
    for (std::int64_t r = 0; r < group.count; ++r) {
      step<kKind, kFused>(job, weights, group.rows[r], i, stop, rows_end, next);
    }
  }
  while (next->row < next->count) {
    step<kKind, kFused>(job, weights, next->rows[0], 0, 0, rows_end, next);
  }
}

void rows_of(const ForwardJob& job, std::int64_t begin, std::int64_t end) {
  specialize(job, [&]<class T, Kind kKind, bool kFused>() {
    const std::int64_t most = forward_group_rows(job);
    Group<T> groups[2];
    Group<T>* now = &groups[0];
    Group<T>* next = &groups[1];
    for (std::int64_t row = begin; row < end || now->count > 0; row += most) {
      set_group(job, row, std::clamp<std::int64_t>(end - row, 0, most), next);
      write_group<T, kKind, kFused>(job, *now, end, next);
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
  specialize(job, [&]<class T, Kind kKind, bool kFused>() {
    const std::size_t begin = static_cast<std::size_t>(block) * block_columns<T>();
    const std::size_t end =
        std::min(static_cast<std::size_t>(job.p.cols), begin + block_columns<T>());
    ForwardRow<T> r;
    set_row(job, row, &r);
    Compute<T> guess = 0;
    if constexpr (kKind == Kind::layer) guess = sample_mean<kFused>(r, begin, end);
    const Moments found = moments_about<kKind, kFused>(r, begin, end, guess);
    *moments =
        is_far_off<kKind>(found) ? moments_again<kKind, kFused>(r, begin, end, found) : found;
  });
}

void finish_of(const ForwardJob& job, std::int64_t row, const Moments& moments,
               RowStatistics* statistics) {
  visit_float_dtype(job.p.dtype,
                    [&]<class T>() { finish_rows<Compute<T>>(job, row, 1, &moments, statistics); });
}

void write_of(const ForwardJob& job, std::int64_t row, std::int64_t begin, std::int64_t end,
              const RowStatistics& statistics) {
  specialize(job, [&]<class T, Kind kKind, bool kFused>() {
    ForwardRow<T> r;
    set_row(job, row, &r);
    set_statistics(statistics, &r);
    const hn::ScalableTag<Compute<T>> d;
    auto sum = hn::Zero(d);
    auto squares = hn::Zero(d);
    const Weights<T> weights = weights_of<T>(job);
    const auto stop = static_cast<std::size_t>(end);
    for (auto i = static_cast<std::size_t>(begin); i < stop; i += run_columns<T>()) {
      const std::size_t to = std::min(stop, i + run_columns<T>());
      run_pair<kKind, kFused>(weights, job.stream, r, i, to, SumRun<T>(), 0, &sum, &squares);
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
