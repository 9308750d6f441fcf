// Tiles of ternary formats: see linear_cpu_tile.h. No #pragma once: read once per target, after
// cpu/simd.h.
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cpu/ternary_layout.h"
#include "cpu/ternary_unpack.h"
#include "ops/linear/linear_cpu_tile.h"

#if defined(TOUCHSTONE_LINEAR_CPU_TERNARY_TILE_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TOUCHSTONE_LINEAR_CPU_TERNARY_TILE_H_
#undef TOUCHSTONE_LINEAR_CPU_TERNARY_TILE_H_
#else
#define TOUCHSTONE_LINEAR_CPU_TERNARY_TILE_H_
#endif

#if TOUCHSTONE_LINEAR_BLOCKS

HWY_BEFORE_NAMESPACE();
namespace touchstone::linear_layer::HWY_NAMESPACE {

// Ternary formats whose codes do not come out of 16 bytes of a row at a time.
template <WeightFormatId kId>
inline constexpr bool kUnpackedTernary =
    kId == WeightFormatId::ternary_g32 || kId == WeightFormatId::base3_g128 ||
    kId == WeightFormatId::sherry_g128;

template <WeightFormatId kId>
inline constexpr std::size_t kStepColumns<TernaryBlock<kId>> =
    kUnpackedTernary<kId> ? kBlockColumns : TernaryBlock<kId>::kElements;
template <>
inline constexpr std::size_t kBatches<TernaryBlock<WeightFormatId::q2_0>> = 1;
template <>
inline constexpr std::size_t kBatches<TernaryBlock<WeightFormatId::ternary_g64>> = 1;
template <>
inline constexpr std::size_t kBatches<TernaryBlock<WeightFormatId::ternary_g256>> = 4;
template <>
inline constexpr std::size_t kBatches<TernaryBlock<WeightFormatId::tq1_0>> = 4;
template <>
inline constexpr std::size_t kSlices<TernaryBlock<WeightFormatId::tq1_0>> = 5;
template <>
inline constexpr std::size_t kSlices<TernaryBlock<WeightFormatId::ptq1_0>> = 5;

// Base 3: five digits of every whole 16 bytes of a section, then what is left.
template <>
constexpr std::size_t slice_count<TernaryBlock<WeightFormatId::tq1_0>>(std::size_t batch) {
  return batch < 3 ? 5 : 1;
}
template <>
constexpr std::size_t slice_count<TernaryBlock<WeightFormatId::ptq1_0>>(std::size_t batch) {
  return batch == 0 ? 5 : 3;
}
template <>
constexpr std::size_t slice_place<TernaryBlock<WeightFormatId::tq1_0>>(std::size_t batch,
                                                                       std::size_t i) {
  return batch < 2 ? batch + 2 * i : (batch == 2 ? 10 + i : 15);
}
template <>
constexpr std::size_t slice_place<TernaryBlock<WeightFormatId::ptq1_0>>(std::size_t batch,
                                                                        std::size_t i) {
  return 5 * batch + i;
}

template <>
inline constexpr std::size_t kInterleaved<TernaryBlock<WeightFormatId::q2_0>> = 4;

template <class Block>
HWY_INLINE TileScales<Block> ternary_scales(TileRows block) {
  constexpr auto kScale = static_cast<std::size_t>(Block::kLayout.scale);
  const FloatVec scale =
      kScale == 0 ? low_f16(load_words(block, 0)) : high_f16(load_words(block, kScale - 2));
  return {.scale = {scale}, .min = {hn::Zero(FloatTag())}};
}

// Four codes of two bits in a byte: planes of 16 bytes and more, neighbors.
template <class Block>
class TwoBitTile {
 public:
  HWY_INLINE explicit TwoBitTile(TileRows block) : block_(block) {}
  template <std::size_t kStep>
  HWY_INLINE Slices<Block> codes(std::size_t k, std::size_t batch) const {
    constexpr auto kCodes = static_cast<std::size_t>(Block::kLayout.codes);
    const CodeVec v = load_quarter(block_, k, kCodes + 16 * batch);
    return {bits(v, 3), bits(shifted<-2>(v), 3), bits(shifted<-4>(v), 3), bits(shifted<-6>(v), 3)};
  }
  template <std::size_t kStep>
  HWY_INLINE TileScales<Block> scales() const {
    return ternary_scales<Block>(block_);
  }

 private:
  TileRows block_;
};

// tq1_0, ptq1_0: digit n of a byte q is 3 (3^n q mod 256) / 256.
template <class Block>
class Base3Tile {
 public:
  HWY_INLINE explicit Base3Tile(TileRows block) : block_(block) {}
  template <std::size_t kStep>
  HWY_INLINE Slices<Block> codes(std::size_t k, std::size_t batch) const {
    Slices<Block> slices;
    if (slice_count<Block>(batch) == 5) {
      CodeVec v = load_quarter(block_, k, 16 * batch);
      for (CodeVec& slice : slices.of) {
        slice = digit(v);
        v = hn::Add(hn::Add(v, v), v);
      }
      return slices;
    }
    // The last 16 bytes of the block.
    const CodeVec v = load_quarter(block_, k, Block::kBytes - 16);
    for (std::size_t i = 0; i < 5; ++i) {
      slices.of[i] = i < slice_count<Block>(batch) ? last(v, kLast.of[i]) : hn::Zero(CodeTag());
    }
    return slices;
  }
  template <std::size_t kStep>
  HWY_INLINE TileScales<Block> scales() const {
    return ternary_scales<Block>(block_);
  }

 private:
  // The byte of a column among the last 16 of the block, and its power of 3.
  struct LastSlice {
    alignas(16) std::uint8_t byte[16];
    alignas(16) std::uint16_t power[8];
  };
  struct LastSlices {
    LastSlice of[5];
  };
  static constexpr LastSlices last_slices() {
    LastSlices slices{};
    const std::size_t batch = kBatches<Block> - 1;
    for (std::size_t i = 0; i < slice_count<Block>(batch); ++i) {
      for (int c = 0; c < 16; ++c) {
        const int column = static_cast<int>(16 * slice_place<Block>(batch, i)) + c;
        const ternary::Section& section =
            Block::kLayout.sections[column < Block::kLayout.sections[2].first ? 1 : 2];
        const int within = column - section.first;
        slices.of[i].byte[c] = static_cast<std::uint8_t>(section.byte + within % section.bytes -
                                                         (static_cast<int>(Block::kBytes) - 16));
        slices.of[i].power[c / 2] =
            static_cast<std::uint16_t>(ternary::power_of_3(within / section.bytes));
      }
    }
    return slices;
  }
  static constexpr LastSlices kLast = last_slices();

  static HWY_INLINE CodeVec last(CodeVec v, const LastSlice& slice) {
    const CodeTag d;
    const hn::Repartition<std::uint16_t, CodeTag> d16;
    const auto power = hn::LoadDup128(d16, slice.power);
    const auto pair = hn::BitCast(d16, hn::TableLookupBytes(v, hn::LoadDup128(d, slice.byte)));
    const auto upper = hn::Set(d16, std::uint16_t{0xff00});
    return digit(hn::BitCast(
        d, hn::Or(hn::AndNot(upper, hn::Mul(pair, power)), hn::Mul(hn::And(pair, upper), power))));
  }
  // 3 v / 256 by way of 3 v / 4: of complements the rounded average is that of numbers rounded
  // down.
  static HWY_INLINE CodeVec digit(CodeVec v) {
    const CodeTag d;
    const CodeVec not_v = hn::Not(v);
    const CodeVec not_half = hn::AverageRound(not_v, hn::Set(d, std::uint8_t{255}));
    return hn::AndNot(shifted<-6>(hn::AverageRound(not_v, not_half)), hn::Set(d, std::uint8_t{3}));
  }

  TileRows block_;
};

// Other ternary formats: unpacked to bytes one row after the other.
template <class Block>
class TernaryTile {
 public:
  HWY_INLINE explicit TernaryTile(TileRows block) : block_(block) {
    for (std::size_t o = 0; o < kTile; ++o) {
      ternary::unpack_block<Block::kId>(code_bytes(block[o]), codes_[o]);
    }
  }
  template <std::size_t kStep>
  HWY_INLINE Slices<Block> codes(std::size_t k, std::size_t /*batch*/) const {
    const TileRows rows(reinterpret_cast<const std::byte*>(codes_), Block::kElements);
    const CodeVec one = hn::Set(CodeTag(), std::uint8_t{1});
    constexpr std::size_t kAt = kStep * kBlockColumns;
    return {hn::Add(load_quarter(rows, k, kAt), one),
            hn::Add(load_quarter(rows, k, kAt + 16), one)};
  }
  template <std::size_t kStep>
  HWY_INLINE TileScales<Block> scales() const {
    return ternary_scales<Block>(block_);
  }

 private:
  TileRows block_;
  alignas(64) std::int8_t codes_[kTile][Block::kElements];
};

template <WeightFormatId kId>
struct TileOf<TernaryBlock<kId>> {
  using Block = TernaryBlock<kId>;
  using Packed = std::conditional_t<Block::kLayout.packing == ternary::Packing::base3,
                                    Base3Tile<Block>, TwoBitTile<Block>>;
  using Type = std::conditional_t<kUnpackedTernary<kId>, TernaryTile<Block>, Packed>;
};

}  // namespace touchstone::linear_layer::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TOUCHSTONE_LINEAR_BLOCKS
#endif  // per-target include guard
