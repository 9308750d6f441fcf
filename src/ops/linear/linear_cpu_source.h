// Reads stored weights into vectors. No #pragma once: read once per target, after cpu/simd.h.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

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

  // What the weights of a block share: on AVX-512 with codes of four bits the sixteen numbers that it
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
  // kColumns weights from element `within` of the block on.
  HWY_INLINE void decode(const Block& from, std::size_t within, V* pack) const {
    decode_codes(from.codes + (kCodes == Codes::int8 ? within : within / 2), from.numbers, pack);
  }
  HWY_INLINE void load(const std::byte* row, std::size_t column, V* pack) const {
    decode(block(row, column), column % kGroup, pack);
  }
  HWY_INLINE V load_some(const std::byte* /*row*/, std::size_t /*column*/,
                         std::size_t /*n*/) const {
    return hn::Zero(D());  // rows are whole blocks: never reached
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
template <class Block>
inline constexpr bool kFourBits = false;
template <>
inline constexpr bool kFourBits<NibbleBlock<false, true>> = true;
template <>
inline constexpr bool kFourBits<SuperBlock<false>> = true;

// 32 weights of a block format from its codes.
template <class Block>
struct Blocks {
  using C = float;
  using Order = float;
  static constexpr bool kBlocks = false;  // every 32 columns have a scale of their own
  static constexpr std::size_t kColumns = kBlockColumns;
  static constexpr std::size_t kVectors = kColumns / kLanes<float>;

  explicit Blocks(const WeightFormat& /*format*/) {}
  HWY_INLINE void load(const std::byte* row, std::size_t column, V* pack) const {
#if HWY_TARGET == HWY_AVX3
    if constexpr (kFourBits<Block>) return look_up(row, column, pack);
#endif
    const BlockPart part = load_part<Block>(row, column);
    const Lanes8 d8;
    const auto low = hn::LowerHalf(Codes16(), part.codes);
    const auto high = hn::UpperHalf(Codes16(), part.codes);
    widen(low, hn::ConcatLowerLower(d8, part.scale, part.scale),
          hn::ConcatLowerLower(d8, part.min, part.min), pack);
    widen(high, hn::ConcatUpperUpper(d8, part.scale, part.scale),
          hn::ConcatUpperUpper(d8, part.min, part.min), pack + kVectors / 2);
  }
  HWY_INLINE V load_some(const std::byte* /*row*/, std::size_t /*column*/,
                         std::size_t /*n*/) const {
    return hn::Zero(D());  // rows are whole blocks: never reached
  }
  HWY_INLINE std::size_t offset(std::size_t column) const {
    return column / Block::kElements * Block::kBytes +
           column % Block::kElements * Block::kBytes / Block::kElements;
  }

 private:
#if HWY_TARGET == HWY_AVX3
  // The sixteen numbers that 32 columns can hold: a code, the lowest four bits of a lane, is the index of
  // one.
  static HWY_INLINE void look_up(const std::byte* row, std::size_t column, V* pack) {
    const std::byte* const at = row + column / Block::kElements * Block::kBytes;
    const auto [scale, min] = Block::scale_min(at, column % Block::kElements);
    const V numbers = hn::MulAdd(hn::Combine(D(), scale, scale),
                                 hn::ConvertTo(D(), hn::Iota(hn::RebindToSigned<D>(), 0)),
                                 hn::Combine(D(), min, min));
    const auto number = [&](__m512i lanes) { return V{_mm512_permutexvar_ps(lanes, numbers.raw)}; };
    const auto widened = [](const std::byte* p) {
      return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    };
    if constexpr (Block::kElements == 32) {  // 16 bytes: low halves, then high ones
      const __m512i two = widened(at + Block::kBytes - 16);
      pack[0] = number(two);
      pack[1] = number(_mm512_srli_epi32(two, 4));
    } else {  // the low or the high halves of 32 bytes
      const std::size_t sub = column % Block::kElements / kBlockColumns;
      const std::byte* const codes = at + 16 + sub / 2 * 32;
      const auto shift = static_cast<unsigned>(sub % 2 * 4);
      pack[0] = number(_mm512_srli_epi32(widened(codes), shift));
      pack[1] = number(_mm512_srli_epi32(widened(codes + 16), shift));
    }
  }
#endif
  static HWY_INLINE V weight(hn::Vec<hn::Rebind<std::uint8_t, D>> codes, V scale, V min) {
    const D d;
    const hn::RebindToSigned<D> di;
    const auto code = hn::Sub(hn::PromoteTo(di, codes), hn::Set(di, Block::kOffset));
    const V value = hn::ConvertTo(d, code);
    // scale * code is exact wherever there is a minimum: see weight_codec.h.
    return Block::kMin ? hn::MulAdd(scale, value, min) : hn::Mul(scale, value);
  }
  // 16 codes with one scale.
  static HWY_INLINE void widen(hn::Vec<Codes16> codes, hn::Vec<Lanes8> scale, hn::Vec<Lanes8> min,
                               V* pack) {
#if HWY_TARGET == HWY_AVX3
    pack[0] = weight(codes, hn::Combine(D(), scale, scale), hn::Combine(D(), min, min));
#else
    const hn::Half<Codes16> d8;
    pack[0] = weight(hn::LowerHalf(d8, codes), scale, min);
    pack[1] = weight(hn::UpperHalf(d8, codes), scale, min);
#endif
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
#endif
    default:
      return visitor.template operator()<void>();
  }
}

}  // namespace touchstone::linear_layer::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
