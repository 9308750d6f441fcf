// The forward of linear with int8 activations and W in codes: see linear_cpu.h. The sum of codes times
// integers over the columns of a scale is an integer, exact in any order; the lanes of a vector are rows
// of W, and a lane adds scale times sum in f32, group after group, in segments.
//
// Few rows of x: codes are multiplied as they are stored, and lanes of the products are added. More
// rows: codes are unpacked so that a lane of four bytes is a row of W, once for all rows of x.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "ops/linear/linear_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/linear/linear_cpu_int8.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "cpu/simd.h"
#include "ops/linear/linear_cpu_panel.h"
#include "ops/linear/linear_cpu_ternary_tile.h"
#include "ops/linear/linear_cpu_tile.h"

HWY_BEFORE_NAMESPACE();
namespace touchstone::linear_layer::HWY_NAMESPACE {

#if TOUCHSTONE_LINEAR_BLOCKS

// A row of x: integers, 32 by 32 columns in the order of the codes, then for every scale what the sum of
// its integers contributes: as f32 for formats with a minimum, else minus the offset of the codes times it.
struct Int8Row {
  const std::int8_t* q = nullptr;
  const std::byte* sums = nullptr;  // 4 bytes per group
};

HWY_INLINE Int8Row int8_row(const ForwardJob& job, std::int64_t row) {
  const auto* const at =
      static_cast<const std::byte*>(job.x) + std::min(row, job.rows - 1) * job.x_stride;
  return {.q = reinterpret_cast<const std::int8_t*>(at), .sums = at + int8_sums_offset(job.p->in)};
}
HWY_INLINE FloatVec float_sum(const std::byte* sums, std::size_t group) {
  float value = 0;
  std::memcpy(&value, sums + group * sizeof(value), sizeof(value));
  return hn::Set(FloatTag(), value);
}
HWY_INLINE IntVec int_sum(const std::byte* sums, std::size_t group) {
  std::int32_t value = 0;
  std::memcpy(&value, sums + group * sizeof(value), sizeof(value));
  return hn::Set(IntTag(), value);
}

// acc + scale * sum + min * of_x. A minimum cancels without an error of its own: what the product lost
// comes back; of an infinite scale that is NaN, which Max turns into a number. One fixed order for every
// number of rows.
template <bool kMin>
HWY_INLINE FloatVec add_group(FloatVec acc, IntVec sum, FloatVec scale, FloatVec min,
                              FloatVec of_x) {
  const FloatTag d;
  const FloatVec value = hn::ConvertTo(d, sum);
  if constexpr (!kMin) return hn::MulAdd(scale, value, acc);
  const FloatVec product = hn::Mul(scale, value);
  const FloatVec lost =
      hn::Max(hn::MulSub(scale, value, product), hn::Set(d, std::numeric_limits<float>::lowest()));
  return hn::Add(acc, hn::Add(hn::MulAdd(min, of_x, product), lost));
}

// Bytes of `columns`, about: as if blocks were homogeneous.
template <class Block>
HWY_INLINE std::size_t bytes_of(std::size_t columns) {
  return columns * Block::kBytes / Block::kElements;
}

// Bytes of scratch memory: an unpacked panel, and a copy of the rows of a tile.
inline constexpr std::size_t kTileCodes = kSegment * kTile;
inline constexpr std::size_t kTileScales = kSegment / 16 * kTile * sizeof(float);
inline constexpr std::size_t kUnpacked = kPanel / kTile * (kTileCodes + kTileScales);
inline constexpr std::size_t kCopiedRow = kSegment / 32 * 34;
static_assert(kUnpacked + kTile * kCopiedRow <= kPanel * kPanelStride * sizeof(float));

// Columns [begin, end) of rows of a panel from `o` on. Those that do not follow each other are copied to
// `scratch`; the last stands in for those past the end.
template <class Block>
HWY_INLINE TileRows tile_rows(const Forward& p, const Panel& panel, std::size_t o,
                              std::size_t begin, std::size_t end, std::byte* scratch) {
  const auto from = static_cast<std::int64_t>(o);
  const std::size_t offset = bytes_of<Block>(begin);
  if (panel.in_a_row(from, kTile)) {
    return {panel.row(p, from) + offset, static_cast<std::size_t>(p.weight.row_bytes)};
  }
  std::byte* const copy = scratch + kUnpacked;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(kTile); ++i) {
    std::memcpy(copy + i * static_cast<std::int64_t>(kCopiedRow),
                panel.row(p, std::min(from + i, panel.rows - 1)) + offset,
                bytes_of<Block>(end) - offset);
  }
  return {copy, kCopiedRow};
}

// ---- few rows --------------------------------------------------------------------------------------

// Where the prefetches of a tile begin: at a later tile. They go through that in the order of memory.
HWY_INLINE const std::byte* tile_ahead(const Forward& p, const std::byte* first) {
  const std::size_t tile = kTile * static_cast<std::size_t>(p.weight.row_bytes);
  return first + (tuning::kTilePrefetchBytes + tile - 1) / tile * tile;
}
// As much of it as a step reads.
template <class Block>
HWY_INLINE void prefetch_step(const std::byte* ahead, std::size_t column) {
  constexpr std::size_t kLine = 64;
  constexpr std::size_t kBytes =
      (kTile * kStepColumns<Block> * Block::kBytes + Block::kElements - 1) / Block::kElements;
  const std::byte* const from = ahead + column / kStepColumns<Block> * kBytes;
  for (std::size_t at = 0; at < kBytes; at += kLine) sd::prefetch(from + at);
}

// Products of the columns of a scale by kX rows of x, lane by lane, and their sums.
template <class Block, std::size_t kX>
struct GroupSums {
  // A scale of 16 columns has its sum with the batch, others with the last one.
  static constexpr bool kEachBatch = kGroup<Block> < kBlockColumns;
  static constexpr std::size_t kOpen = kEachBatch ? kSlices<Block> : kParts<Block>;

  IntVec open[kX][kOpen][4];
  IntVec of[kX][kParts<Block>];

  HWY_INLINE GroupSums() { clear(); }
  HWY_INLINE void clear() {
    for (auto& of_row : open) {
      for (auto& part : of_row) {
        for (IntVec& sum : part) sum = hn::Zero(IntTag());
      }
    }
  }
  HWY_INLINE void close(std::size_t batch) {
    for (std::size_t r = 0; r < kX; ++r) {
      for (std::size_t i = 0; i < kOpen; ++i) {
        of[r][kEachBatch ? slice_place<Block>(batch, i) : i] = add_lanes_of_four(open[r][i]);
      }
    }
    clear();
  }
};

// Adds the products of step kStep of a block, whose integers of x are from `column` on.
template <class Block, bool kVnni, std::size_t kStep, std::size_t kX>
HWY_INLINE void add_step(const Tile<Block>& tile, const Int8Row* x, std::size_t column,
                         GroupSums<Block, kX>& sums) {
  constexpr bool kSignedCodes = Block::kSigned && !kVnni;
  for (std::size_t batch = 0; batch < kBatches<Block>; ++batch) {
    for (std::size_t k = 0; k < 4; ++k) {
      const Slices<Block> codes = operands<Block, kVnni, kStep>(tile, k, batch);
      for (std::size_t r = 0; r < kX; ++r) {
        for (std::size_t i = 0; i < slice_count<Block>(batch); ++i) {
          const std::size_t at = column + 16 * slice_place<Block>(batch, i);
          IntVec& sum = sums.open[r][kParts<Block> == 1 ? 0 : i][k];
          sum = add_dot4<kVnni, kSignedCodes>(sum, codes.of[i],
                                              hn::LoadDup128(ByteTag(), x[r].q + at));
        }
      }
    }
    if constexpr (GroupSums<Block, kX>::kEachBatch) sums.close(batch);
  }
}

// Adds columns [begin, end) of kX rows of x by the rows of a tile, which start at `begin`. `ahead`: what
// is prefetched, or null.
template <class Block, std::size_t kX, bool kVnni>
HWY_INLINE void add_stored(TileRows rows, const std::byte* ahead, const Int8Row* x,
                           std::size_t begin, std::size_t end, FloatVec* totals) {
  FloatVec acc[kX];
  for (FloatVec& sum : acc) sum = hn::Zero(FloatTag());
  for (std::size_t block = begin; block < end; block += Block::kElements) {
    const Tile<Block> tile(rows);
    rows = rows.at(Block::kBytes);
    GroupSums<Block, kX> sums;
    unrolled<Block::kElements / kStepColumns<Block>>(
        [&]<std::size_t kStep>() TOUCHSTONE_INLINE_LAMBDA {
          const std::size_t column = block + kStep * kStepColumns<Block>;
          if (ahead != nullptr) prefetch_step<Block>(ahead, column);
          add_step<Block, kVnni, kStep>(tile, x, column, sums);
          if constexpr (kStep % kSteps<Block> != kSteps<Block> - 1) return;
          if constexpr (!GroupSums<Block, kX>::kEachBatch) sums.close(0);
          const TileScales<Block> scales = tile.template scales<kStep>();
          for (std::size_t r = 0; r < kX; ++r) {
            for (std::size_t i = 0; i < kParts<Block>; ++i) {
              const std::size_t group = column / kGroup<Block> + i;
              IntVec sum = sums.of[r][i];
              FloatVec of_x = hn::Zero(FloatTag());
              if constexpr (Block::kMin) {
                of_x = float_sum(x[r].sums, group);
              } else if constexpr (kCompensatedOffset<Block, kVnni> != 0) {
                sum = hn::Add(sum, int_sum(x[r].sums, group));
              }
              acc[r] = add_group<Block::kMin>(acc[r], sum, scales.scale[i], scales.min[i], of_x);
            }
          }
        });
  }
  for (std::size_t r = 0; r < kX; ++r) totals[r] = hn::Add(totals[r], acc[r]);
}

template <class Block, std::size_t kX, bool kVnni>
HWY_NOINLINE void stored_panel(const ForwardJob& job, const Panel& panel, std::byte* scratch,
                               float* totals) {
  const Forward& p = *job.p;
  const auto in = static_cast<std::size_t>(p.in);
  Int8Row x[kX];
  for (std::size_t r = 0; r < kX; ++r) x[r] = int8_row(job, static_cast<std::int64_t>(r));
  for (std::size_t o = 0; o < static_cast<std::size_t>(panel.rows); o += kTile) {
    const auto row = static_cast<std::int64_t>(o);
    const std::byte* const ahead =
        panel.in_a_row(row, kTile) ? tile_ahead(p, panel.row(p, row)) : nullptr;
    FloatVec sums[kX];
    for (FloatVec& sum : sums) sum = hn::Zero(FloatTag());
    for (std::size_t begin = 0; begin < in; begin += kSegment) {
      const std::size_t end = std::min<std::size_t>(in, begin + kSegment);
      add_stored<Block, kX, kVnni>(tile_rows<Block>(p, panel, o, begin, end, scratch), ahead, x,
                                   begin, end, sums);
    }
    for (std::size_t r = 0; r < std::min(kX, static_cast<std::size_t>(job.rows)); ++r) {
      hn::StoreU(sums[r], FloatTag(), totals + r * kPanel + o);
    }
  }
}

// ---- more rows -------------------------------------------------------------------------------------

// A segment of a tile: groups one after the other, of each a vector for every four columns; of each the
// scales of the rows and, for formats with a minimum, the minima.
struct UnpackedTile {
  std::uint8_t* codes = nullptr;
  float* scales = nullptr;
  std::size_t groups = 0;
  std::size_t vectors = 0;  // of a group
};

template <class Block, bool kVnni>
HWY_INLINE void unpack_tile(TileRows rows, std::size_t columns, const UnpackedTile& to) {
  std::uint8_t* codes = to.codes;
  float* scales = to.scales;
  const auto store = [&](FloatVec v) HWY_ATTR {
    hn::StoreU(v, FloatTag(), scales);
    scales += kTile;
  };
  for (std::size_t block = 0; block < columns; block += Block::kElements) {
    const Tile<Block> tile(rows);
    rows = rows.at(Block::kBytes);
    unrolled<Block::kElements / kStepColumns<Block>>(
        [&]<std::size_t kStep>() TOUCHSTONE_INLINE_LAMBDA {
          for (std::size_t batch = 0; batch < kBatches<Block>; ++batch) {
            CodeVec slices[kSlices<Block>][4];
            for (std::size_t k = 0; k < 4; ++k) {
              const Slices<Block> all = operands<Block, kVnni, kStep>(tile, k, batch);
              for (std::size_t i = 0; i < kSlices<Block>; ++i) slices[i][k] = all.of[i];
            }
            for (std::size_t i = 0; i < slice_count<Block>(batch); ++i) {
              transpose_fours(slices[i]);
              std::uint8_t* const at = codes + 4 * kCodeBytes * slice_place<Block>(batch, i);
              for (std::size_t k = 0; k < 4; ++k) {
                hn::StoreU(slices[i][k], CodeTag(), at + k * kCodeBytes);
              }
            }
          }
          codes += kStepColumns<Block> / 4 * kCodeBytes;
          if constexpr (kStep % kSteps<Block> != 0) return;
          const TileScales<Block> all = tile.template scales<kStep>();
          for (std::size_t i = 0; i < kParts<Block>; ++i) {
            store(all.scale[i]);
            if constexpr (Block::kMin) store(all.min[i]);
          }
        });
  }
}

// totals[r * kPanel + o] += a segment of kX rows of x by the rows of a tile.
template <bool kMin, bool kSignedCodes, bool kVnni, std::size_t kX>
HWY_NOINLINE void multiply_tile(const UnpackedTile& tile, const Int8Row* x, float* totals) {
  const FloatTag df;
  const std::uint8_t* codes = tile.codes;
  const float* scales = tile.scales;
  std::size_t column = 0;
  FloatVec acc[kX];
  for (FloatVec& sum : acc) sum = hn::Zero(df);
  for (std::size_t group = 0; group < tile.groups; ++group) {
    IntVec sums[kX];
    for (std::size_t r = 0; r < kX; ++r) {
      sums[r] = kMin ? hn::Zero(IntTag()) : int_sum(x[r].sums, group);
    }
    for (std::size_t i = 0; i < tile.vectors; i += 4) {
      for (std::size_t k = 0; k < 4; ++k) {
        const CodeVec four = hn::LoadU(CodeTag(), codes + k * kCodeBytes);
        for (std::size_t r = 0; r < kX; ++r) {
          sums[r] = add_dot4_of<kVnni, kSignedCodes>(sums[r], four, x[r].q + column + 4 * k);
        }
      }
      codes += 4 * kCodeBytes;
      column += 16;
    }
    const FloatVec scale = hn::LoadU(df, scales);
    FloatVec min = hn::Zero(df);
    if constexpr (kMin) min = hn::LoadU(df, scales + kTile);
    scales += kMin ? 2 * kTile : kTile;
    for (std::size_t r = 0; r < kX; ++r) {
      FloatVec of_x = hn::Zero(df);
      if constexpr (kMin) of_x = float_sum(x[r].sums, group);
      acc[r] = add_group<kMin>(acc[r], sums[r], scale, min, of_x);
    }
  }
  for (std::size_t r = 0; r < kX; ++r) {
    float* const to = totals + r * kPanel;
    hn::StoreU(hn::Add(hn::LoadU(df, to), acc[r]), df, to);
  }
}

// Rows of x that share a pass over a tile: their sums stay in registers.
inline constexpr std::size_t kTileX = kManyRegisters ? 8 : 4;

// Rows [first, first + kTileX) of the job, fewer at its end, by all tiles of a panel.
template <class Block, bool kVnni>
HWY_INLINE std::int64_t multiply_rows(const ForwardJob& job, const UnpackedTile* tiles,
                                      std::size_t count, std::size_t begin, std::int64_t first,
                                      float* totals) {
  constexpr bool kSignedCodes = Block::kSigned && !kVnni;
  const auto left = static_cast<std::size_t>(job.rows - first);
  Int8Row x[kTileX];
  for (std::size_t r = 0; r < kTileX; ++r) {
    x[r] = int8_row(job, first + static_cast<std::int64_t>(r));
    x[r].q += begin;
    x[r].sums += begin / kGroup<Block> * sizeof(float);
  }
  for (std::size_t t = 0; t < count; ++t) {
    float* const to = totals + first * kPanel + static_cast<std::int64_t>(t * kTile);
    if (left >= kTileX) {
      multiply_tile<Block::kMin, kSignedCodes, kVnni, kTileX>(tiles[t], x, to);
    } else if (kTileX > 4 && left >= 4) {
      multiply_tile<Block::kMin, kSignedCodes, kVnni, 4>(tiles[t], x, to);
    } else {
      multiply_tile<Block::kMin, kSignedCodes, kVnni, 1>(tiles[t], x, to);
    }
  }
  return left >= kTileX ? static_cast<std::int64_t>(kTileX) : kTileX > 4 && left >= 4 ? 4 : 1;
}

template <class Block, bool kVnni>
HWY_NOINLINE void unpacked_panel(const ForwardJob& job, const Panel& panel, std::byte* scratch,
                                 float* totals) {
  const auto in = static_cast<std::size_t>(job.p->in);
  const std::size_t count = (static_cast<std::size_t>(panel.rows) + kTile - 1) / kTile;
  std::fill_n(totals, job.rows * kPanel, 0.0F);
  for (std::size_t begin = 0; begin < in; begin += kSegment) {
    const std::size_t end = std::min<std::size_t>(in, begin + kSegment);
    UnpackedTile tiles[kPanel / kTile];
    for (std::size_t t = 0; t < count; ++t) {
      std::byte* const at = scratch + t * (kTileCodes + kTileScales);
      tiles[t] = {.codes = reinterpret_cast<std::uint8_t*>(at),
                  .scales = reinterpret_cast<float*>(at + kTileCodes),
                  .groups = (end - begin) / kGroup<Block>,
                  .vectors = kGroup<Block> / 4};
      unpack_tile<Block, kVnni>(tile_rows<Block>(*job.p, panel, t * kTile, begin, end, scratch),
                                end - begin, tiles[t]);
    }
    for (std::int64_t r = 0; r < job.rows;) {
      r += multiply_rows<Block, kVnni>(job, tiles, count, begin, r, totals);
    }
  }
}

// Rows of x up to which codes are multiplied as they are stored: their sums fit in registers.
template <class Block>
inline constexpr std::size_t kDirectX = std::max<std::size_t>(1, kMaxDirectX /
                                                                     GroupSums<Block, 1>::kOpen);

template <class Block, bool kVnni>
HWY_INLINE void panel_as(const ForwardJob& job, const Panel& panel, std::byte* scratch,
                         float* totals) {
  static_assert(kMaxDirectX == 2 || kMaxDirectX == 4);
  if (job.rows == 1) return stored_panel<Block, 1, kVnni>(job, panel, scratch, totals);
  if constexpr (kDirectX<Block> >= 2) {
    if (job.rows == 2) return stored_panel<Block, 2, kVnni>(job, panel, scratch, totals);
  }
  if constexpr (kDirectX<Block> == 4) {
    if (job.rows <= 4) return stored_panel<Block, 4, kVnni>(job, panel, scratch, totals);
  }
  unpacked_panel<Block, kVnni>(job, panel, scratch, totals);
}

void int8_panel(const ForwardJob& job, std::int64_t number, void* scratch) {
  const Panel panel(*job.p, number);
  auto* const weights = static_cast<std::byte*>(scratch);
  float* const totals = static_cast<float*>(scratch) + kPanel * kPanelStride;
  visit_block(*job.p->weight.format, [&]<class Block>() {
    if constexpr (!std::is_void_v<Block>) {
#if HWY_TARGET == HWY_AVX3
      if (has_vnni()) return panel_as<Block, true>(job, panel, weights, totals);
#endif
      panel_as<Block, false>(job, panel, weights, totals);
    }
  });
  store_panel(job, panel, totals);
}

bool int8_kernel(const WeightFormat& format) {
  bool found = false;
  visit_block(format, [&]<class Block>() { found = !std::is_void_v<Block>; });
  return found;
}

// max |x|, NaN where a value is NaN or infinite.
template <class T>
HWY_INLINE float largest_magnitude(const T* x, std::size_t n) {
  const FloatTag d;
  FloatVec largest = hn::Zero(d);
  FloatVec poison = hn::Zero(d);
  for (std::size_t i = 0; i < n; i += hn::Lanes(d)) {
    const FloatVec v = sd::load_some(d, x + i, std::min(hn::Lanes(d), n - i));
    largest = hn::Max(largest, hn::Abs(v));
    poison = hn::MulAdd(v, hn::Zero(d), poison);
  }
  return hn::GetLane(hn::MaxOfLanes(d, largest)) + sd::sum_lanes(d, poison);
}

// To the order of codes: see kInterleaved.
template <std::size_t kCount>
HWY_INLINE void split_interleaved(std::int8_t* q, std::size_t n) {
  std::int8_t natural[16 * kCount];
  for (std::size_t i = 0; i < n; i += 16 * kCount) {
    std::memcpy(natural, q + i, 16 * kCount);
    for (std::size_t k = 0; k < 16; ++k) {
      for (std::size_t j = 0; j < kCount; ++j) q[i + 16 * j + k] = natural[kCount * k + j];
    }
  }
}

// Of the integers of every group: their sum as f32, or minus the offset times it.
template <class Block>
HWY_INLINE void store_sums(const std::int8_t* q, std::size_t n, std::byte* to) {
  const int offset =
      has_vnni() ? kCompensatedOffset<Block, true> : kCompensatedOffset<Block, false>;
  for (std::size_t i = 0; i < n; i += kGroup<Block>) {
    std::int32_t sum = 0;
    for (std::size_t k = 0; k < kGroup<Block>; ++k) sum += q[i + k];
    const std::int32_t integer = -offset * sum;
    const auto number = static_cast<float>(sum);
    std::memcpy(to + i / kGroup<Block> * 4,
                Block::kMin ? static_cast<const void*>(&number) : &integer, 4);
  }
}

double round_row(const Forward& p, std::int64_t row, void* to) {
  const FloatTag d;
  const IntTag di;
  const auto in = static_cast<std::size_t>(p.in);
  const auto padded = static_cast<std::size_t>(int8_sums_offset(p.in));
  auto* const q = static_cast<std::int8_t*>(to);
  std::byte* const sums = static_cast<std::byte*>(to) + padded;
  float scale = 0;
  visit_float_dtype(p.dtype, [&]<class T>() {
    if constexpr (!std::is_same_v<T, double>) {
      const T* const x = static_cast<const T*>(p.x.data) + row * p.x.stride;
      scale = largest_magnitude(x, in) / 127.0F;
      std::size_t i = 0;
      if (scale > 0) {
        const hn::Rebind<std::int8_t, FloatTag> d8;
        const FloatVec s = hn::Set(d, scale);
        for (; i + hn::Lanes(d) <= in; i += hn::Lanes(d)) {
          // A subnormal scale may be too small by half of itself.
          const auto q32 = hn::NearestInt(hn::Div(sd::load(d, x + i), s));
          const auto bounded = hn::Max(hn::Set(di, -127), hn::Min(hn::Set(di, 127), q32));
          hn::StoreU(hn::DemoteTo(d8, bounded), d8, q + i);
        }
      }
      std::fill(q + i, q + padded, std::int8_t{0});  // rows are whole blocks of 32
    }
  });
  visit_block(*p.weight.format, [&]<class Block>() {
    if constexpr (!std::is_void_v<Block>) {
      if constexpr (kInterleaved < Block >> 1) split_interleaved<kInterleaved<Block>>(q, in);
      store_sums<Block>(q, in, sums);
    }
  });
  return static_cast<double>(scale);
}

#else

void int8_panel(const ForwardJob& /*job*/, std::int64_t /*number*/, void* /*scratch*/) {}
bool int8_kernel(const WeightFormat& /*format*/) { return false; }
double round_row(const Forward& /*p*/, std::int64_t /*row*/, void* /*to*/) { return 0; }

#endif

}  // namespace touchstone::linear_layer::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace touchstone::linear_layer {

HWY_EXPORT(int8_panel);
HWY_EXPORT(int8_kernel);
HWY_EXPORT(round_row);

void run_int8_panel(const ForwardJob& job, std::int64_t panel, void* scratch) {
  HWY_DYNAMIC_DISPATCH(int8_panel)(job, panel, scratch);
}
bool has_int8_kernel(const WeightFormat& format) {
  return HWY_DYNAMIC_DISPATCH(int8_kernel)(format);
}
double prepare_int8_row(const Forward& p, std::int64_t row, void* to) {
  return HWY_DYNAMIC_DISPATCH(round_row)(p, row, to);
}

}  // namespace touchstone::linear_layer
#endif
