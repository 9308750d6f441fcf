// The loop over columns of the forward: one span of a row is written while a span of another is
// summed. No #pragma once: read once per target, after cpu/simd.h.
#include <algorithm>
#include <cstddef>

#include "ops/norm/norm_cpu.h"
#include "ops/norm/norm_row.h"

#if defined(TOUCHSTONE_NORM_CPU_FORWARD_LOOP_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TOUCHSTONE_NORM_CPU_FORWARD_LOOP_H_
#undef TOUCHSTONE_NORM_CPU_FORWARD_LOOP_H_
#else
#define TOUCHSTONE_NORM_CPU_FORWARD_LOOP_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace touchstone::norm::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace sd = touchstone::simd::HWY_NAMESPACE;

// Terms of a running sum of squares before it is added to a wider one. Not for speed: on a row that
// sits on a coarse grid (mean = 1e4 sigma, say) the low bits of squares are far from random (k^2
// mod 8 is 0, 1 or 4), and a long sum rounds them away in one direction: 5e-7 of the variance
// after 64 terms, 8e-6 after 1024.
constexpr std::size_t kRunTerms = 16;

template <class T>
std::size_t run_columns() {
  return kRunTerms * 4 * hn::Lanes(hn::ScalableTag<Compute<T>>());
}

// Columns that are taken in one call, 4 KB of x on AVX-512: enough that what is done between two
// calls is little, few enough that they stay in L1 beside weight and bias.
template <class T>
std::size_t span_columns() {
  return run_columns<T>() * (sizeof(Compute<T>) / sizeof(T));
}
// With the longest vectors Highway has on x86, 64 bytes.
constexpr std::size_t kMaxSpanColumns = 2 * kRunTerms * 4 * 16;

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

// ---- the loop --------------------------------------------------------------------------------

// Columns of a row of y to be written: xhat = (h - mean) * rstd + shift.
template <class T>
struct WriteSpan {
  const T* x = nullptr;
  const T* residual = nullptr;  // null: none, and no sum
  const Compute<T>* weight = nullptr;
  const Compute<T>* bias = nullptr;
  T* y = nullptr;
  T* sum = nullptr;
  std::size_t columns = 0;
  Compute<T> mean = 0;
  Compute<T> rstd = 0;
  Compute<T> shift = 0;
  bool round_before = false;
  bool stream = false;  // y and sum are aligned for it
};

// Columns of a row to be summed, at most a span, and what is to be fetched meanwhile, column by
// column.
template <class T>
struct SumSpan {
  const T* x = nullptr;
  const T* residual = nullptr;
  const T* fetch_x = nullptr;
  const T* fetch_residual = nullptr;
  std::size_t columns = 0;
  Compute<T> about = 0;
};

// Sums of h - m and (h - m)^2, one per lane; m is 0 for RMS, which needs squares only.
template <class T>
struct LaneSums {
  alignas(64) Compute<T> sum[hn::MaxLanes(hn::ScalableTag<Compute<T>>())] = {};
  alignas(64) Compute<T> squares[hn::MaxLanes(hn::ScalableTag<Compute<T>>())] = {};
};

// Running sums. Four of each hide the latency of addition.
template <Kind kKind, bool kFused, class T>
struct Sums {
  hn::ScalableTag<Compute<T>> d;
  using V = hn::Vec<decltype(d)>;
  V m, s0, s1, s2, s3, q0, q1, q2, q3;  // no arrays: compilers would keep those in memory

  HWY_INLINE explicit Sums(Compute<T> about) : m(hn::Set(d, about)) { clear(); }
  HWY_INLINE void clear() { s0 = s1 = s2 = s3 = q0 = q1 = q2 = q3 = hn::Zero(d); }
  HWY_INLINE void add(V h, V& s, V& q) const {
    if constexpr (kKind == Kind::layer) {
      h = hn::Sub(h, m);
      s = hn::Add(s, h);
    }
    q = hn::MulAdd(h, h, q);
  }
  // Four vectors, from column i on.
  HWY_INLINE void add_four(const SumSpan<T>& run, std::size_t i) {
    constexpr std::size_t kVectors = sd::template kPack<T>;
    V h[4];
    for (std::size_t k = 0; k < 4; k += kVectors) {
      const std::size_t c = i + k * hn::Lanes(d);
      if (c % kPrefetchColumns<T> == 0) {
        sd::prefetch(run.fetch_x + c);
        if constexpr (kFused) sd::prefetch(run.fetch_residual + c);
      }
      load_h<kFused>(d, run.x, run.residual, c, h + k);
    }
    add(h[0], s0, q0);
    add(h[1], s1, q1);
    add(h[2], s2, q2);
    add(h[3], s3, q3);
  }
  HWY_INLINE void add_to(LaneSums<T>* sums) const {
    const auto s = hn::Add(hn::Add(s0, s1), hn::Add(s2, s3));
    const auto q = hn::Add(hn::Add(q0, q1), hn::Add(q2, q3));
    hn::Store(hn::Add(hn::Load(d, sums->sum), s), d, sums->sum);
    hn::Store(hn::Add(hn::Load(d, sums->squares), q), d, sums->squares);
  }
};

template <Kind kKind, bool kFused, class T>
struct Writer {
  hn::ScalableTag<Compute<T>> d;
  using V = hn::Vec<decltype(d)>;
  V mean, rstd, shift;

  HWY_INLINE explicit Writer(const WriteSpan<T>& run)
      : mean(hn::Set(d, run.mean)), rstd(hn::Set(d, run.rstd)), shift(hn::Set(d, run.shift)) {}
  HWY_INLINE V xhat(V h, bool round_before) const {
    if constexpr (kKind == Kind::layer) return hn::MulAdd(hn::Sub(h, mean), rstd, shift);
    h = hn::Mul(h, rstd);
    if constexpr (sd::template kIs16<T>) {
      if (round_before) h = sd::template round_to<T>(d, h);
    }
    return h;
  }
  HWY_INLINE void put(const V* pack, T* p, bool stream) const {
    if (sd::kCanStream && stream) {
      sd::stream_pack(pack, d, p);
    } else {
      sd::store_pack(pack, d, p);
    }
  }
  // One pack, at column i.
  HWY_INLINE void write_pack(const WriteSpan<T>& run, std::size_t i) const {
    V h[sd::template kPack<T>];
    load_h<kFused>(d, run.x, run.residual, i, h);
    if constexpr (kFused) put(h, run.sum + i, run.stream);
    for (std::size_t k = 0; k < sd::template kPack<T>; ++k) {
      const std::size_t c = i + k * hn::Lanes(d);
      h[k] = xhat(h[k], run.round_before);
      if constexpr (kKind == Kind::layer) {
        h[k] = hn::MulAdd(h[k], sd::load(d, run.weight + c), sd::load(d, run.bias + c));
      } else {
        h[k] = hn::Mul(h[k], sd::load(d, run.weight + c));
      }
    }
    put(h, run.y + i, run.stream);
  }
};

// The tails: columns from i on, fewer than four vectors. Functions of their own, as is the loop
// below: compiled once for each T, kind and kFused and not wherever they are called, and small,
// since under sanitizers the time to compile grows faster than they do.
template <Kind kKind, bool kFused, class T>
HWY_NOINLINE void sum_tail(const SumSpan<T>& run, std::size_t i, LaneSums<T>* lane_sums) {
  Sums<kKind, kFused, T> sums(run.about);
  const std::size_t lanes = hn::Lanes(sums.d);
  for (; i < run.columns; i += lanes) {
    const std::size_t n = std::min(lanes, run.columns - i);
    // Lanes past the end hold m, so that they add nothing.
    const auto h = load_h_tail<kFused>(sums.d, run.x, run.residual, i, n);
    sums.add(hn::IfThenElse(hn::FirstN(sums.d, n), h, sums.m), sums.s0, sums.q0);
  }
  sums.add_to(lane_sums);
}

template <Kind kKind, bool kFused, class T>
HWY_NOINLINE void write_tail(const WriteSpan<T>& run, std::size_t i) {
  const Writer<kKind, kFused, T> writer(run);
  const auto d = writer.d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t pack = sd::template kPack<T> * lanes;
  for (; i + pack <= run.columns; i += pack) writer.write_pack(run, i);
  for (; i < run.columns; i += lanes) {
    const std::size_t n = std::min(lanes, run.columns - i);
    auto h = load_h_tail<kFused>(d, run.x, run.residual, i, n);
    if constexpr (kFused) sd::store_some(h, d, run.sum + i, n);
    h = writer.xhat(h, run.round_before);
    const auto w = sd::load_some(d, run.weight + i, n);
    if constexpr (kKind == Kind::layer) {
      h = hn::MulAdd(h, w, sd::load_some(d, run.bias + i, n));
    } else {
      h = hn::Mul(h, w);
    }
    sd::store_some(h, d, run.y + i, n);
  }
}

// Writes one span and sums another, four vectors of each at a time, so that memory is read and
// written at the same time. Either may be empty.
template <Kind kKind, bool kFused, class T>
HWY_NOINLINE void write_and_sum(const WriteSpan<T>& to_write, const SumSpan<T>& to_sum,
                                LaneSums<T>* lane_sums) {
  const WriteSpan<T> write = to_write;  // copies that no store below can change, in registers
  const SumSpan<T> sum = to_sum;
  const Writer<kKind, kFused, T> writer(write);
  Sums<kKind, kFused, T> sums(sum.about);
  const std::size_t lanes = hn::Lanes(sums.d);
  const std::size_t written = write.columns / (4 * lanes) * (4 * lanes);
  const std::size_t summed = sum.columns / (4 * lanes) * (4 * lanes);
  const std::size_t end = std::max(written, summed);
  for (std::size_t i = 0; i < end; i += 4 * lanes) {
    if (i < summed) {
      sums.add_four(sum, i);
      if ((i + 4 * lanes) % run_columns<T>() == 0 || i + 4 * lanes == summed) {
        sums.add_to(lane_sums);
        sums.clear();
      }
    }
    if (i < written) {
      for (std::size_t k = 0; k < 4; k += sd::template kPack<T>) {
        writer.write_pack(write, i + k * lanes);
      }
    }
  }
  if (summed < sum.columns) sum_tail<kKind, kFused>(to_sum, summed, lane_sums);
  if (written < write.columns) write_tail<kKind, kFused>(to_write, written);
}

// The same, dispatched on kind and residual.
template <class T>
void do_spans(Kind kind, const WriteSpan<T>& write, const SumSpan<T>& sum, LaneSums<T>* lane_sums) {
  const bool fused = write.residual != nullptr || sum.residual != nullptr;
  if (kind == Kind::layer) {
    if (fused) {
      write_and_sum<Kind::layer, true>(write, sum, lane_sums);
    } else {
      write_and_sum<Kind::layer, false>(write, sum, lane_sums);
    }
  } else {
    if (fused) {
      write_and_sum<Kind::rms, true>(write, sum, lane_sums);
    } else {
      write_and_sum<Kind::rms, false>(write, sum, lane_sums);
    }
  }
}

}  // namespace touchstone::norm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
