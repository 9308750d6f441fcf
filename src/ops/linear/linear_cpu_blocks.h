// Block formats as codes, 32 columns at a time: weight = scale * (code - offset) + min. What the
// f32 kernels widen and the int8 kernels multiply as integers. AVX2 and AVX-512 only; other targets
// decode with the format's own function. No #pragma once: read once per target, after cpu/simd.h.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu/ternary_layout.h"
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

HWY_INLINE const std::uint8_t* code_bytes(const std::byte* p) {
  return reinterpret_cast<const std::uint8_t*>(p);
}
HWY_INLINE hn::Vec<Lanes8> load_scale(const std::byte* p) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, p, sizeof(bits));
  return sd::widen_f16(Lanes8(), hn::Set(sd::Bits16<Lanes8>(), bits));
}
HWY_INLINE std::uint32_t load_word(const std::byte* p) {
  std::uint32_t word = 0;
  std::memcpy(&word, p, sizeof(word));
  return word;
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

// A format has kElements columns in a block of kBytes; `at` is the block, `column` the column in
// it. Its codes are signed bytes (kSigned), or kOffset is subtracted from them. What the f32
// kernels read besides: codes(), and with store_scales() the scale and the minimum of every kGroup
// columns.

template <std::int64_t kSize>
struct Int8Block {
  static constexpr std::size_t kElements = kSize;
  static constexpr std::size_t kBytes = kSize + 2;
  static constexpr std::size_t kGroup = kSize;
  static constexpr bool kSigned = true;
  static constexpr bool kMin = false;
  static constexpr int kOffset = 0;
};

// Codes of even index in the low halves.
template <std::int64_t kSize>
struct Int4Block {
  static constexpr std::size_t kElements = kSize;
  static constexpr std::size_t kBytes = kSize / 2 + 2;
  static constexpr std::size_t kGroup = kSize;
  static constexpr bool kSigned = false;
  static constexpr bool kMin = false;
  static constexpr int kOffset = 8;
};

// q4_0, q4_1, q5_0, q5_1.
template <bool kFifth, bool kHasMin>
struct NibbleBlock {
  static constexpr std::size_t kHeader = kHasMin ? 4 : 2;
  static constexpr std::size_t kElements = 32;
  static constexpr std::size_t kBytes = kHeader + (kFifth ? 4 : 0) + 16;
  static constexpr std::size_t kGroup = 32;
  static constexpr bool kSigned = false;
  static constexpr bool kMin = kHasMin;
  static constexpr int kOffset = kHasMin ? 0 : (kFifth ? 16 : 8);
  static HWY_INLINE void store_scales(const std::byte* at, float* scales, float* minima) {
    scales[0] = hn::GetLane(load_scale(at));
    if constexpr (kHasMin) minima[0] = hn::GetLane(load_scale(at + 2));
  }
  template <std::size_t kColumn>
  static HWY_INLINE hn::Vec<Codes32> codes(const std::byte* at) {
    const auto codes = split_nibbles(at + kBytes - 16);
    return kFifth ? with_bits(codes, at + kHeader) : codes;
  }
};

// q4_k, q5_k: sub-block i of 32 columns in the low (i even) or high halves of 32 bytes.
template <bool kFifth>
struct SuperBlock {
  static constexpr std::size_t kElements = 256;
  static constexpr std::size_t kBytes = 16 + (kFifth ? 32 : 0) + 128;
  static constexpr std::size_t kGroup = 32;
  static constexpr bool kSigned = false;
  static constexpr bool kMin = true;
  static constexpr int kOffset = 0;
  static HWY_INLINE void store_scales(const std::byte* at, float* scales, float* minima) {
    const Lanes8 d;
    const hn::Rebind<std::uint8_t, Lanes8> d8;
    const hn::Rebind<std::int32_t, Lanes8> di;
    // weights::unpack_scale_min of four at a time.
    const std::uint32_t low = load_word(at + 4);
    const std::uint32_t high = load_word(at + 8);
    const std::uint32_t both = load_word(at + 12);
    const std::uint32_t words[4] = {
        low & 0x3f3f3f3fU, (both & 0x0f0f0f0fU) | (low >> 2 & 0x30303030U), high & 0x3f3f3f3fU,
        (both >> 4 & 0x0f0f0f0fU) | (high >> 2 & 0x30303030U)};
    const auto numbers = [&](std::size_t word) HWY_ATTR {
      const auto bytes = hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(words + word));
      return hn::ConvertTo(d, hn::PromoteTo(di, bytes));
    };
    hn::StoreU(hn::Mul(load_scale(at), numbers(0)), d, scales);
    hn::StoreU(hn::Neg(hn::Mul(load_scale(at + 2), numbers(2))), d, minima);
  }
  template <std::size_t kColumn>
  static HWY_INLINE hn::Vec<Codes32> codes(const std::byte* at) {
    const Codes32 d;
    constexpr std::size_t kSub = kColumn / kBlockColumns;
    const auto v = hn::LoadU(d, code_bytes(at + kBytes - 128 + kSub / 2 * 32));
    const auto codes = low_nibbles(d, kSub % 2 == 0 ? v : shift_right<4>(d, v));
    if constexpr (!kFifth) return codes;
    const auto bit = hn::Set(d, static_cast<std::uint8_t>(1U << kSub));
    const auto set = hn::TestBit(hn::LoadU(d, code_bytes(at + 16)), bit);
    return hn::Or(codes, hn::IfThenElseZero(set, hn::Set(d, std::uint8_t{16})));
  }
};

// q6_k: scales of 16 columns each.
struct SixBitBlock {
  static constexpr std::size_t kElements = 256;
  static constexpr std::size_t kBytes = 210;
  static constexpr std::size_t kGroup = 16;
  static constexpr bool kSigned = false;
  static constexpr bool kMin = false;
  static constexpr int kOffset = 32;
  static HWY_INLINE void store_scales(const std::byte* at, float* scales, float* /*minima*/) {
    const Lanes8 d;
    const hn::Rebind<std::int8_t, Lanes8> d8;
    const hn::Rebind<std::int32_t, Lanes8> di;
    const auto scale = load_scale(at + 208);
    for (std::size_t i = 0; i < 16; i += 8) {
      const auto bytes = hn::LoadU(d8, reinterpret_cast<const std::int8_t*>(at + 192 + i));
      hn::StoreU(hn::Mul(scale, hn::ConvertTo(d, hn::PromoteTo(di, bytes))), d, scales + i);
    }
  }
  template <std::size_t kColumn>
  static HWY_INLINE hn::Vec<Codes32> codes(const std::byte* at) {
    const Codes32 d;
    constexpr std::size_t kHalf = kColumn / 128;
    constexpr std::size_t kQuarter = kColumn % 128 / kBlockColumns;
    const auto v = hn::LoadU(d, code_bytes(at + 64 * kHalf + kQuarter % 2 * 32));
    const auto low = low_nibbles(d, kQuarter < 2 ? v : shift_right<4>(d, v));
    const auto pairs = hn::LoadU(d, code_bytes(at + 128 + 32 * kHalf));
    const hn::Repartition<std::uint16_t, Codes32> d16;
    auto upper = pairs;
    if constexpr (kQuarter < 2) {
      upper = hn::BitCast(d, hn::ShiftLeft<4 - 2 * kQuarter>(hn::BitCast(d16, pairs)));
    } else if constexpr (kQuarter == 3) {
      upper = shift_right<2>(d, pairs);
    }
    return hn::Or(low, hn::And(upper, hn::Set(d, std::uint8_t{0x30})));
  }
};

// Ternary codes, plus 1, for the int8 kernels; linear_cpu_source.h has the f32 kernels'.
// ternary_g128, pq2_0 and tq2_0 have an int8 kernel of their own, linear_ternary_cpu.cc.
template <WeightFormatId kFormat>
struct TernaryBlock {
  static constexpr WeightFormatId kId = kFormat;
  static constexpr ternary::Layout kLayout = ternary::layout_of(kId);
  static constexpr auto kElements = static_cast<std::size_t>(kLayout.elements);
  static constexpr auto kBytes = static_cast<std::size_t>(ternary::block_bytes(kLayout));
  static constexpr std::size_t kGroup = kElements;
  static constexpr bool kSigned = false;
  static constexpr bool kMin = false;
  static constexpr int kOffset = 1;
};

// Calls visitor.operator()<Block>() with the format's block; operator()<void>() for formats that
// are no codes.
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
    case Id::ternary_g32:
      return visitor.template operator()<TernaryBlock<Id::ternary_g32>>();
    case Id::ternary_g64:
      return visitor.template operator()<TernaryBlock<Id::ternary_g64>>();
    case Id::ternary_g256:
      return visitor.template operator()<TernaryBlock<Id::ternary_g256>>();
    case Id::base3_g128:
      return visitor.template operator()<TernaryBlock<Id::base3_g128>>();
    case Id::sherry_g128:
      return visitor.template operator()<TernaryBlock<Id::sherry_g128>>();
    case Id::tq1_0:
      return visitor.template operator()<TernaryBlock<Id::tq1_0>>();
    case Id::q2_0:
      return visitor.template operator()<TernaryBlock<Id::q2_0>>();
    case Id::ptq1_0:
      return visitor.template operator()<TernaryBlock<Id::ptq1_0>>();
    default:
      return visitor.template operator()<void>();
  }
}

}  // namespace touchstone::linear_layer::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TOUCHSTONE_LINEAR_BLOCKS
#endif  // per-target include guard
