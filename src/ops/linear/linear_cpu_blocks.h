// Block formats as codes, 32 columns at a time: weight = scale * (code - offset) + min. What the f32
// kernels widen and the int8 kernels multiply as integers. AVX2 and AVX-512 only; other targets decode
// with the format's own function. No #pragma once: read once per target, after cpu/simd.h.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu/weight_codec.h"
#include "ops/linear/linear_problem.h"

#if defined(TOUCHSTONE_LINEAR_CPU_BLOCKS_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TOUCHSTONE_LINEAR_CPU_BLOCKS_H_
#undef TOUCHSTONE_LINEAR_CPU_BLOCKS_H_
#else
#define TOUCHSTONE_LINEAR_CPU_BLOCKS_H_
#endif

#undef TOUCHSTONE_LINEAR_BLOCKS
#if HWY_ARCH_X86 && (HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3)
#define TOUCHSTONE_LINEAR_BLOCKS 1
#else
#define TOUCHSTONE_LINEAR_BLOCKS 0
#endif

#if TOUCHSTONE_LINEAR_BLOCKS

HWY_BEFORE_NAMESPACE();
namespace touchstone::linear_layer::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace sd = touchstone::simd::HWY_NAMESPACE;

using Codes32 = hn::FixedTag<std::uint8_t, 32>;
using Codes16 = hn::FixedTag<std::uint8_t, 16>;
using Lanes8 = hn::FixedTag<float, 8>;

inline constexpr std::size_t kBlockColumns = 32;

// 32 columns. Lane i of scale and min belongs to columns 4 i to 4 i + 3.
struct BlockPart {
  hn::Vec<Codes32> codes;
  hn::Vec<Lanes8> scale;
  hn::Vec<Lanes8> min;  // of formats with kMin
};

HWY_INLINE const std::uint8_t* code_bytes(const std::byte* p) {
  return reinterpret_cast<const std::uint8_t*>(p);
}
HWY_INLINE hn::Vec<Lanes8> load_scale(const std::byte* p) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, p, sizeof(bits));
  return sd::widen_f16(Lanes8(), hn::Set(sd::Bits16<Lanes8>(), bits));
}
template <class D8>
HWY_INLINE hn::Vec<D8> low_nibbles(D8 d, hn::Vec<D8> v) {
  return hn::And(v, hn::Set(d, std::uint8_t{15}));
}
template <int kBits, class D8>
HWY_INLINE hn::Vec<D8> shift_right(D8 d, hn::Vec<D8> v) {
  const hn::Repartition<std::uint16_t, D8> d16;
  return hn::BitCast(d, hn::ShiftRight<kBits>(hn::BitCast(d16, v)));
}
// The first sixteen codes in the low halves of 16 bytes, the others in the high halves.
HWY_INLINE hn::Vec<Codes32> split_nibbles(const std::byte* p) {
  const Codes16 d;
  const auto v = hn::LoadU(d, code_bytes(p));
  return hn::Combine(Codes32(), low_nibbles(d, shift_right<4>(d, v)), low_nibbles(d, v));
}
// `bit` of the codes whose mask bit is set.
HWY_INLINE hn::Vec<Codes32> with_bits(hn::Vec<Codes32> codes, const std::byte* mask) {
  const Codes32 d;
  std::uint8_t bits[8] = {};  // LoadMaskBits reads 8 bytes
  std::memcpy(bits, mask, 4);
  return hn::Or(codes, hn::IfThenElseZero(hn::LoadMaskBits(d, bits), hn::Set(d, std::uint8_t{16})));
}

struct ScaleAndMin {
  hn::Vec<Lanes8> scale;
  hn::Vec<Lanes8> min;
};

// A format has kElements columns in a block of kBytes; `at` is the block, `column` the column in it.
// kSigned: codes are signed bytes. Otherwise kOffset is subtracted from them.

template <std::int64_t kGroup>
struct Int8Block {
  static constexpr std::size_t kElements = kGroup;
  static constexpr std::size_t kBytes = kGroup + 2;
  static constexpr bool kSigned = true;
  static constexpr bool kMin = false;
  static constexpr int kOffset = 0;
  static HWY_INLINE BlockPart load(const std::byte* at, std::size_t column) {
    return {.codes = hn::LoadU(Codes32(), code_bytes(at + 2 + column)),
            .scale = load_scale(at),
            .min = hn::Zero(Lanes8())};
  }
};

// Codes of even index in the low halves.
template <std::int64_t kGroup>
struct Int4Block {
  static constexpr std::size_t kElements = kGroup;
  static constexpr std::size_t kBytes = kGroup / 2 + 2;
  static constexpr bool kSigned = false;
  static constexpr bool kMin = false;
  static constexpr int kOffset = 8;
  static HWY_INLINE BlockPart load(const std::byte* at, std::size_t column) {
    const Codes16 d;
    const auto v = hn::LoadU(d, code_bytes(at + 2 + column / 2));
    const auto low = low_nibbles(d, v);
    const auto high = low_nibbles(d, shift_right<4>(d, v));
    return {.codes = hn::Combine(Codes32(), hn::InterleaveUpper(d, low, high),
                                 hn::InterleaveLower(d, low, high)),
            .scale = load_scale(at),
            .min = hn::Zero(Lanes8())};
  }
};

// q4_0, q4_1, q5_0, q5_1.
template <bool kFifth, bool kHasMin>
struct NibbleBlock {
  static constexpr std::size_t kHeader = kHasMin ? 4 : 2;
  static constexpr std::size_t kElements = 32;
  static constexpr std::size_t kBytes = kHeader + (kFifth ? 4 : 0) + 16;
  static constexpr bool kSigned = false;
  static constexpr bool kMin = kHasMin;
  static constexpr int kOffset = kHasMin ? 0 : (kFifth ? 16 : 8);
  static HWY_INLINE ScaleAndMin scale_min(const std::byte* at, std::size_t /*column*/) {
    return {.scale = load_scale(at), .min = kHasMin ? load_scale(at + 2) : hn::Zero(Lanes8())};
  }
  static HWY_INLINE BlockPart load(const std::byte* at, std::size_t column) {
    const auto [scale, min] = scale_min(at, column);
    BlockPart part{.codes = split_nibbles(at + kBytes - 16), .scale = scale, .min = min};
    if constexpr (kFifth) part.codes = with_bits(part.codes, at + kHeader);
    return part;
  }
};

// q4_k, q5_k: sub-block i of 32 columns in the low (i even) or high halves of 32 bytes.
template <bool kFifth>
struct SuperBlock {
  static constexpr std::size_t kElements = 256;
  static constexpr std::size_t kBytes = 16 + (kFifth ? 32 : 0) + 128;
  static constexpr bool kSigned = false;
  static constexpr bool kMin = true;
  static constexpr int kOffset = 0;
  static HWY_INLINE BlockPart load(const std::byte* at, std::size_t column) {
    const Codes32 d;
    const std::size_t sub = column / kBlockColumns;
    const std::byte* const upper = at + 4 + weights::kScaleBytes;
    const auto v = hn::LoadU(d, code_bytes(upper + (kFifth ? 32 : 0) + sub / 2 * 32));
    auto codes = low_nibbles(d, sub % 2 == 0 ? v : shift_right<4>(d, v));
    if constexpr (kFifth) {
      const auto bit = hn::Set(d, static_cast<std::uint8_t>(1U << sub));
      const auto set = hn::Eq(hn::And(hn::LoadU(d, code_bytes(upper)), bit), bit);
      codes = hn::Or(codes, hn::IfThenElseZero(set, hn::Set(d, std::uint8_t{16})));
    }
    const auto [scale, min] = scale_min(at, column);
    return {.codes = codes, .scale = scale, .min = min};
  }
  static HWY_INLINE ScaleAndMin scale_min(const std::byte* at, std::size_t column) {
    const Lanes8 d;
    const auto sub = static_cast<int>(column / kBlockColumns);
    const auto packed = weights::unpack_scale_min(code_bytes(at + 4), sub);
    return {
        .scale = hn::Mul(load_scale(at), hn::Set(d, static_cast<float>(packed.scale))),
        .min = hn::Neg(hn::Mul(load_scale(at + 2), hn::Set(d, static_cast<float>(packed.min))))};
  }
};

// q6_k: scales of 16 columns each.
struct SixBitBlock {
  static constexpr std::size_t kElements = 256;
  static constexpr std::size_t kBytes = 210;
  static constexpr bool kSigned = false;
  static constexpr bool kMin = false;
  static constexpr int kOffset = 32;
  static HWY_INLINE BlockPart load(const std::byte* at, std::size_t column) {
    const Codes32 d;
    const Lanes8 df;
    const hn::Half<Lanes8> dh;
    const std::size_t half = column / 128;
    const std::size_t quarter = column % 128 / kBlockColumns;
    auto low = hn::LoadU(d, code_bytes(at + 64 * half + quarter % 2 * 32));
    low = low_nibbles(d, quarter < 2 ? low : shift_right<4>(d, low));
    const auto pairs = hn::LoadU(d, code_bytes(at + 128 + 32 * half));
    const auto pair = quarter == 0   ? pairs
                      : quarter == 1 ? shift_right<2>(d, pairs)
                      : quarter == 2 ? shift_right<4>(d, pairs)
                                     : shift_right<6>(d, pairs);
    const hn::Repartition<std::uint16_t, Codes32> d16;
    const auto high = hn::BitCast(
        d, hn::ShiftLeft<4>(hn::BitCast(d16, hn::And(pair, hn::Set(d, std::uint8_t{3})))));
    const std::byte* const scales = at + 192 + column / 16;
    const auto factor = [&](std::size_t i) {
      return hn::Set(dh, static_cast<float>(static_cast<std::int8_t>(scales[i])));
    };
    return {.codes = hn::Or(low, high),
            .scale = hn::Mul(load_scale(at + 208), hn::Combine(df, factor(1), factor(0))),
            .min = hn::Zero(df)};
  }
};

// Columns [column, column + 32) of a row of W.
template <class Block>
HWY_INLINE BlockPart load_part(const std::byte* row, std::size_t column) {
  return Block::load(row + column / Block::kElements * Block::kBytes, column % Block::kElements);
}

// Calls visitor.operator()<Block>() with the format's block; operator()<void>() for formats that are no
// codes.
template <class Visitor>
HWY_INLINE void visit_block(const WeightFormat& format, Visitor&& visitor) {
  using Id = WeightFormatId;
  switch (format.id) {
    case Id::int8_g32:
    case Id::q8_0:
      return visitor.template operator()<Int8Block<32>>();
    case Id::int8_g64:
      return visitor.template operator()<Int8Block<64>>();
    case Id::int8_g128:
      return visitor.template operator()<Int8Block<128>>();
    case Id::int4_g32:
      return visitor.template operator()<Int4Block<32>>();
    case Id::int4_g64:
      return visitor.template operator()<Int4Block<64>>();
    case Id::int4_g128:
      return visitor.template operator()<Int4Block<128>>();
    case Id::q4_0:
      return visitor.template operator()<NibbleBlock<false, false>>();
    case Id::q4_1:
      return visitor.template operator()<NibbleBlock<false, true>>();
    case Id::q5_0:
      return visitor.template operator()<NibbleBlock<true, false>>();
    case Id::q5_1:
      return visitor.template operator()<NibbleBlock<true, true>>();
    case Id::q4_k:
      return visitor.template operator()<SuperBlock<false>>();
    case Id::q5_k:
      return visitor.template operator()<SuperBlock<true>>();
    case Id::q6_k:
      return visitor.template operator()<SixBitBlock>();
    default:
      return visitor.template operator()<void>();
  }
}

}  // namespace touchstone::linear_layer::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TOUCHSTONE_LINEAR_BLOCKS
#endif  // per-target include guard
