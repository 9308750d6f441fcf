// Forward kernels of the SIMD implementation, for every target.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

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

// Columns of y written at a time.
template <class T>
std::size_t strip_columns() {
  return run_columns<T>() / 2;
}
// With the longest vectors Highway has on x86, 64 bytes.
constexpr std::size_t kMostStripColumns = kRunTerms * 2 * 16;

// Columns from which the first guess of a block's mean is made.
constexpr std::size_t kSample = 8;

// One row.
template <class T>
struct ForwardRow {
  const T* x = nullptr;
  const T* residual = nullptr;
  T* y = nullptr;
  T* sum = nullptr;
  // From this row to the one to be fetched meanwhile; 0 when there is none.
  std::ptrdiff_t next_x = 0;
  std::ptrdiff_t next_residual = 0;
  Compute<T> mean = 0;
  Compute<T> delta = 0;
  Compute<T> rstd = 0;
};

// `ahead` is how many rows further on the one to be fetched is.
template <class T>
void set_row(const ForwardJob& job, std::int64_t row, std::int64_t ahead, ForwardRow<T>* r) {
  const Forward& p = job.p;
  r->x = static_cast<const T*>(p.x.data) + row * p.x.stride;
  r->y = static_cast<T*>(p.y.data) + row * p.y.stride;
  r->next_x = ahead * p.x.stride;
  if (p.residual.data != nullptr) {
    r->residual = static_cast<const T*>(p.residual.data) + row * p.residual.stride;
    r->sum = static_cast<T*>(p.sum.data) + row * p.sum.stride;
    r->next_residual = ahead * p.residual.stride;
  }
}

template <class T>
void set_statistics(const RowStatistics& statistics, ForwardRow<T>* row) {
  row->mean = static_cast<Compute<T>>(statistics.mean);
  row->delta = static_cast<Compute<T>>(statistics.delta);
  row->rstd = static_cast<Compute<T>>(statistics.rstd);
}

// ---- h: x, or x + residual rounded to T --------------------------------------------------------
//
// The sum is computed again in each sweep: only the last one then writes, and can do so past the
// cache.

// A pack at column i.
template <bool kFused, class D, class T>
HWY_INLINE void load_h(D d, const ForwardRow<T>& row, std::size_t i, hn::Vec<D>* h) {
  sd::load_pack(d, row.x + i, h);
  if constexpr (kFused) {
    hn::Vec<D> residual[sd::template kPack<T>];
    sd::load_pack(d, row.residual + i, residual);
    for (std::size_t k = 0; k < sd::template kPack<T>; ++k) {
      h[k] = sd::template round_to<T>(d, hn::Add(h[k], residual[k]));
    }
  }
}

// At most a vector, columns [i, i + n).
template <bool kFused, class D, class T>
HWY_INLINE hn::Vec<D> load_h_tail(D d, const ForwardRow<T>& row, std::size_t i, std::size_t n) {
  const auto x = sd::load_some(d, row.x + i, n);
  if constexpr (!kFused) return x;
  return sd::template round_to<T>(d, hn::Add(x, sd::load_some(d, row.residual + i, n)));
}

// ---- statistics ----------------------------------------------------------------------------

// Mean of the first columns of a block, somewhere near the mean of all.
template <bool kFused, class T>
HWY_INLINE Compute<T> sample_mean(const ForwardRow<T>& row, std::size_t begin, std::size_t end) {
  const hn::CappedTag<Compute<T>, kSample> d;
  const std::size_t stop = std::min(end, begin + kSample);
  auto sum = hn::Zero(d);
  for (std::size_t i = begin; i < stop; i += hn::Lanes(d)) {
    sum = hn::Add(sum, load_h_tail<kFused>(d, row, i, std::min(hn::Lanes(d), stop - i)));
  }
  return sd::sum_lanes(d, sum) / static_cast<Compute<T>>(stop - begin);
}

// Adds the sums of h - m and (h - m)^2 over columns [begin, end), lane by lane, to *sum and
// *squares; m is 0 for RMS, which needs squares only. Four running sums of each hide the latency
// of addition.
template <Kind kKind, bool kFused, class T, class D, class V = hn::Vec<D>>
HWY_INLINE void add_run(D d, const ForwardRow<T>& row, std::size_t begin, std::size_t end, V m,
                        V* sum, V* squares) {
  constexpr std::size_t kVectors = sd::template kPack<T>;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t step = 4 * lanes;
  V s[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  V q[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  const auto add = [&](V h, V& to_sum, V& to_squares) HWY_ATTR {
    if constexpr (kKind == Kind::layer) {
      h = hn::Sub(h, m);
      to_sum = hn::Add(to_sum, h);
    }
    to_squares = hn::MulAdd(h, h, to_squares);
  };
  std::size_t i = begin;
  for (; i + step <= end; i += step) {
    V h[4];
    for (std::size_t k = 0; k < 4; k += kVectors) load_h<kFused>(d, row, i + k * lanes, h + k);
    for (std::size_t k = 0; k < 4; ++k) add(h[k], s[k], q[k]);
  }
  for (; i < end; i += lanes) {
    const std::size_t n = std::min(lanes, end - i);
    // Lanes past the end hold m, so that they add nothing.
    const auto h = load_h_tail<kFused>(d, row, i, n);
    add(hn::IfThenElse(hn::FirstN(d, n), h, m), s[0], q[0]);
  }
  *sum = hn::Add(*sum, hn::Add(hn::Add(s[0], s[1]), hn::Add(s[2], s[3])));
  *squares = hn::Add(*squares, hn::Add(hn::Add(q[0], q[1]), hn::Add(q[2], q[3])));
}

template <Kind kKind, bool kFused, class T>
HWY_NOINLINE Moments moments_about(const ForwardRow<T>& row, std::size_t begin, std::size_t end,
                                   Compute<T> m) {
  const hn::ScalableTag<Compute<T>> d;
  auto sum = hn::Zero(d);
  auto squares = hn::Zero(d);
  for (std::size_t i = begin; i < end; i += run_columns<T>()) {
    const std::size_t stop = std::min(end, i + run_columns<T>());
    add_run<kKind, kFused>(d, row, i, stop, hn::Set(d, m), &sum, &squares);
  }
  const auto n = static_cast<double>(end - begin);
  const double inverse = 1 / n;  // apart, so that it is done before the sum is
  const double offset = static_cast<double>(sd::sum_lanes(d, sum)) * inverse;
  return {n, static_cast<double>(m), offset,
          static_cast<double>(sd::sum_lanes(d, squares)) - offset * (offset * n)};
}

// One sweep about a guess of the mean. Where the guess is further than one standard deviation from
// the mean, the squares it adds would cost accuracy: then a second sweep, about the mean itself. Of
// rows of independent elements one in 200 needs it.
template <Kind kKind, bool kFused, class T>
HWY_INLINE Moments block_moments(const ForwardRow<T>& row, std::size_t begin, std::size_t end) {
  if constexpr (kKind == Kind::rms) {
    return moments_about<kKind, kFused, T>(row, begin, end, 0);
  } else {
    const auto guess = sample_mean<kFused>(row, begin, end);
    const Moments moments = moments_about<kKind, kFused>(row, begin, end, guess);
    if (!(moments.offset * (moments.offset * moments.count) > moments.squares)) return moments;
    const auto mean = static_cast<Compute<T>>(moments.anchor + moments.offset);
    return moments_about<kKind, kFused>(row, begin, end, mean);
  }
}

// ---- y -------------------------------------------------------------------------------------

// What the elements of y are made with.
template <class T>
struct Weights {
  const Compute<T>* gamma = nullptr;
  const Compute<T>* beta = nullptr;  // null: 0
  bool round_before = false;
};

template <Kind kKind, class T, class D, class V = hn::Vec<D>>
HWY_INLINE V xhat_of(D d, V h, V mean, V delta, V rstd, bool round_before) {
  if constexpr (kKind == Kind::layer) h = hn::Sub(hn::Sub(h, mean), delta);
  h = hn::Mul(h, rstd);
  if constexpr (kKind == Kind::rms && sd::template kIs16<T>) {
    if (round_before) h = sd::template round_to<T>(d, h);
  }
  return h;
}

// Columns [begin, end) of `row`, to y and sum, which point at column `begin`. kStream: both are
// aligned for it.
template <Kind kKind, bool kFused, bool kStream, class T>
void write_columns(const ForwardRow<T>& row, const Weights<T>& w, std::size_t begin,
                   std::size_t end, T* y, T* sum) {
  constexpr std::size_t kVectors = sd::template kPack<T>;
  const hn::ScalableTag<Compute<T>> d;
  using V = hn::Vec<decltype(d)>;
  const std::size_t lanes = hn::Lanes(d);
  const ForwardRow<T> r = row;  // copies that no store below can change
  const Weights<T> weights = w;
  const auto mean = hn::Set(d, r.mean);
  const auto delta = hn::Set(d, r.delta);
  const auto rstd = hn::Set(d, r.rstd);
  const bool has_beta = kKind == Kind::layer && weights.beta != nullptr;
  const auto put = [&](const V* pack, T* p) HWY_ATTR {
    if constexpr (kStream) {
      sd::stream_pack(pack, d, p);
    } else {
      sd::store_pack(pack, d, p);
    }
  };
  std::size_t i = begin;
  for (; i + kVectors * lanes <= end; i += kVectors * lanes) {
    if (i % kFetchColumns<T> == 0) {
      sd::prefetch(r.x + r.next_x + i);
      if constexpr (kFused) sd::prefetch(r.residual + r.next_residual + i);
    }
    V h[kVectors];
    load_h<kFused>(d, r, i, h);
    if constexpr (kFused) put(h, sum + (i - begin));
    for (std::size_t k = 0; k < kVectors; ++k) {
      const std::size_t c = i + k * lanes;
      h[k] = xhat_of<kKind, T>(d, h[k], mean, delta, rstd, weights.round_before);
      const auto gamma = sd::load(d, weights.gamma + c);
      h[k] =
          has_beta ? hn::MulAdd(h[k], gamma, sd::load(d, weights.beta + c)) : hn::Mul(h[k], gamma);
    }
    put(h, y + (i - begin));
  }
  for (; i < end; i += lanes) {
    const std::size_t n = std::min(lanes, end - i);
    auto h = load_h_tail<kFused>(d, r, i, n);
    if constexpr (kFused) sd::store_some(h, d, sum + (i - begin), n);
    h = xhat_of<kKind, T>(d, h, mean, delta, rstd, weights.round_before);
    const auto gamma = sd::load_some(d, weights.gamma + i, n);
    h = has_beta ? hn::MulAdd(h, gamma, sd::load_some(d, weights.beta + i, n)) : hn::Mul(h, gamma);
    sd::store_some(h, d, y + (i - begin), n);
  }
}

// As write_columns, at most a strip; past the cache when `stream`, where need be by way of a
// buffer that is aligned as y and sum are not.
template <Kind kKind, bool kFused, class T>
void write_strip(const ForwardRow<T>& row, const Weights<T>& weights, std::size_t begin,
                 std::size_t end, bool stream) {
  T* const y = row.y + begin;
  T* const sum = kFused ? row.sum + begin : nullptr;
  if (!stream || !sd::kCanStream) {
    write_columns<kKind, kFused, false>(row, weights, begin, end, y, sum);
  } else if (sd::is_pack_aligned(y) && (!kFused || sd::is_pack_aligned(sum))) {
    write_columns<kKind, kFused, true>(row, weights, begin, end, y, sum);
  } else {
    alignas(64) T aligned_y[kMostStripColumns];
    alignas(64) T aligned_sum[kFused ? kMostStripColumns : 1];
    write_columns<kKind, kFused, false>(row, weights, begin, end, aligned_y, aligned_sum);
    if constexpr (kFused) sd::stream_copy(aligned_sum, sum, end - begin);
    sd::stream_copy(aligned_y, y, end - begin);
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

template <class T, Kind kKind, bool kFused>
void write_range(const ForwardJob& job, const ForwardRow<T>* rows, std::int64_t count,
                 std::size_t begin, std::size_t end) {
  const Weights<T> weights = weights_of<T>(job);
  for (std::size_t i = begin; i < end; i += strip_columns<T>()) {
    const std::size_t stop = std::min(end, i + strip_columns<T>());
    for (std::int64_t r = 0; r < count; ++r) {
      write_strip<kKind, kFused>(rows[r], weights, i, stop, job.stream);
    }
  }
}

// Statistics of every row of a group, then y of all of them strip by strip, so that the strip of
// gamma and beta comes from L1 for all rows but the first.
template <class T, Kind kKind, bool kFused>
void run_group(const ForwardJob& job, std::int64_t first, std::int64_t count, std::int64_t ahead) {
  const auto cols = static_cast<std::size_t>(job.p.cols);
  ForwardRow<T> rows[kMostRows];
  std::int64_t sound = 0;
  for (std::int64_t row = first; row < first + count; ++row) {
    ForwardRow<T>& r = rows[sound];
    set_row(job, row, ahead, &r);
    Moments moments;
    for (std::size_t c = 0; c < cols; c += block_columns<T>()) {
      const std::size_t end = std::min(cols, c + block_columns<T>());
      moments = merge(moments, block_moments<kKind, kFused>(r, c, end));
    }
    const RowStatistics statistics = forward_finish<Compute<T>>(job, row, moments);
    if (statistics.sound) {
      set_statistics(statistics, &r);
      ++sound;
    } else {
      forward_rescue(job, row);
    }
  }
  write_range<T, kKind, kFused>(job, rows, sound, 0, cols);
}

void rows_of(const ForwardJob& job, std::int64_t begin, std::int64_t end) {
  specialize(job, [&]<class T, Kind kKind, bool kFused>() {
    const std::int64_t group = forward_group_rows(job);
    for (std::int64_t row = begin; row < end; row += group) {
      const std::int64_t count = std::min(group, end - row);
      // Rows past the last are never fetched: there may be no memory there.
      const std::int64_t ahead = row + 2 * group <= end ? group : 0;
      run_group<T, kKind, kFused>(job, row, count, ahead);
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
    set_row(job, row, 0, &r);
    *moments = block_moments<kKind, kFused>(r, begin, end);
  });
}

void write_of(const ForwardJob& job, std::int64_t row, std::int64_t begin, std::int64_t end,
              const RowStatistics& statistics) {
  specialize(job, [&]<class T, Kind kKind, bool kFused>() {
    ForwardRow<T> r;
    set_row(job, row, 0, &r);
    set_statistics(statistics, &r);
    write_range<T, kKind, kFused>(job, &r, 1, static_cast<std::size_t>(begin),
                                  static_cast<std::size_t>(end));
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
