// Reads stored weights into vectors. No #pragma once: read once per target, after cpu/simd.h.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "cpu/ternary_layout.h"
#include "cpu/ternary_unpack.h"
#include "ops/linear/linear_cpu_blocks.h"
#include "ops/linear/linear_problem.h"

#if defined(TOUCHSTONE_LINEAR_CPU_SOURCE_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TOUCHSTONE_LINEAR_CPU_SOURCE_H_
#undef TOUCHSTONE_LINEAR_CPU_SOURCE_H_
#else
#define TOUCHSTONE_LINEAR_CPU_SOURCE_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace touchstone::linear_layer::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace sd = touchstone::simd::HWY_NAMESPACE;

template <class C>
using Tag = hn::ScalableTag<C>;
template <class C>
inline constexpr std::size_t kLanes = hn::MaxLanes(Tag<C>());

using D = Tag<float>;
using V = hn::Vec<D>;

// A source reads kColumns weights of a row, from a multiple of kColumns on, into kVectors vectors.
// Two vectors of an even-odd source hold the even and the odd weights, see sd::load_pack. `Order` is
// the type whose packs have the same order. Sources of blocks give what a block shares and its weights
// apart, see Groups.

// Weights of a floating point type.
template <class T>
struct Plain {
  using C = std::conditional_t<std::is_same_v<T, double>, double, float>;
  using Order = T;
  static constexpr bool kBlocks = false;
  static constexpr std::size_t kVectors = sd::kPack<T>;
  static constexpr std::size_t kColumns = kVectors * kLanes<C>;

  explicit Plain(const WeightFormat& /*format*/) {}
  HWY_INLINE void load(const std::byte* row, std::size_t column, hn::Vec<Tag<C>>* pack) const {
    sd::load_pack(Tag<C>(), reinterpret_cast<const T*>(row) + column, pack);
  }
  // n <= Lanes weights from any column on, zeros after them.
  HWY_INLINE hn::Vec<Tag<C>> load_some(const std::byte* row, std::size_t column,
                                       std::size_t n) const {
    return sd::load_some(Tag<C>(), reinterpret_cast<const T*>(row) + column, n);
  }
  // Bytes from the start of a row.
  HWY_INLINE std::size_t offset(std::size_t column) const { return column * sizeof(T); }
};

struct Fp8 {
  using C = float;
  using Order = float;
  static constexpr bool kBlocks = false;
  static constexpr std::size_t kVectors = 1;
  static constexpr std::size_t kColumns = kLanes<float>;

  explicit Fp8(const WeightFormat& /*format*/) {}
  HWY_INLINE void load(const std::byte* row, std::size_t column, V* pack) const {
    const hn::Rebind<std::int8_t, D> d8;
    pack[0] = widen(hn::LoadU(d8, reinterpret_cast<const std::int8_t*>(row) + column));
  }
  HWY_INLINE V load_some(const std::byte* row, std::size_t column, std::size_t n) const {
    const hn::Rebind<std::int8_t, D> d8;
    alignas(64) std::int8_t codes[kLanes<float>] = {};
    std::memcpy(codes, row + column, n);
    return widen(hn::Load(d8, codes));
  }
  HWY_INLINE std::size_t offset(std::size_t column) const { return column; }

 private:
  static HWY_INLINE V widen(hn::Vec<hn::Rebind<std::int8_t, D>> bytes) {
    const D d;
    const hn::RebindToSigned<D> di;
    // Codes below 8 are multiples of 2^-9; those above have exponent and mantissa where f32 has them
    // but for the bias, 7 and 127. A product that normalizes subnormals would do for both, slowly.
    const auto code = hn::PromoteTo(di, bytes);
    const auto magnitude = hn::And(code, hn::Set(di, 0x7f));
    const auto normal =
        hn::BitCast(d, hn::Add(hn::ShiftLeft<20>(magnitude), hn::Set(di, 120 << 23)));
    const auto small = hn::Mul(hn::ConvertTo(d, magnitude), hn::Set(d, 0x1p-9F));
    const auto is_small = hn::RebindMask(d, hn::Lt(magnitude, hn::Set(di, 8)));
    const auto value = hn::IfThenElse(is_small, small, normal);
    const auto nan = hn::Set(d, std::numeric_limits<float>::quiet_NaN());
    const auto is_nan = hn::RebindMask(d, hn::Eq(magnitude, hn::Set(di, 0x7f)));
    return hn::IfThenElse(is_nan, nan, hn::CopySign(value, hn::BitCast(d, code)));
  }
};

// ---- blocks -----------------------------------------------------------------------------------

// 32 weights of blocks of 32, 64 or 128 with an f16 scale in front.
enum class Codes : std::uint8_t {
  int8,     // signed bytes
  int4,     // code + 8, the even ones in the low half of their byte
  int4_16,  // code + 8, the first sixteen of 32 in the low halves of 16 bytes
};

// kGroup of them to a block, known to the compiler: the loop over a block has no branches then.
template <Codes kCodes, std::size_t kGroup>
class Groups {
 public:
  using C = float;
  // int4: the low and the high halves of bytes are the even and the odd weights.
  using Order = std::conditional_t<kCodes == Codes::int4, Bf16, float>;
  static constexpr bool kBlocks = true;
  static constexpr std::size_t kColumns = 32;
  static constexpr std::size_t kVectors = kColumns / kLanes<float>;

  // Elements and bytes of a block.
  static constexpr std::size_t kBlockColumns = kGroup;
  static constexpr std::size_t kBlockBytes = (kCodes == Codes::int8 ? kGroup : kGroup / 2) + 2;

  explicit Groups(const WeightFormat& /*format*/) {}

  // State per block of weights: on AVX-512 with codes of four bits the sixteen numbers that it
  // can hold, of which a code is the index, otherwise its scale.
  struct Block {
    const std::uint8_t* codes;
    V numbers;
  };
  HWY_INLINE Block block(const std::byte* row, std::size_t column) const {
    const D d;
    const std::byte* const from = row + column / kGroup * kBlockBytes;
    std::uint16_t bits = 0;
    std::memcpy(&bits, from, sizeof(bits));
    V numbers = sd::widen_f16(d, hn::Set(sd::Bits16<D>(), bits));
    if constexpr (kTable) {
      numbers = hn::Mul(numbers, hn::ConvertTo(d, hn::Iota(hn::RebindToSigned<D>(), -8)));
    }
    return {reinterpret_cast<const std::uint8_t*>(from + 2), numbers};
  }
  // kColumns weights from element kWithin of the block on.
  template <std::size_t kWithin>
  HWY_INLINE void decode(const Block& from, V* pack) const {
    decode_codes(from.codes + (kCodes == Codes::int8 ? kWithin : kWithin / 2), from.numbers, pack);
  }
  HWY_INLINE std::size_t offset(std::size_t column) const {
    const std::size_t within = column % kGroup;
    return column / kGroup * kBlockBytes + (kCodes == Codes::int8 ? within : within / 2);
  }

 private:
  static constexpr bool kTable =
      kCodes != Codes::int8 && HWY_ARCH_X86 != 0 && HWY_TARGET <= HWY_AVX3;

  static HWY_INLINE V number(V numbers, hn::Vec<hn::RebindToSigned<D>> code) {
    const D d;
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
    // Of an index the lowest four bits count: what lies above them need not go.
    using Indices = decltype(hn::IndicesFromVec(d, code));
    if constexpr (kTable) return hn::TableLookupLanes(numbers, Indices{code.raw});
#endif
    return hn::Mul(numbers, hn::ConvertTo(d, code));
  }

  static HWY_INLINE void decode_codes(const std::uint8_t* codes, V numbers, V* pack) {
    const hn::RebindToSigned<D> di;
    constexpr std::size_t kN = kLanes<float>;
    if constexpr (kCodes == Codes::int8) {
      const hn::Rebind<std::int8_t, D> d8;
      for (std::size_t v = 0; v < kVectors; ++v) {
        const auto bytes = hn::LoadU(d8, reinterpret_cast<const std::int8_t*>(codes) + v * kN);
        pack[v] = number(numbers, hn::PromoteTo(di, bytes));
      }
    } else {
      const hn::Rebind<std::uint8_t, D> d8;
      // Vectors of low halves and of high halves of the same bytes: beside each other in the order
      // of packs, or half of the 32 apart.
      constexpr std::size_t kStep = kCodes == Codes::int4 ? 2 : 1;
      constexpr std::size_t kHigh = kCodes == Codes::int4 ? 1 : kVectors / 2;
      for (std::size_t v = 0; v < kVectors / 2; ++v) {
        const auto two = hn::PromoteTo(di, hn::LoadU(d8, codes + v * kN));
        auto low = two;
        auto high = hn::ShiftRight<4>(two);
        if constexpr (!kTable) {
          low = hn::Sub(hn::And(low, hn::Set(di, 15)), hn::Set(di, 8));
          high = hn::Sub(high, hn::Set(di, 8));
        }
        pack[v * kStep] = number(numbers, low);
        pack[v * kStep + kHigh] = number(numbers, high);
      }
    }
  }
};

#if TOUCHSTONE_LINEAR_BLOCKS
template <class Format>
inline constexpr bool kFourBits = false;
template <>
inline constexpr bool kFourBits<NibbleBlock<false, true>> = true;
template <>
inline constexpr bool kFourBits<SuperBlock<false>> = true;

// Weights of a block format from its codes.
template <class Format>
class Blocks {
 public:
  using C = float;
  using Order = float;
  static constexpr bool kBlocks = true;
  static constexpr std::size_t kBlockColumns = Format::kElements;
  static constexpr std::size_t kBlockBytes = Format::kBytes;
  // 64: those of the low and of the high halves of the same bytes.
  static constexpr std::size_t kColumns = kBlockColumns == 32 ? 32 : 64;
  static constexpr std::size_t kVectors = kColumns / kLanes<float>;

  explicit Blocks(const WeightFormat& /*format*/) {}

  struct Block {
    const std::byte* at;
    float scales[kBlockColumns / Format::kGroup];
    float minima[kBlockColumns / Format::kGroup];  // of formats with kMin
  };
  HWY_INLINE Block block(const std::byte* row, std::size_t column) const {
    Block block;
    block.at = row + column / kBlockColumns * kBlockBytes;
    Format::store_scales(block.at, block.scales, block.minima);
    return block;
  }
  template <std::size_t kWithin>
  HWY_INLINE void decode(const Block& from, V* pack) const {
    decode_32<kWithin>(from, pack);
    if constexpr (kColumns == 64) decode_32<kWithin + 32>(from, pack + kVectors / 2);
  }
  HWY_INLINE std::size_t offset(std::size_t column) const {
    return column / kBlockColumns * kBlockBytes +
           column % kBlockColumns * kBlockBytes / kBlockColumns;
  }

 private:
  template <std::size_t kWithin>
  static HWY_INLINE void decode_32(const Block& from, V* pack) {
#if HWY_TARGET == HWY_AVX3
    if constexpr (kFourBits<Format>) return look_up<kWithin>(from, pack);
#endif
    const hn::FixedTag<std::int8_t, 32> d8;
    // Signed, without the offset.
    const auto codes =
        hn::BitCast(d8, hn::Sub(Format::template codes<kWithin>(from.at),
                                hn::Set(Codes32(), static_cast<std::uint8_t>(Format::kOffset))));
    const hn::Half<decltype(d8)> d16;
    constexpr std::size_t kFirst = kWithin / Format::kGroup;
    constexpr std::size_t kSecond = (kWithin + 16) / Format::kGroup;
    widen<kFirst>(from, hn::LowerHalf(d16, codes), pack);
    widen<kSecond>(from, hn::UpperHalf(d16, codes), pack + 16 / kLanes<float>);
  }
#if HWY_TARGET == HWY_AVX3
  // The sixteen numbers that 32 columns can hold: a code, the lowest four bits of a lane, is the index of
  // one.
  template <std::size_t kWithin>
  static HWY_INLINE void look_up(const Block& from, V* pack) {
    constexpr std::size_t kSub = kWithin / Format::kGroup;
    const V numbers = hn::MulAdd(hn::Set(D(), from.scales[kSub]),
                                 hn::ConvertTo(D(), hn::Iota(hn::RebindToSigned<D>(), 0)),
                                 hn::Set(D(), from.minima[kSub]));
    const auto number = [&](__m512i lanes)
                            HWY_ATTR { return V{_mm512_permutexvar_ps(lanes, numbers.raw)}; };
    const auto widened = [](const std::byte* p) HWY_ATTR {
      return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    };
    if constexpr (kBlockColumns == 32) {  // 16 bytes: low halves, then high ones
      const __m512i two = widened(from.at + kBlockBytes - 16);
      pack[0] = number(two);
      pack[1] = number(_mm512_srli_epi32(two, 4));
    } else {  // the low or the high halves of 32 bytes
      const std::byte* const codes = from.at + kBlockBytes - 128 + kSub / 2 * 32;
      constexpr unsigned kShift = kSub % 2 * 4;
      pack[0] = number(_mm512_srli_epi32(widened(codes), kShift));
      pack[1] = number(_mm512_srli_epi32(widened(codes + 16), kShift));
    }
  }
#endif
  // 16 codes with one scale.
  template <std::size_t kPart>
  static HWY_INLINE void widen(const Block& from, hn::Vec<hn::FixedTag<std::int8_t, 16>> codes,
                               V* pack) {
    const D d;
    const hn::RebindToSigned<D> di;
    const V scale = hn::Set(d, from.scales[kPart]);
    const auto weight = [&](hn::Vec<hn::Rebind<std::int8_t, D>> bytes) HWY_ATTR {
      const V value = hn::ConvertTo(d, hn::PromoteTo(di, bytes));
      // scale * code is exact wherever there is a minimum: see weight_codec.h.
      if constexpr (Format::kMin) return hn::MulAdd(scale, value, hn::Set(d, from.minima[kPart]));
      return hn::Mul(scale, value);
    };
#if HWY_TARGET == HWY_AVX3
    pack[0] = weight(codes);
#else
    const hn::FixedTag<std::int8_t, 8> d8;
    pack[0] = weight(hn::LowerHalf(d8, codes));
    pack[1] = weight(hn::UpperHalf(d8, codes));
#endif
  }
};

// Ternary weights: a code is the index of one of four numbers.
template <WeightFormatId kId>
class TernaryBlocks {
  static constexpr ternary::Layout kLayout = ternary::layout_of(kId);
  static constexpr std::size_t kN = kLanes<float>;
  static constexpr auto kPlane = static_cast<std::size_t>(kLayout.plane);
  // Formats whose codes come out of vectors of their bytes; others are unpacked to bytes first.
  static constexpr bool kPlanes =
      kLayout.packing == ternary::Packing::planes && kPlane >= kN && kPlane <= 4 * kN;
  static constexpr bool kPairs = kLayout.packing == ternary::Packing::pairs;
  static constexpr bool kUnpacked = !kPlanes && !kPairs;

 public:
  using C = float;
  using Order = float;
  static constexpr bool kBlocks = true;
  static constexpr auto kBlockColumns = static_cast<std::size_t>(kLayout.elements);
  static constexpr auto kBlockBytes = static_cast<std::size_t>(ternary::block_bytes(kLayout));
  static constexpr std::size_t kColumns =
      kPlanes ? 4 * kPlane : std::min<std::size_t>(kBlockColumns, 64);
  static constexpr std::size_t kVectors = kColumns / kN;

  explicit TernaryBlocks(const WeightFormat& /*format*/) {}

  struct Block {
    const std::uint8_t* codes;
    V numbers[2];  // by the low two bits of an index, and on AVX-512 by the two above them
    alignas(64) std::int8_t unpacked[kUnpacked ? kBlockColumns : 1];
  };
  HWY_INLINE Block block(const std::byte* row, std::size_t column) const {
    const D d;
    const hn::RebindToSigned<D> di;
    const std::byte* const at = row + column / kBlockColumns * kBlockBytes;
    Block block;
    block.codes = code_bytes(at + kLayout.codes);
    std::uint16_t bits = 0;
    std::memcpy(&bits, at + kLayout.scale, sizeof(bits));
    const V scale = sd::widen_f16(d, hn::Set(sd::Bits16<D>(), bits));
    const auto two_bits = [&](auto v) HWY_ATTR { return hn::And(v, hn::Set(di, 3)); };
    const auto number = [&](auto stored) HWY_ATTR {
      return hn::Mul(scale, hn::ConvertTo(d, hn::Sub(stored, hn::Set(di, 1))));
    };
    const auto index = hn::Iota(di, 0);
    if constexpr (kUnpacked) {
      ternary::unpack_block<kId>(code_bytes(at), block.unpacked);
      // Of codes from -1 to 2.
      block.numbers[0] = number(two_bits(hn::Add(index, hn::Set(di, 1))));
    } else {
      block.numbers[0] = number(two_bits(index));
      block.numbers[1] = number(two_bits(hn::ShiftRight<2>(index)));
    }
    return block;
  }
  template <std::size_t kWithin>
  HWY_INLINE void decode(const Block& from, V* pack) const {
    const hn::RebindToSigned<D> di;
    const hn::RebindToUnsigned<D> du;
    if constexpr (kPlanes) {
      const hn::Rebind<std::uint8_t, D> d8;
      constexpr std::size_t kStep = kPlane / kN;
      for (std::size_t v = 0; v < kStep; ++v) {
        const auto four = hn::PromoteTo(di, hn::LoadU(d8, from.codes + kWithin / 4 + v * kN));
        pack[v] = look_up(from.numbers[0], four);
        pack[kStep + v] = second(from, four);
        pack[2 * kStep + v] = look_up(from.numbers[0], hn::ShiftRight<4>(four));
        pack[3 * kStep + v] = second(from, hn::ShiftRight<4>(four));
      }
    } else if constexpr (kPairs) {
      const auto shifts = hn::ShiftLeft<1>(hn::Iota(du, 0));
      for (std::size_t v = 0; v < kVectors; ++v) {
        std::conditional_t<kN == 16, std::uint32_t, std::uint16_t> word = 0;
        std::memcpy(&word, from.codes + (kWithin + v * kN) / 4, sizeof(word));
        const auto lanes = hn::Shr(hn::Set(du, std::uint32_t{word}), shifts);
        pack[v] = look_up(from.numbers[0], hn::BitCast(di, lanes));
      }
    } else {
      const hn::Rebind<std::int8_t, D> d8;
      for (std::size_t v = 0; v < kVectors; ++v) {
        const auto codes = hn::PromoteTo(di, hn::Load(d8, from.unpacked + kWithin + v * kN));
        pack[v] = look_up(from.numbers[0], codes);
      }
    }
  }
  HWY_INLINE std::size_t offset(std::size_t column) const {
    return column / kBlockColumns * kBlockBytes;
  }

 private:
  // Of an index the lowest four bits count, on AVX2 three.
  static HWY_INLINE V look_up(V numbers, hn::Vec<hn::RebindToSigned<D>> index) {
#if HWY_TARGET == HWY_AVX3
    return V{_mm512_permutexvar_ps(index.raw, numbers.raw)};
#else
    return V{_mm256_permutevar8x32_ps(numbers.raw, index.raw)};
#endif
  }
  static HWY_INLINE V second(const Block& from, hn::Vec<hn::RebindToSigned<D>> index) {
    if constexpr (HWY_TARGET == HWY_AVX3) return look_up(from.numbers[1], index);
    return look_up(from.numbers[0], hn::ShiftRight<2>(index));
  }
};
#endif

// Calls visitor.operator()<Source>() with the source of the format; operator()<void>() where there is
// none and the format's own decode() has to do.
template <class Visitor>
HWY_INLINE void visit_source(const WeightFormat& format, Visitor&& visitor) {
  using Id = WeightFormatId;
  switch (format.id) {
    case Id::f64:
      return visitor.template operator()<Plain<double>>();
    case Id::f32:
      return visitor.template operator()<Plain<float>>();
#if HWY_TARGET != HWY_SCALAR
    case Id::bf16:
      return visitor.template operator()<Plain<Bf16>>();
    case Id::f16:
      return visitor.template operator()<Plain<F16>>();
    case Id::fp8_e4m3:
      return visitor.template operator()<Fp8>();
    case Id::int8_g32:
    case Id::q8_0:
      return visitor.template operator()<Groups<Codes::int8, 32>>();
    case Id::int8_g64:
      return visitor.template operator()<Groups<Codes::int8, 64>>();
    case Id::int8_g128:
      return visitor.template operator()<Groups<Codes::int8, 128>>();
    case Id::int4_g32:
      return visitor.template operator()<Groups<Codes::int4, 32>>();
    case Id::int4_g64:
      return visitor.template operator()<Groups<Codes::int4, 64>>();
    case Id::int4_g128:
      return visitor.template operator()<Groups<Codes::int4, 128>>();
    case Id::q4_0:
      return visitor.template operator()<Groups<Codes::int4_16, 32>>();
#endif
#if TOUCHSTONE_LINEAR_BLOCKS
    case Id::q4_1:
      return visitor.template operator()<Blocks<NibbleBlock<false, true>>>();
    case Id::q5_0:
      return visitor.template operator()<Blocks<NibbleBlock<true, false>>>();
    case Id::q5_1:
      return visitor.template operator()<Blocks<NibbleBlock<true, true>>>();
    case Id::q4_k:
      return visitor.template operator()<Blocks<SuperBlock<false>>>();
    case Id::q5_k:
      return visitor.template operator()<Blocks<SuperBlock<true>>>();
    case Id::q6_k:
      return visitor.template operator()<Blocks<SixBitBlock>>();
    case Id::ternary_g32:
      return visitor.template operator()<TernaryBlocks<Id::ternary_g32>>();
    case Id::ternary_g64:
      return visitor.template operator()<TernaryBlocks<Id::ternary_g64>>();
    case Id::ternary_g128:
      return visitor.template operator()<TernaryBlocks<Id::ternary_g128>>();
    case Id::ternary_g256:
      return visitor.template operator()<TernaryBlocks<Id::ternary_g256>>();
    case Id::base3_g128:
      return visitor.template operator()<TernaryBlocks<Id::base3_g128>>();
    case Id::sherry_g128:
      return visitor.template operator()<TernaryBlocks<Id::sherry_g128>>();
    case Id::tq1_0:
      return visitor.template operator()<TernaryBlocks<Id::tq1_0>>();
    case Id::tq2_0:
      return visitor.template operator()<TernaryBlocks<Id::tq2_0>>();
    case Id::q2_0:
      return visitor.template operator()<TernaryBlocks<Id::q2_0>>();
    case Id::pq2_0:
      return visitor.template operator()<TernaryBlocks<Id::pq2_0>>();
    case Id::ptq1_0:
      return visitor.template operator()<TernaryBlocks<Id::ptq1_0>>();
#endif
    default:
      return visitor.template operator()<void>();
  }
}

}  // namespace touchstone::linear_layer::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
