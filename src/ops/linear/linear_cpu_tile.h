// Codes and scales of as many rows of W as an integer vector has lanes, 32 columns at a time, for
// the kernels of int8 activations. No #pragma once: read once per target, after cpu/simd.h.
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
inline constexpr std::size_t kGroup = Block::kGroup;

// Columns of a step: those whose codes lie in the same bytes.
template <class Block>
inline constexpr std::size_t kStepColumns = kBlockColumns;
template <bool kFifth>
inline constexpr std::size_t kStepColumns<SuperBlock<kFifth>> = 64;
template <>
inline constexpr std::size_t kStepColumns<SixBitBlock> = 128;
// Codes come in batches, each of slices of 16 columns out of the same 16 bytes of every row.
template <class Block>
inline constexpr std::size_t kBatches = kStepColumns<Block> > kBlockColumns ? 2 : 1;
// Slices of a batch at most.
template <class Block>
inline constexpr std::size_t kSlices = kStepColumns<Block> / 16 / kBatches<Block>;

// Slices of a batch, and which of the step slice i of it is.
template <class Block>
constexpr std::size_t slice_count(std::size_t /*batch*/) {
  return kSlices<Block>;
}
template <class Block>
constexpr std::size_t slice_place(std::size_t batch, std::size_t i) {
  return batch + kBatches<Block> * i;
}
// Scales of a step, and steps to a scale: one of them is 1.
template <class Block>
inline constexpr std::size_t kParts =
    kGroup<Block> < kStepColumns<Block> ? kStepColumns<Block> / kGroup<Block> : 1;
template <class Block>
inline constexpr std::size_t kSteps =
    kGroup<Block> > kStepColumns<Block> ? kGroup<Block> / kStepColumns<Block> : 1;

// Integers of x lie in the order of codes: of every 16 n columns those of index 0, n, 2 n, .., then
// 1, n + 1, ..
template <class Block>
inline constexpr std::size_t kInterleaved = 1;
template <std::int64_t kSize>
inline constexpr std::size_t kInterleaved<Int4Block<kSize>> = 2;

// Signed codes become unsigned ones for VNNI; the offset is compensated by the row sum of x.
template <class Block, bool kVnni>
inline constexpr int kCompensatedOffset = Block::kSigned ? (kVnni ? 128 : 0) : Block::kOffset;

// The rows of a tile, `stride` bytes apart: every fourth as a pointer, which leaves addresses that
// an instruction can form. Sixteen pointers do not fit in registers.
struct TileRows {
  const std::byte* fourth[kTile / 4];
  std::size_t stride;

  HWY_INLINE TileRows(const std::byte* first, std::size_t bytes) : stride(bytes) {
    for (const std::byte*& row : fourth) {
      row = first;
      first += 4 * stride;
    }
  }
  HWY_INLINE const std::byte* operator[](std::size_t o) const {
    return fourth[o / 4] + o % 4 * stride;
  }
  HWY_INLINE TileRows at(std::size_t offset) const {
    TileRows rows = *this;
    for (const std::byte*& row : rows.fourth) row += offset;
    return rows;
  }
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

// ---- four by four 32-bit lanes within 128 bits --------------------------------------------------

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

// ---- codes and scales ---------------------------------------------------------------------------

template <class Block>
struct Slices {
  CodeVec of[kSlices<Block>];  // 16 columns of four rows each
};

template <class Block>
struct TileScales {
  FloatVec scale[kParts<Block>];
  FloatVec min[kParts<Block>];  // of formats with kMin
};

// Bits of every byte.
HWY_INLINE CodeVec bits(CodeVec v, std::uint8_t mask) {
  return hn::And(v, hn::Set(CodeTag(), mask));
}
// Bytes shifted left (kBits > 0) or right, together with bits of their neighbors.
template <int kBits>
HWY_INLINE CodeVec shifted(CodeVec v) {
  const hn::Repartition<std::uint16_t, CodeTag> d16;
  if constexpr (kBits > 0) return hn::BitCast(CodeTag(), hn::ShiftLeft<kBits>(hn::BitCast(d16, v)));
  if constexpr (kBits < 0) return shift_right<-kBits>(CodeTag(), v);
  return v;
}
template <std::size_t kByte>
HWY_INLINE FloatVec unsigned_byte(IntVec words) {
  if constexpr (kByte > 0) words = hn::ShiftRight<8 * kByte>(words);
  return hn::ConvertTo(FloatTag(), hn::And(words, hn::Set(IntTag(), 255)));
}
template <std::size_t kByte>
HWY_INLINE FloatVec signed_byte(IntVec words) {
  if constexpr (kByte < 3) words = hn::ShiftLeft<24 - 8 * kByte>(words);
  return hn::ConvertTo(FloatTag(), hn::ShiftRight<24>(words));
}
// 16 bytes of every row as four words.
struct FourWords {
  IntVec of[4];
  HWY_INLINE FourWords(TileRows rows, std::size_t offset) {
    CodeVec v[4];
    for (std::size_t k = 0; k < 4; ++k) v[k] = load_quarter(rows, k, offset);
    transpose_fours(v);
    for (std::size_t k = 0; k < 4; ++k) of[k] = hn::BitCast(IntTag(), v[k]);
  }
};

// A block of the rows of a tile. codes<kStep>(k, batch): of rows k, k + 4, ..; scales<kStep>(): of
// the step.

// Blocks with one scale, and perhaps a minimum, in front of codes that begin at kCodes.
template <class Block, std::size_t kCodes>
class SimpleTile {
 public:
  HWY_INLINE explicit SimpleTile(TileRows block) : block_(block) {}
  template <std::size_t kStep>
  HWY_INLINE Slices<Block> codes(std::size_t k, std::size_t /*batch*/) const {
    if constexpr (Block::kSigned) {
      constexpr std::size_t kAt = kCodes + kStep * kBlockColumns;
      return {load_quarter(block_, k, kAt), load_quarter(block_, k, kAt + 16)};
    } else {
      const CodeVec v = load_quarter(block_, k, kCodes + kStep * kBlockColumns / 2);
      return {bits(v, 15), bits(shifted<-4>(v), 15)};
    }
  }
  template <std::size_t kStep>
  HWY_INLINE TileScales<Block> scales() const {
    const IntVec words = load_words(block_, 0);
    return {.scale = {low_f16(words)},
            .min = {Block::kMin ? high_f16(words) : hn::Zero(FloatTag())}};
  }

 private:
  TileRows block_;
};

// q5_0, q5_1: 32 fifth bits before the codes.
template <class Block>
class FiveBitTile {
 public:
  HWY_INLINE explicit FiveBitTile(TileRows block)
      : block_(block), fifth_(hn::BitCast(CodeTag(), load_words(block, Block::kHeader))) {}
  template <std::size_t kStep>
  HWY_INLINE Slices<Block> codes(std::size_t k, std::size_t /*batch*/) const {
    const CodeVec v = load_quarter(block_, k, Block::kHeader + 4);
    return {hn::Or(bits(v, 15), fifth(4 * k)), hn::Or(bits(shifted<-4>(v), 15), fifth(4 * k + 2))};
  }
  template <std::size_t kStep>
  HWY_INLINE TileScales<Block> scales() const {
    return SimpleTile<Block, 0>(block_).template scales<0>();
  }

 private:
  // 16 where a bit of bytes `byte` and `byte` + 1 is set.
  HWY_INLINE CodeVec fifth(std::size_t byte) const {
    alignas(16) static constexpr std::uint8_t kByte[16] = {0, 0, 0, 0, 0, 0, 0, 0,
                                                           1, 1, 1, 1, 1, 1, 1, 1};
    alignas(16) static constexpr std::uint8_t kBit[16] = {1, 2, 4, 8, 16, 32, 64, 128,
                                                          1, 2, 4, 8, 16, 32, 64, 128};
    const CodeTag d;
    const CodeVec from =
        hn::Add(hn::LoadDup128(d, kByte), hn::Set(d, static_cast<std::uint8_t>(byte)));
    const auto set = hn::TestBit(hn::TableLookupBytes(fifth_, from), hn::LoadDup128(d, kBit));
    return hn::IfThenElseZero(set, hn::Set(d, std::uint8_t{16}));
  }

  TileRows block_;
  CodeVec fifth_;
};

// q4_k, q5_k: the low and the high halves of 32 bytes are 32 columns each.
template <bool kFifth>
class SuperTile {
 public:
  using Block = SuperBlock<kFifth>;

  HWY_INLINE explicit SuperTile(TileRows block) : block_(block) {
    const FourWords words(block, 0);
    scale_ = low_f16(words.of[0]);
    min_ = hn::Neg(high_f16(words.of[0]));
    const auto mask = [](std::uint32_t bits) HWY_ATTR {
      return hn::BitCast(IntTag(), hn::Set(hn::RebindToUnsigned<IntTag>(), bits));
    };
    const auto upper = [&](IntVec v)
                           HWY_ATTR { return hn::And(hn::ShiftRight<2>(v), mask(0x30303030)); };
    scales_[0] = hn::And(words.of[1], mask(0x3f3f3f3f));
    minima_[0] = hn::And(words.of[2], mask(0x3f3f3f3f));
    scales_[1] = hn::Or(hn::And(words.of[3], mask(0x0f0f0f0f)), upper(words.of[1]));
    minima_[1] =
        hn::Or(hn::And(hn::ShiftRight<4>(words.of[3]), mask(0x0f0f0f0f)), upper(words.of[2]));
  }
  template <std::size_t kStep>
  HWY_INLINE Slices<Block> codes(std::size_t k, std::size_t batch) const {
    const CodeVec v = load_quarter(block_, k, Block::kBytes - 128 + 32 * kStep + 16 * batch);
    const CodeVec low = bits(v, 15);
    const CodeVec high = bits(shifted<-4>(v), 15);
    if constexpr (kFifth) {
      constexpr int kBit = 2 * kStep;
      const CodeVec fifth = load_quarter(block_, k, 16 + 16 * batch);
      return {hn::Or(low, bits(shifted<4 - kBit>(fifth), 16)),
              hn::Or(high, bits(shifted<3 - kBit>(fifth), 16))};
    }
    return {low, high};
  }
  template <std::size_t kStep>
  HWY_INLINE TileScales<Block> scales() const {
    constexpr std::size_t kWord = kStep / 2;
    constexpr std::size_t kByte = kStep % 2 * 2;
    const IntVec scales = scales_[kWord];
    const IntVec minima = minima_[kWord];
    return {.scale = {hn::Mul(scale_, unsigned_byte<kByte>(scales)),
                      hn::Mul(scale_, unsigned_byte<kByte + 1>(scales))},
            .min = {hn::Mul(min_, unsigned_byte<kByte>(minima)),
                    hn::Mul(min_, unsigned_byte<kByte + 1>(minima))}};
  }

 private:
  TileRows block_;
  FloatVec scale_;
  FloatVec min_;
  IntVec scales_[2];  // four bytes of six bits
  IntVec minima_[2];
};

// q6_k: four bits out of 64 bytes, two out of 32, are 128 columns.
class SixBitTile {
 public:
  using Block = SixBitBlock;

  HWY_INLINE explicit SixBitTile(TileRows block)
      : block_(block),
        scale_(high_f16(load_words(block, Block::kBytes - 4))),
        scales_(block, 192) {}
  template <std::size_t kStep>
  HWY_INLINE Slices<Block> codes(std::size_t k, std::size_t batch) const {
    const CodeVec a = load_quarter(block_, k, 64 * kStep + 16 * batch);
    const CodeVec b = load_quarter(block_, k, 64 * kStep + 16 * batch + 32);
    const CodeVec upper = load_quarter(block_, k, 128 + 32 * kStep + 16 * batch);
    return {hn::Or(bits(a, 15), bits(shifted<4>(upper), 0x30)),
            hn::Or(bits(b, 15), bits(shifted<2>(upper), 0x30)),
            hn::Or(bits(shifted<-4>(a), 15), bits(upper, 0x30)),
            hn::Or(bits(shifted<-4>(b), 15), bits(shifted<-2>(upper), 0x30))};
  }
  template <std::size_t kStep>
  HWY_INLINE TileScales<Block> scales() const {
    TileScales<Block> scales{};
    unrolled<8>([&]<std::size_t kI>() TOUCHSTONE_INLINE_LAMBDA {
      const IntVec word = scales_.of[2 * kStep + kI / 4];
      scales.scale[kI] = hn::Mul(scale_, signed_byte<kI % 4>(word));
    });
    return scales;
  }

 private:
  TileRows block_;
  FloatVec scale_;
  FourWords scales_;
};

template <class Block>
struct TileOf;
template <std::int64_t kSize>
struct TileOf<Int8Block<kSize>> {
  using Type = SimpleTile<Int8Block<kSize>, 2>;
};
template <std::int64_t kSize>
struct TileOf<Int4Block<kSize>> {
  using Type = SimpleTile<Int4Block<kSize>, 2>;
};
template <bool kHasMin>
struct TileOf<NibbleBlock<false, kHasMin>> {
  using Type = SimpleTile<NibbleBlock<false, kHasMin>, kHasMin ? 4 : 2>;
};
template <bool kHasMin>
struct TileOf<NibbleBlock<true, kHasMin>> {
  using Type = FiveBitTile<NibbleBlock<true, kHasMin>>;
};
template <bool kFifth>
struct TileOf<SuperBlock<kFifth>> {
  using Type = SuperTile<kFifth>;
};
template <>
struct TileOf<SixBitBlock> {
  using Type = SixBitTile;
};
template <class Block>
using Tile = typename TileOf<Block>::Type;

// Codes as they are multiplied.
template <class Block, bool kVnni, std::size_t kStep>
HWY_INLINE Slices<Block> operands(const Tile<Block>& tile, std::size_t k, std::size_t batch) {
  Slices<Block> codes = tile.template codes<kStep>(k, batch);
  if constexpr (Block::kSigned && kVnni) {
    for (CodeVec& v : codes.of) v = hn::Xor(v, hn::Set(CodeTag(), std::uint8_t{0x80}));
  }
  return codes;
}

}  // namespace touchstone::linear_layer::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TOUCHSTONE_LINEAR_BLOCKS
#endif  // per-target include guard
