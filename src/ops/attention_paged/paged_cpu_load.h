// Reads stored keys and values into vectors of f32. No #pragma once: read once per target, after
// cpu/simd.h.
#include <cstddef>
#include <cstdint>
#include <limits>

#include "cache/codec.h"
#include "ops/attention_paged/paged_cpu.h"

#if defined(TOUCHSTONE_PAGED_CPU_LOAD_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TOUCHSTONE_PAGED_CPU_LOAD_H_
#undef TOUCHSTONE_PAGED_CPU_LOAD_H_
#else
#define TOUCHSTONE_PAGED_CPU_LOAD_H_
#endif

// Whether sixteen codes fit in a vector of sixteen lanes: the numbers of int4 are then computed
// once per group and looked up.
#undef TOUCHSTONE_PAGED_TABLE
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
#define TOUCHSTONE_PAGED_TABLE 1
#else
#define TOUCHSTONE_PAGED_TABLE 0
#endif

HWY_BEFORE_NAMESPACE();
namespace touchstone::paged_attention::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace sd = touchstone::simd::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
inline constexpr std::size_t kLanes = hn::MaxLanes(D());

// How the codes of a vector become numbers.
enum class Scaling : std::uint8_t {
  none,        // they are numbers
  per_token,   // one scale for all of them: applied to their sum
  per_group,   // scale * code
  asymmetric,  // minimum + scale * code
};

// Codes as f32, in packs: elements [i, i + kPack * kLanes) of a vector. Two vectors of a pack hold
// the even and the odd elements, see sd::load_pack.
template <DType kEncoding, bool kSigned>
struct DequantLoader {
  static constexpr bool kTwo =
      (kEncoding == DType::bf16 || kEncoding == DType::i4) && HWY_TARGET != HWY_SCALAR;
  static constexpr std::size_t kPack = kTwo ? 2 : 1;
  static constexpr std::size_t kBits = kEncoding == DType::f32    ? 32
                                       : kEncoding == DType::bf16 ? 16
                                       : kEncoding == DType::f16  ? 16
                                       : kEncoding == DType::i4   ? 4
                                                                  : 8;

  static HWY_INLINE void load(const std::byte* values, std::size_t i, V* pack) {
    const D d;
    const hn::RebindToSigned<D> di;
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(values);
    if constexpr (kEncoding == DType::f32) {
      pack[0] = sd::load(d, reinterpret_cast<const float*>(values) + i);
    } else if constexpr (kEncoding == DType::bf16) {
      sd::load_pack(d, reinterpret_cast<const Bf16*>(values) + i, pack);
    } else if constexpr (kEncoding == DType::f16) {
      pack[0] = sd::load(d, reinterpret_cast<const F16*>(values) + i);
    } else if constexpr (kEncoding == DType::i8 && kSigned) {
      const hn::Rebind<std::int8_t, D> d8;
      const auto codes = hn::LoadU(d8, reinterpret_cast<const std::int8_t*>(values) + i);
      pack[0] = hn::ConvertTo(d, hn::PromoteTo(di, codes));
    } else if constexpr (kEncoding == DType::i8) {
      const hn::Rebind<std::uint8_t, D> d8;
      pack[0] = hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d8, bytes + i)));
    } else if constexpr (kEncoding == DType::i4) {
      load_int4(bytes, i, pack);
    } else {
      pack[0] = load_fp8(bytes + i);
    }
  }

 private:
  static HWY_INLINE void load_int4(const std::uint8_t* bytes, std::size_t i, V* pack) {
    const D d;
    const hn::RebindToSigned<D> di;
    const auto number = [&](hn::Vec<hn::RebindToSigned<D>> code) {
      const V x = hn::ConvertTo(d, code);
      return kSigned ? hn::Sub(x, hn::Set(d, 8.0F)) : x;
    };
    if constexpr (kTwo) {
      const hn::Rebind<std::uint8_t, D> d8;
      const auto two = hn::PromoteTo(di, hn::LoadU(d8, bytes + i / 2));
      pack[0] = number(hn::And(two, hn::Set(di, 15)));
      pack[1] = number(hn::ShiftRight<4>(two));
    } else {
      pack[0] = number(hn::Set(di, bytes[i / 2] >> (i % 2 * 4) & 15));
    }
  }

  static HWY_INLINE V load_fp8(const std::uint8_t* bytes) {
    const D d;
    const hn::RebindToSigned<D> di;
    const hn::Rebind<std::int8_t, D> d8;
    // Sign, exponent and mantissa where f32 has them; the sign has also gone into bits between.
    const auto code = hn::PromoteTo(di, hn::LoadU(d8, reinterpret_cast<const std::int8_t*>(bytes)));
    const auto placed = hn::And(hn::ShiftLeft<20>(code), hn::Set(di, -0x78100000));
    // The exponent biases are 7 and 127; a product with a power of two also normalizes subnormals.
    const auto number = hn::Mul(hn::BitCast(d, placed), hn::Set(d, 0x1p120F));
    const auto nan = hn::Set(d, std::numeric_limits<float>::quiet_NaN());
    const auto is_nan = hn::Ge(hn::Abs(number), hn::Set(d, 480.0F));
    return hn::IfThenElse(is_nan, nan, number);
  }
};

// A format as the kernels read it. Scales are f32 here, decode_scales made them so.
template <DType kEncoding, Scaling kScaling_>
struct Source {
  static constexpr Scaling kScaling = kScaling_;
  // Formats of paged_cpu_int8_vnni.h, where the processor has the instructions.
  static constexpr bool kCanUseLimbs = kEncoding == DType::i8 && kScaling == Scaling::per_token;
  using Code = DequantLoader<kEncoding, kScaling != Scaling::asymmetric>;
  // Whether `load` needs the scale of the group it is in.
  static constexpr bool kGroups = kScaling == Scaling::per_group || kScaling == Scaling::asymmetric;
  static constexpr std::size_t kPack = Code::kPack;
  static constexpr std::size_t kColumns = kPack * kLanes;
  // Bytes of a pack; 0 for the half of one that a lone lane of int4 reads.
  static constexpr std::size_t kPackBytes = kColumns * Code::kBits / 8;
  // Floats of scale per group.
  static constexpr std::size_t kScales = kScaling == Scaling::asymmetric ? 2 : 1;

  // `scale` is that of the group in which element i is.
  static HWY_INLINE void load(const std::byte* values, std::size_t i, const float* scale, V* pack) {
    const D d;
#if TOUCHSTONE_PAGED_TABLE
    if constexpr (kEncoding == DType::i4) return look_up(values, i, scale, pack);
#endif
    Code::load(values, i, pack);
    for (std::size_t k = 0; k < kPack; ++k) {
      if constexpr (kScaling == Scaling::per_group) pack[k] = hn::Mul(pack[k], hn::Set(d, *scale));
      if constexpr (kScaling == Scaling::asymmetric) {
        pack[k] = hn::MulAdd(pack[k], hn::Set(d, scale[0]), hn::Set(d, scale[1]));
      }
    }
  }

#if TOUCHSTONE_PAGED_TABLE
 private:
  static HWY_INLINE void look_up(const std::byte* values, std::size_t i, const float* scale,
                                 V* pack) {
    const D d;
    const hn::RebindToSigned<D> di;
    const hn::Rebind<std::uint8_t, D> d8;
    V table = hn::Iota(d, kScaling == Scaling::asymmetric ? 0.0F : -8.0F);
    if constexpr (kScaling == Scaling::per_group) table = hn::Mul(table, hn::Set(d, *scale));
    if constexpr (kScaling == Scaling::asymmetric) {
      table = hn::MulAdd(table, hn::Set(d, scale[0]), hn::Set(d, scale[1]));
    }
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(values) + i / 2;
    const auto two = hn::PromoteTo(di, hn::LoadU(d8, bytes));
    pack[0] = entries(table, two);
    pack[1] = entries(table, hn::ShiftRight<4>(two));
  }

  // The entries that the low four bits select. Not IndicesFromVec, which requires the other bits to
  // be zero: the instruction ignores them.
  static HWY_INLINE V entries(V table, hn::Vec<hn::RebindToSigned<D>> bits) {
    const decltype(hn::IndicesFromVec(D(), bits)) indices{bits.raw};
    return hn::TableLookupLanes(table, indices);
  }
#endif
};

// Tokens that were decoded beforehand, and f32 itself.
using PlainSource = Source<DType::f32, Scaling::none>;

// Whether the kernels read this format as it is. Otherwise the tokens are decoded beforehand.
inline bool reads_directly(const QuantFormat& format, std::int64_t dim) {
  const bool two = format.dtype == DType::bf16 || format.dtype == DType::i4;
  const auto columns =
      static_cast<std::int64_t>(two && HWY_TARGET != HWY_SCALAR ? 2 * kLanes : kLanes);
  if (dim % columns != 0) return false;
  const std::int64_t group = cache::group_length(format, dim);
  return !is_quantized(format.dtype) || (group % columns == 0 && dim % group == 0);
}

// Whether vectors are in the order of packs: even elements, then odd ones.
inline bool in_pack_order(const QuantFormat& format, std::int64_t dim) {
  return HWY_TARGET != HWY_SCALAR && reads_directly(format, dim) &&
         (format.dtype == DType::bf16 || format.dtype == DType::i4);
}

// Calls visitor.operator()<Source>() with the source that reads the format.
template <class Visitor>
HWY_INLINE void visit_source(const QuantFormat& format, std::int64_t dim, Visitor&& visitor) {
  if (!reads_directly(format, dim)) return visitor.template operator()<PlainSource>();
  const auto quantized = [&]<DType kEncoding>() {
    if (kEncoding != DType::f8_e4m3 && format.asymmetric) {
      visitor.template operator()<Source<kEncoding, Scaling::asymmetric>>();
    } else if (cache::group_length(format, dim) == dim) {
      visitor.template operator()<Source<kEncoding, Scaling::per_token>>();
    } else {
      visitor.template operator()<Source<kEncoding, Scaling::per_group>>();
    }
  };
  switch (format.dtype) {
    case DType::f32:
      return visitor.template operator()<PlainSource>();
    case DType::bf16:
      return visitor.template operator()<Source<DType::bf16, Scaling::none>>();
    case DType::f16:
      return visitor.template operator()<Source<DType::f16, Scaling::none>>();
    case DType::i8:
      return quantized.template operator()<DType::i8>();
    case DType::i4:
      return quantized.template operator()<DType::i4>();
    case DType::f8_e4m3:
      return quantized.template operator()<DType::f8_e4m3>();
    default:
      return;  // no format of a checked layout
  }
}

// The scales of tokens [first, first + tokens), `each` numbers of them per token, as f32; those of
// the KV head that is `offset` bytes further. Tokens side by side in a page have their scales side
// by side, unless a value is only the beginning of a key.
template <class T>
HWY_INLINE void decode_scales(const TokenAddresses& addresses, std::size_t first,
                              std::int64_t offset, std::size_t tokens, std::size_t each,
                              float* to) {
  const D d;
  const bool all = addresses.scale_bytes == static_cast<std::int64_t>(each * sizeof(T));
  for (std::size_t t = 0; t < tokens;) {
    const std::size_t run = all ? std::min<std::size_t>(addresses.run[first + t], tokens - t) : 1;
    const T* const from = reinterpret_cast<const T*>(addresses.scales[first + t] + offset);
    const std::size_t n = run * each;
    for (std::size_t i = 0; i < n; i += kLanes) {
      hn::StoreU(sd::load_some(d, from + i, std::min(kLanes, n - i)), d, to + t * each + i);
    }
    t += run;
  }
}

}  // namespace touchstone::paged_attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
