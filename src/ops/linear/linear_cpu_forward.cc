// The forward of linear in vectors: see linear_cpu.h.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "ops/linear/linear_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/linear/linear_cpu_forward.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "cpu/simd.h"
#include "ops/linear/linear_cpu_panel.h"
#include "ops/linear/linear_cpu_source.h"

HWY_BEFORE_NAMESPACE();
namespace touchstone::linear_layer::HWY_NAMESPACE {

// The sums of kX rows of x by kRows rows of W.
template <std::size_t kX, std::size_t kRows, class C>
using Sums = hn::Vec<Tag<C>>[kX][kRows];

// Weights from memory are prefetched whole tiles of rows ahead: for every row that is read, the
// same columns of a later tile. Weights that were decoded beforehand are in the cache.
struct FromMemory {
  std::size_t ahead;  // bytes
  HWY_INLINE void prefetch(const std::byte* from, std::size_t bytes) const {
    constexpr std::size_t kLine = 64;
    for (std::size_t byte = 0; byte < bytes; byte += kLine) sd::prefetch(from + ahead + byte);
  }
};
struct FromCache {
  HWY_INLINE void prefetch(const std::byte* /*from*/, std::size_t /*bytes*/) const {}
};

// Columns [begin, end) of plain weights, the last ones of a row too.
template <std::size_t kX, std::size_t kRows, class Source, class Fetch,
          class C = typename Source::C>
HWY_INLINE void add_columns(const Source& source, const std::byte* const* w, const C* const* x,
                            std::size_t begin, std::size_t end, const Fetch& fetch,
                            Sums<kX, kRows, C>& sums) {
  const Tag<C> d;
  using Vector = hn::Vec<Tag<C>>;
  std::size_t i = begin;
  for (; i + Source::kColumns <= end; i += Source::kColumns) {
    Vector pack[kRows][Source::kVectors];
    HWY_UNROLL(8)
    for (std::size_t o = 0; o < kRows; ++o) {
      source.load(w[o], i, pack[o]);
      fetch.prefetch(w[o] + source.offset(i), source.offset(Source::kColumns));
    }
    HWY_UNROLL(8)
    for (std::size_t v = 0; v < Source::kVectors; ++v) {
      HWY_UNROLL(8)
      for (std::size_t r = 0; r < kX; ++r) {
        const Vector value = hn::LoadU(d, x[r] + i + v * kLanes<C>);
        HWY_UNROLL(8)
        for (std::size_t o = 0; o < kRows; ++o) {
          sums[r][o] = hn::MulAdd(pack[o][v], value, sums[r][o]);
        }
      }
    }
  }
  for (; i < end; i += kLanes<C>) {
    const std::size_t n = std::min(kLanes<C>, end - i);
    HWY_UNROLL(8)
    for (std::size_t o = 0; o < kRows; ++o) {
      const Vector weight = source.load_some(w[o], i, n);
      HWY_UNROLL(8)
      for (std::size_t r = 0; r < kX; ++r) {
        sums[r][o] = hn::MulAdd(weight, hn::LoadU(d, x[r] + i), sums[r][o]);
      }
    }
  }
}

// The same of weights in blocks: begin and end are borders of blocks.
template <std::size_t kX, std::size_t kRows, class Source, class Fetch,
          class C = typename Source::C>
HWY_INLINE void add_blocks(const Source& source, const std::byte* const* w, const C* const* x,
                           std::size_t begin, std::size_t end, const Fetch& fetch,
                           Sums<kX, kRows, C>& sums) {
  const Tag<C> d;
  for (std::size_t i = begin; i < end; i += Source::kBlockColumns) {
    typename Source::Block block[kRows];
    HWY_UNROLL(8)
    for (std::size_t o = 0; o < kRows; ++o) {
      block[o] = source.block(w[o], i);
      fetch.prefetch(w[o] + source.offset(i), Source::kBlockBytes);
    }
    unrolled<Source::kBlockColumns / Source::kColumns>(
        [&]<std::size_t kI>() TOUCHSTONE_INLINE_LAMBDA {
          constexpr std::size_t kWithin = kI * Source::kColumns;
          HWY_UNROLL(8)
          for (std::size_t o = 0; o < kRows; ++o) {
            hn::Vec<Tag<C>> pack[Source::kVectors];
            source.template decode<kWithin>(block[o], pack);
            HWY_UNROLL(8)
            for (std::size_t v = 0; v < Source::kVectors; ++v) {
              HWY_UNROLL(8)
              for (std::size_t r = 0; r < kX; ++r) {
                const auto value = hn::LoadU(d, x[r] + i + kWithin + v * kLanes<C>);
                sums[r][o] = hn::MulAdd(pack[v], value, sums[r][o]);
              }
            }
          }
        });
  }
}

// Adds to totals[r][o] the product of columns [begin, end) of kX rows of x and kRows rows of W.
template <std::size_t kX, std::size_t kRows, class Source, class Fetch,
          class C = typename Source::C>
HWY_INLINE void add_products(const Source& source, const std::byte* const* w, const C* const* x,
                             std::size_t begin, std::size_t end, const Fetch& fetch,
                             C (&totals)[kMaxX][kW]) {
  const Tag<C> d;
  Sums<kX, kRows, C> sums;
  for (auto& row : sums) {
    for (auto& sum : row) sum = hn::Zero(d);
  }
  if constexpr (Source::kBlocks) {
    add_blocks<kX, kRows>(source, w, x, begin, end, fetch, sums);
  } else {
    add_columns<kX, kRows>(source, w, x, begin, end, fetch, sums);
  }
  HWY_UNROLL(8)
  for (std::size_t r = 0; r < kX; ++r) {
    HWY_UNROLL(8)
    for (std::size_t o = 0; o < kRows; ++o) totals[r][o] += sd::sum_lanes(d, sums[r][o]);
  }
}

// Rows of x from `r` on; the last stands in for those past the end.
template <class C>
HWY_INLINE void x_rows(const ForwardJob& job, std::int64_t r, const C* (&x)[kMaxX]) {
  for (std::size_t i = 0; i < kMaxX; ++i) {
    const std::int64_t row = std::min(r + static_cast<std::int64_t>(i), job.rows - 1);
    x[i] = static_cast<const C*>(job.x) + row * job.x_stride;
  }
}

// Rows of W in a tile, read side by side: as few streams of memory as hide the latency of the sums.
// Loads of two vectors have two products for each row of x, others have one.
template <class Source, std::size_t kX>
constexpr std::size_t tile_rows() {
  return !Source::kBlocks && Source::kVectors == 2 && kX <= 2 ? 2 : kW;
}

// Rows of W from `o` on of a panel, from end to end, by kX rows of x from `first` on.
template <std::size_t kX, std::size_t kRows, class Source, class C>
HWY_INLINE void direct_tile(const Source& source, const ForwardJob& job, const Panel& panel,
                            std::int64_t o, std::int64_t first, FromMemory fetch, C* totals) {
  const auto in = static_cast<std::size_t>(job.p->in);
  const std::byte* w[kRows];
  for (std::size_t i = 0; i < kRows; ++i) {
    w[i] = panel.row(*job.p, std::min(o + static_cast<std::int64_t>(i), panel.rows - 1));
  }
  const C* x[kMaxX];
  x_rows(job, first, x);
  C sums[kMaxX][kW] = {};
  for (std::size_t begin = 0; begin < in; begin += kSegment) {
    const std::size_t end = std::min<std::size_t>(in, begin + kSegment);
    add_products<kX, kRows>(source, w, x, begin, end, fetch, sums);
  }
  const std::int64_t rows = std::min<std::int64_t>(kX, job.rows - first);
  for (std::int64_t r = 0; r < rows; ++r) {
    C* const to = totals + (first + r) * kPanel + o;
    for (std::size_t i = 0; i < kRows && o + static_cast<std::int64_t>(i) < panel.rows; ++i) {
      to[i] = sums[r][i];
    }
  }
}

// Few rows: every weight is read from memory once, and decoded for kX rows of x at a time.
template <std::size_t kX, class Source, class C = typename Source::C>
HWY_INLINE void direct_rows(const Source& source, const ForwardJob& job, const Panel& panel,
                            C* totals) {
  constexpr std::size_t kRows = tile_rows<Source, kX>();
  const std::size_t ahead =
      prefetch_distance(kRows * static_cast<std::size_t>(job.p->weight.row_bytes));
  for (std::int64_t o = 0; o < panel.rows; o += kRows) {
    for (std::int64_t first = 0; first < job.rows; first += kX) {
      // Once: after that the lines are there, and a kernel without prefetches would be compiled for
      // nothing.
      direct_tile<kX, kRows>(source, job, panel, o, first, {first == 0 ? ahead : 0}, totals);
    }
  }
}

template <class Source, class C = typename Source::C>
HWY_NOINLINE void direct_panel(const Source& source, const ForwardJob& job, const Panel& panel,
                               C* totals) {
  if (job.rows == 1) return direct_rows<1>(source, job, panel, totals);
  // Not for blocks, which would take long to compile.
  if constexpr (kMaxX > 4 && !Source::kBlocks) {
    // Seven and eight rows are two passes of four.
    const bool fours = job.rows <= 4 || job.rows == 7 || job.rows == 8;
    if (!fours) return direct_rows<kMaxX>(source, job, panel, totals);
  }
  if constexpr (kMaxX >= 4) {
    if (job.rows > 2) return direct_rows<4>(source, job, panel, totals);
  }
  direct_rows<2>(source, job, panel, totals);
}

// ---- decoded panels -----------------------------------------------------------------------------

// Columns [begin, end) of a row of W, in the order of the source, zeros up to a whole vector.
template <class Source, class C>
HWY_INLINE void decode_row(const Source& source, const std::byte* row, std::size_t begin,
                           std::size_t end, C* to) {
  const Tag<C> d;
  const auto store = [&](const hn::Vec<Tag<C>>* pack, std::size_t column) HWY_ATTR {
    for (std::size_t v = 0; v < Source::kVectors; ++v) {
      hn::StoreU(pack[v], d, to + (column - begin) + v * kLanes<C>);
    }
  };
  hn::Vec<Tag<C>> pack[Source::kVectors];
  std::size_t i = begin;
  if constexpr (Source::kBlocks) {
    for (; i < end; i += Source::kBlockColumns) {
      const typename Source::Block block = source.block(row, i);
      unrolled<Source::kBlockColumns / Source::kColumns>(
          [&]<std::size_t kI>() TOUCHSTONE_INLINE_LAMBDA {
            source.template decode<kI * Source::kColumns>(block, pack);
            store(pack, i + kI * Source::kColumns);
          });
    }
  } else {
    for (; i + Source::kColumns <= end; i += Source::kColumns) {
      source.load(row, i, pack);
      store(pack, i);
    }
    for (; i < end; i += kLanes<C>) {
      hn::StoreU(source.load_some(row, i, std::min(kLanes<C>, end - i)), d, to + (i - begin));
    }
  }
}

// Formats without a source: the format's own decoder.
HWY_INLINE void decode_row(const WeightFormat& format, const std::byte* row, std::size_t begin,
                           std::size_t end, float* to) {
  const auto block = static_cast<std::size_t>(format.block_elements);
  const auto bytes = static_cast<std::size_t>(format.block_bytes);
  format.decode(row + begin / block * bytes, static_cast<std::int64_t>((end - begin) / block), to);
  const std::size_t padded = (end - begin + kLanes<float> - 1) / kLanes<float> * kLanes<float>;
  std::fill(to + (end - begin), to + padded, 0.0F);
}

// Calls add_products with as many rows of x at a time as `rows` are left, at most kMaxX; where
// there is no kernel for as few, the last row stands in for those missing. Returns the rows that
// were added.
template <class C>
HWY_INLINE std::size_t add_decoded(const Plain<C>& source, const std::byte* const* w,
                                   const C* const* x, std::size_t rows, std::size_t end,
                                   C (&totals)[kMaxX][kW]) {
  if constexpr (kMaxX > 4) {
    if (rows > 4) {
      add_products<kMaxX, kW>(source, w, x, 0, end, FromCache(), totals);
      return std::min(rows, kMaxX);
    }
  }
  if constexpr (kMaxX >= 4) {
    if (rows > 2) {
      add_products<4, kW>(source, w, x, 0, end, FromCache(), totals);
      return std::min<std::size_t>(rows, 4);
    }
  }
  if (rows > 1) {
    add_products<2, kW>(source, w, x, 0, end, FromCache(), totals);
    return 2;
  }
  add_products<1, kW>(source, w, x, 0, end, FromCache(), totals);
  return 1;
}

// All rows of x against columns [begin, end) of the panel, which are decoded in `weights`.
template <class C>
HWY_INLINE void add_segment(const ForwardJob& job, const Panel& panel, const C* weights,
                            std::size_t begin, std::size_t end, C* totals) {
  const Plain<C> source(*job.p->weight.format);
  const std::size_t padded = (end - begin + kLanes<C> - 1) / kLanes<C> * kLanes<C>;
  for (std::int64_t r = 0; r < job.rows;) {
    const C* x[kMaxX];
    x_rows(job, r, x);
    for (const C*& row : x) row += begin;
    const auto left = static_cast<std::size_t>(job.rows - r);
    std::size_t done = 0;
    for (std::int64_t o = 0; o < panel.rows; o += kW) {
      const std::byte* w[kW];
      for (std::size_t i = 0; i < kW; ++i) {
        const std::int64_t row = std::min(o + static_cast<std::int64_t>(i), panel.rows - 1);
        w[i] = reinterpret_cast<const std::byte*>(weights + row * kPanelStride);
      }
      C sums[kMaxX][kW] = {};
      done = add_decoded(source, w, x, left, padded, sums);
      for (std::size_t i = 0; i < done; ++i) {
        C* const to = totals + (r + static_cast<std::int64_t>(i)) * kPanel + o;
        for (std::size_t k = 0; k < kW && o + static_cast<std::int64_t>(k) < panel.rows; ++k) {
          to[k] += sums[i][k];
        }
      }
    }
    r += static_cast<std::int64_t>(done);
  }
}

// Many rows: a segment of the panel is decoded once for all of them.
template <class Decoder, class C>
HWY_NOINLINE void decoded_panel(const Decoder& decoder, const ForwardJob& job, const Panel& panel,
                                C* weights, C* totals) {
  const auto in = static_cast<std::size_t>(job.p->in);
  std::fill_n(totals, job.rows * kPanel, C{0});
  const auto row_bytes = static_cast<std::size_t>(job.p->weight.row_bytes);
  for (std::size_t begin = 0; begin < in; begin += kSegment) {
    const std::size_t end = std::min<std::size_t>(in, begin + kSegment);
    // While a segment is multiplied the next one comes: of these rows, or of the next panel.
    const std::size_t next = end < in ? end : 0;
    const std::size_t next_byte = next * row_bytes / in;
    const std::size_t bytes = std::min<std::size_t>(in - next, kSegment) * row_bytes / in;
    const FromMemory fetch{next_byte + (end < in ? 0 : at(panel_columns(*job.p)) * row_bytes)};
    for (std::int64_t o = 0; o < panel.rows; ++o) {
      fetch.prefetch(panel.row(*job.p, o), bytes);
      decode_row(decoder, panel.row(*job.p, o), begin, end, weights + o * kPanelStride);
    }
    add_segment(job, panel, weights, begin, end, totals);
  }
}

// Whether W is decoded for every few rows of x, rather than a panel of it once for all of them:
// where decoding is cheap and x stays in the cache, or rows are few.
template <class Source>
bool is_direct(const ForwardJob& job) {
  const auto rows = static_cast<std::size_t>(job.rows);
  const std::size_t x_bytes =
      rows * static_cast<std::size_t>(job.x_stride) * sizeof(typename Source::C);
  return rows <= 2 * kMaxDirectX ||
         (!Source::kBlocks && kManyRegisters && x_bytes <= tuning::kDirectBytes);
}

void forward_panel(const ForwardJob& job, std::int64_t number, void* scratch) {
  const WeightFormat& format = *job.p->weight.format;
  const Panel panel(*job.p, number);
  const auto run = [&]<class Source, class C>() {
    C* const weights = static_cast<C*>(scratch);
    C* const totals = weights + kPanel * kPanelStride;
    if constexpr (std::is_void_v<Source>) {
      decoded_panel(format, job, panel, weights, totals);
    } else {
      const Source source(format);
      if (is_direct<Source>(job)) {
        direct_panel(source, job, panel, totals);
      } else {
        decoded_panel(source, job, panel, weights, totals);
      }
    }
    store_panel(job, panel, totals);
  };
  visit_source(format, [&]<class Source>() {
    if constexpr (std::is_void_v<Source>) {
      run.template operator()<Source, float>();
    } else {
      run.template operator()<Source, typename Source::C>();
    }
  });
}

// One row of x in the order of the source, zeros after it.
double widen_row(const Forward& p, std::int64_t row, void* to, std::int64_t stride) {
  const auto in = static_cast<std::size_t>(p.in);
  double scale = 1;
  visit_source(*p.weight.format, [&]<class Source>() {
    visit_float_dtype(p.dtype, [&]<class T>() {
      using C = std::conditional_t<std::is_same_v<T, double>, double, float>;
      const Tag<C> d;
      const T* const from = static_cast<const T*>(p.x.data) + row * p.x.stride;
      C* const values = static_cast<C*>(to);
      std::size_t i = 0;
      for (; i + kLanes<C> <= in; i += kLanes<C>) hn::StoreU(sd::load(d, from + i), d, values + i);
      for (; i < in; ++i) values[i] = convert<C>(from[i]);
      std::fill(values + in, values + stride, C{0});
      if (p.int8_activations) scale = static_cast<double>(round_to_int8(values, p.in));
      if constexpr (!std::is_void_v<Source>) {
        sd::to_pack_order<typename Source::Order>(values, in);
      }
    });
  });
  return scale;
}

}  // namespace touchstone::linear_layer::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace touchstone::linear_layer {

HWY_EXPORT(forward_panel);
HWY_EXPORT(widen_row);

void run_panel(const ForwardJob& job, std::int64_t panel, void* scratch) {
  HWY_DYNAMIC_DISPATCH(forward_panel)(job, panel, scratch);
}
double prepare_row(const Forward& p, std::int64_t row, void* to, std::int64_t stride) {
  return HWY_DYNAMIC_DISPATCH(widen_row)(p, row, to, stride);
}

}  // namespace touchstone::linear_layer
#endif
