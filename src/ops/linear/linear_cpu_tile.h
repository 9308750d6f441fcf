// Codes and scales of as many rows of W as an integer vector has lanes, 32 columns at a time, for the
// kernels of int8 activations. No #pragma once: read once per target, after cpu/simd.h.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "ops/linear/linear_cpu_blocks.h"
#include "ops/linear/linear_cpu_dot.h"

#if defined(TOUCHSTONE_LINEAR_CPU_TILE_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TOUCHSTONE_LINEAR_CPU_TILE_H_
#undef TOUCHSTONE_LINEAR_CPU_TILE_H_
#else
#define TOUCHSTONE_LINEAR_CPU_TILE_H_
#endif

#if TOUCHSTONE_LINEAR_BLOCKS

HWY_BEFORE_NAMESPACE();
namespace touchstone::linear_layer::HWY_NAMESPACE {

using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;

// Rows of W in a tile: 16, on AVX2 8.
inline constexpr std::size_t kTile = hn::MaxLanes(IntTag());
inline constexpr std::size_t kCodeBytes = hn::MaxLanes(CodeTag());

// Columns with one scale.
template <class Block>
inline constexpr std::size_t kGroup = Block::kElements > 128 ? kBlockColumns : Block::kElements;
template <>
inline constexpr std::size_t kGroup<SixBitBlock> = 16;
// Scales of 32 columns, and steps of 32 columns to a scale: one of them is 1.
template <class Block>
inline constexpr std::size_t kParts = kGroup<Block> < kBlockColumns ? 2 : 1;
template <class Block>
inline constexpr std::size_t kSteps = kGroup<Block> > kBlockColumns ? kGroup<Block> / 32 : 1;

// Whether the first sixteen of 32 integers of x are those of even columns.
template <class Block>
inline constexpr bool kEvenOdd = false;
template <std::int64_t kSize>
inline constexpr bool kEvenOdd<Int4Block<kSize>> = true;

// Signed codes become unsigned ones for VNNI; the offset is compensated by the row sum of x.
template <class Block, bool kVnni>
inline constexpr int kCompensatedOffset = Block::kSigned ? (kVnni ? 128 : 0) : Block::kOffset;

// The rows of a tile, `stride` bytes apart: as an array of pointers they would not fit in registers.
struct TileRows {
  const std::byte* first = nullptr;
  std::size_t stride = 0;

  HWY_INLINE const std::byte* operator[](std::size_t o) const { return first + o * stride; }
};

// 16 bytes each of rows k, k + 4, .. of a tile.
HWY_INLINE CodeVec load_quarter(TileRows rows, std::size_t k, std::size_t offset) {
  const auto at = [&](std::size_t o) HWY_ATTR {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[o] + offset));
  };
#if HWY_TARGET == HWY_AVX3
  // Loads under a mask rather than insertions: those wait for the units that shuffle.
  __m512i v = _mm512_castsi128_si512(at(k));
  v = _mm512_mask_broadcast_i32x4(v, 0x00f0, at(k + 4));
  v = _mm512_mask_broadcast_i32x4(v, 0x0f00, at(k + 8));
  return CodeVec{_mm512_mask_broadcast_i32x4(v, 0xf000, at(k + 12))};
#else
  return CodeVec{_mm256_inserti128_si256(_mm256_castsi128_si256(at(k)), at(k + 4), 1)};
#endif
}

// Four bytes of every row.
HWY_INLINE IntVec load_words(TileRows rows, std::size_t offset) {
#if HWY_TARGET == HWY_AVX3
  // Lane i of a load under a mask, from 4 i bytes before the word: what lies there is not read.
  const auto four = [&](std::size_t o) HWY_ATTR {
    __m128i v = _mm_loadu_si32(rows[o] + offset);
    v = _mm_mask_loadu_epi32(v, 2, rows[o + 1] + offset - 4);
    v = _mm_mask_loadu_epi32(v, 4, rows[o + 2] + offset - 8);
    return _mm_mask_loadu_epi32(v, 8, rows[o + 3] + offset - 12);
  };
  const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(four(0)), four(4), 1);
  const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(four(8)), four(12), 1);
  return IntVec{_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1)};
#else
  const auto at = [&](std::size_t o) HWY_ATTR {
    std::int32_t word = 0;
    std::memcpy(&word, rows[o] + offset, sizeof(word));
    return word;
  };
  return IntVec{_mm256_setr_epi32(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7))};
#endif
}

// The f16 in the low halves of lanes.
HWY_INLINE FloatVec low_f16(IntVec words) {
  const hn::RebindToUnsigned<IntTag> du;
  return sd::widen_f16(FloatTag(), hn::TruncateTo(sd::Bits16<FloatTag>(), hn::BitCast(du, words)));
}
HWY_INLINE FloatVec high_f16(IntVec words) {
  const hn::RebindToUnsigned<IntTag> du;
  return low_f16(hn::BitCast(IntTag(), hn::ShiftRight<16>(hn::BitCast(du, words))));
}

struct Halves {
  CodeVec low;   // the first sixteen of 32 columns (even ones: kEvenOdd) of four rows
  CodeVec high;  // the others
};

template <class Block>
struct TileScales {
  FloatVec scale[kParts<Block>];
  FloatVec min;  // of formats with kMin
};

HWY_INLINE Halves split(CodeVec bytes) {
  const CodeTag d;
  return {low_nibbles(d, bytes), low_nibbles(d, shift_right<4>(d, bytes))};
}

// 32 columns of the rows of a tile. In general: decoded one row after the other.
template <class Block>
class DecodedStep {
 public:
  HWY_INLINE DecodedStep(TileRows rows, std::size_t column) {
    for (std::size_t o = 0; o < kTile; ++o) {
      const BlockPart part = load_part<Block>(rows[o], column);
      hn::StoreU(part.codes, Codes32(), codes_[o]);
      const auto lower = hn::LowerHalf(hn::Half<Lanes8>(), part.scale);
      scale_[0][o] = hn::GetLane(lower);
      if constexpr (kParts<Block> == 2) {
        scale_[1][o] = hn::GetLane(hn::UpperHalf(hn::Half<Lanes8>(), part.scale));
      }
      if constexpr (Block::kMin) min_[o] = hn::GetLane(part.min);
    }
  }
  HWY_INLINE Halves codes(std::size_t k) const {
    const TileRows rows{.first = reinterpret_cast<const std::byte*>(codes_),
                        .stride = kBlockColumns};
    return {load_quarter(rows, k, 0), load_quarter(rows, k, 16)};
  }
  HWY_INLINE TileScales<Block> scales() const {
    const FloatTag d;
    TileScales<Block> scales;
    for (std::size_t i = 0; i < kParts<Block>; ++i) scales.scale[i] = hn::LoadU(d, scale_[i]);
    scales.min = Block::kMin ? hn::LoadU(d, min_) : hn::Zero(d);
    return scales;
  }

 private:
  alignas(64) std::uint8_t codes_[kTile][kBlockColumns];
  float scale_[kParts<Block>][kTile];
  float min_[kTile];
};

// Formats whose codes come out of bytes of all rows at once. kCodes: where they begin.
template <class Block, std::size_t kCodes>
class DirectStep {
 public:
  HWY_INLINE DirectStep(TileRows rows, std::size_t column)
      : rows_(rows),
        block_(column / Block::kElements * Block::kBytes),
        within_(column % Block::kElements) {}
  HWY_INLINE Halves codes(std::size_t k) const {
    if constexpr (Block::kSigned) {
      const std::size_t at = block_ + kCodes + within_;
      return {load_quarter(rows_, k, at), load_quarter(rows_, k, at + 16)};
    } else {
      return split(load_quarter(rows_, k, block_ + kCodes + within_ / 2));
    }
  }
  HWY_INLINE TileScales<Block> scales() const {
    const IntVec words = load_words(rows_, block_);
    return {.scale = {low_f16(words)}, .min = Block::kMin ? high_f16(words) : hn::Zero(FloatTag())};
  }

 private:
  TileRows rows_;
  std::size_t block_;
  std::size_t within_;
};

template <class Block>
struct StepOf {
  using Type = DecodedStep<Block>;
};
template <std::int64_t kSize>
struct StepOf<Int8Block<kSize>> {
  using Type = DirectStep<Int8Block<kSize>, 2>;
};
template <std::int64_t kSize>
struct StepOf<Int4Block<kSize>> {
  using Type = DirectStep<Int4Block<kSize>, 2>;
};
template <bool kHasMin>
struct StepOf<NibbleBlock<false, kHasMin>> {
  using Type = DirectStep<NibbleBlock<false, kHasMin>, kHasMin ? 4 : 2>;
};
template <class Block>
using TileStep = typename StepOf<Block>::Type;

// Codes as they are multiplied.
template <class Block, bool kVnni>
HWY_INLINE Halves operands(const TileStep<Block>& step, std::size_t k) {
  Halves codes = step.codes(k);
  if constexpr (Block::kSigned && kVnni) {
    const auto sign = hn::Set(CodeTag(), std::uint8_t{0x80});
    codes = {hn::Xor(codes.low, sign), hn::Xor(codes.high, sign)};
  }
  return codes;
}

// ---- four by four 32-bit lanes within 128 bits -----------------------------------------------------

HWY_INLINE IntVec lower_pairs(IntVec a, IntVec b) {
  const hn::Repartition<std::int64_t, IntTag> d;
  return hn::BitCast(IntTag(), hn::InterleaveLower(d, hn::BitCast(d, a), hn::BitCast(d, b)));
}
HWY_INLINE IntVec upper_pairs(IntVec a, IntVec b) {
  const hn::Repartition<std::int64_t, IntTag> d;
  return hn::BitCast(IntTag(), hn::InterleaveUpper(d, hn::BitCast(d, a), hn::BitCast(d, b)));
}
// Lane 4 j + k of the result: the sum of lanes 4 j to 4 j + 3 of vector k.
HWY_INLINE IntVec add_lanes_of_four(const IntVec* v) {
  const IntTag d;
  const IntVec ab = hn::Add(hn::InterleaveLower(d, v[0], v[1]), hn::InterleaveUpper(d, v[0], v[1]));
  const IntVec cd = hn::Add(hn::InterleaveLower(d, v[2], v[3]), hn::InterleaveUpper(d, v[2], v[3]));
  return hn::Add(lower_pairs(ab, cd), upper_pairs(ab, cd));
}
// Lane 4 j + k of vector i becomes lane 4 j + i of vector k.
HWY_INLINE void transpose_fours(CodeVec* codes) {
  const IntTag d;
  const CodeTag d8;
  const auto v = [&](std::size_t k) HWY_ATTR { return hn::BitCast(d, codes[k]); };
  const IntVec ab_low = hn::InterleaveLower(d, v(0), v(1));
  const IntVec ab_high = hn::InterleaveUpper(d, v(0), v(1));
  const IntVec cd_low = hn::InterleaveLower(d, v(2), v(3));
  const IntVec cd_high = hn::InterleaveUpper(d, v(2), v(3));
  codes[0] = hn::BitCast(d8, lower_pairs(ab_low, cd_low));
  codes[1] = hn::BitCast(d8, upper_pairs(ab_low, cd_low));
  codes[2] = hn::BitCast(d8, lower_pairs(ab_high, cd_high));
  codes[3] = hn::BitCast(d8, upper_pairs(ab_high, cd_high));
}

}  // namespace touchstone::linear_layer::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TOUCHSTONE_LINEAR_BLOCKS
#endif  // per-target include guard
