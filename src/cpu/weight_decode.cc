// Blocks of weights to f32. Nibbles and bytes are widened in vectors; what a format does besides
// that is a scale and a minimum per 16 or 32 values.
#include "cpu/weight_codec.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/weight_decode.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "cpu/simd.h"

HWY_BEFORE_NAMESPACE();
namespace touchstone::inline v0::weights::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace sd = touchstone::simd::HWY_NAMESPACE;
using D = hn::CappedTag<float, 16>;
using Bytes = hn::Rebind<std::uint8_t, D>;
using Signed = hn::Rebind<std::int8_t, D>;
using Ints = hn::Rebind<std::int32_t, D>;

HWY_INLINE const std::uint8_t* bytes_of(const std::byte* p) {
  return reinterpret_cast<const std::uint8_t*>(p);
}

HWY_INLINE hn::Vec<D> to_float(hn::Vec<Bytes> codes) {
  return hn::ConvertTo(D(), hn::PromoteTo(Ints(), codes));
}
HWY_INLINE hn::Vec<D> to_float_minus(hn::Vec<Bytes> codes, std::int32_t bias) {
  return hn::ConvertTo(D(), hn::Sub(hn::PromoteTo(Ints(), codes), hn::Set(Ints(), bias)));
}

// A block of 32 nibbles: the low ones of 16 bytes, then the high ones; scale * (code - bias) + shift.
// `upper` holds a fifth bit per code, 0 or 16, or is null. Without a shift nothing is added: that
// would turn -0 into 0.
template <bool kShift>
HWY_INLINE void nibbles(const std::uint8_t* p, float scale, std::int32_t bias, float shift,
                        float* to, const std::uint8_t* upper = nullptr) {
  const D d;
  const Bytes db;
  const auto s = hn::Set(d, scale);
  const auto t = hn::Set(d, shift);
  for (std::size_t i = 0; i < 16; i += hn::Lanes(d)) {
    const auto v = hn::LoadU(db, p + i);
    auto a = hn::And(v, hn::Set(db, std::uint8_t{15}));
    auto b = hn::ShiftRight<4>(v);
    if (upper != nullptr) {
      a = hn::Or(a, hn::LoadU(db, upper + i));
      b = hn::Or(b, hn::LoadU(db, upper + 16 + i));
    }
    auto x = hn::Mul(s, to_float_minus(a, bias));
    auto y = hn::Mul(s, to_float_minus(b, bias));
    if constexpr (kShift) {
      x = hn::Add(x, t);
      y = hn::Add(y, t);
    }
    hn::StoreU(x, d, to + i);
    hn::StoreU(y, d, to + 16 + i);
  }
}

// Past the cache where `to` is aligned and what is written will not be read soon: that saves reading
// every line before it is overwritten.
template <bool kStream>
HWY_INLINE void put(hn::Vec<D> v, float* to) {
  if constexpr (kStream) {
    hn::Stream(v, D(), to);
  } else {
    hn::StoreU(v, D(), to);
  }
}

// Two sub-blocks of q4_k, the low and the high nibbles of 32 bytes: scale * code - min. `upper` holds the fifth bits of 32
// codes, in the bit `bit` for the low nibbles and the next one for the high nibbles.
template <bool kFifth, bool kStream>
HWY_INLINE void nibbles_minus(const std::uint8_t* p, float scale_low, float min_low,
                              float scale_high, float min_high, float* to,
                              const std::uint8_t* upper, unsigned bit) {
  const D d;
  const Bytes db;
  const auto sl = hn::Set(d, scale_low);
  const auto ml = hn::Set(d, min_low);
  const auto sh = hn::Set(d, scale_high);
  const auto mh = hn::Set(d, min_high);
  for (std::size_t i = 0; i < 32; i += hn::Lanes(d)) {
    const auto v = hn::LoadU(db, p + i);
    auto a = hn::And(v, hn::Set(db, std::uint8_t{15}));
    auto b = hn::ShiftRight<4>(v);
    if constexpr (kFifth) {
      const auto u = hn::LoadU(db, upper + i);
      const auto sixteen = hn::Set(db, std::uint8_t{16});
      const auto first = hn::Set(db, static_cast<std::uint8_t>(1U << bit));
      const auto second = hn::Set(db, static_cast<std::uint8_t>(2U << bit));
      a = hn::Or(a, hn::IfThenElseZero(hn::Eq(hn::And(u, first), first), sixteen));
      b = hn::Or(b, hn::IfThenElseZero(hn::Eq(hn::And(u, second), second), sixteen));
    }
    put<kStream>(hn::Sub(hn::Mul(sl, to_float(a)), ml), to + i);
    put<kStream>(hn::Sub(hn::Mul(sh, to_float(b)), mh), to + 32 + i);
  }
}

// `n` signed bytes times a scale.
HWY_INLINE void scaled_bytes(const std::uint8_t* p, std::size_t n, float scale, float* to) {
  const D d;
  const Signed ds;
  const auto s = hn::Set(d, scale);
  for (std::size_t i = 0; i < n; i += hn::Lanes(d)) {
    const auto v = hn::BitCast(ds, hn::LoadU(Bytes(), p + i));
    hn::StoreU(hn::Mul(s, hn::ConvertTo(d, hn::PromoteTo(Ints(), v))), d, to + i);
  }
}

template <class T>
void halves(const std::byte* from, std::int64_t n, float* to) {
  const D d;
  const hn::Rebind<std::uint16_t, D> d16;
  const auto count = static_cast<std::size_t>(n);
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  HWY_ALIGN std::uint16_t bits[16];
  for (; i + lanes <= count; i += lanes) {
    std::memcpy(bits, from + 2 * i, 2 * lanes);  // the file aligns nothing
    hn::StoreU(sd::widen<T>(d, hn::Load(d16, bits)), d, to + i);
  }
  for (; i < count; ++i) {
    std::memcpy(bits, from + 2 * i, 2);
    to[i] = static_cast<float>(T::from_bits(bits[0]));
  }
}
void bf16(const std::byte* from, std::int64_t n, float* to) { halves<Bf16>(from, n, to); }
void f16(const std::byte* from, std::int64_t n, float* to) { halves<F16>(from, n, to); }

template <int kGroup>
void int8_group(const std::byte* from, std::int64_t n, float* to) {
  for (std::int64_t b = 0; b < n; ++b, from += kGroup + 2, to += kGroup) {
    scaled_bytes(bytes_of(from + 2), kGroup, load_f16(from), to);
  }
}
void int8_g32(const std::byte* from, std::int64_t n, float* to) { int8_group<32>(from, n, to); }
void int8_g64(const std::byte* from, std::int64_t n, float* to) { int8_group<64>(from, n, to); }
void int8_g128(const std::byte* from, std::int64_t n, float* to) { int8_group<128>(from, n, to); }

template <int kGroup>
void int4_group(const std::byte* from, std::int64_t n, float* to) {
  std::uint8_t codes[kGroup];
  for (std::int64_t b = 0; b < n; ++b, from += kGroup / 2 + 2, to += kGroup) {
    const std::uint8_t* const packed = bytes_of(from + 2);
    for (std::size_t i = 0; i < kGroup / 2; ++i) {
      codes[2 * i] = static_cast<std::uint8_t>((packed[i] & 15) - 8);
      codes[2 * i + 1] = static_cast<std::uint8_t>((packed[i] >> 4) - 8);
    }
    scaled_bytes(codes, kGroup, load_f16(from), to);
  }
}
void int4_g32(const std::byte* from, std::int64_t n, float* to) { int4_group<32>(from, n, to); }
void int4_g64(const std::byte* from, std::int64_t n, float* to) { int4_group<64>(from, n, to); }
void int4_g128(const std::byte* from, std::int64_t n, float* to) { int4_group<128>(from, n, to); }

void q4_0(const std::byte* from, std::int64_t n, float* to) {
  for (std::int64_t b = 0; b < n; ++b, from += 18, to += kBlock) {
    nibbles<false>(bytes_of(from + 2), load_f16(from), 8, 0, to);
  }
}

void q4_1(const std::byte* from, std::int64_t n, float* to) {
  for (std::int64_t b = 0; b < n; ++b, from += 20, to += kBlock) {
    nibbles<true>(bytes_of(from + 4), load_f16(from), 0, load_f16(from + 2), to);
  }
}

// The fifth bits of 32 codes: 0 or 16 each.
HWY_INLINE void spread_bits(const std::byte* from, std::uint8_t* to) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, from, 4);
  for (unsigned i = 0; i < 32; ++i) to[i] = static_cast<std::uint8_t>(((bits >> i) & 1) << 4);
}

void q5_0(const std::byte* from, std::int64_t n, float* to) {
  std::uint8_t upper[32];
  for (std::int64_t b = 0; b < n; ++b, from += 22, to += kBlock) {
    spread_bits(from + 2, upper);
    nibbles<false>(bytes_of(from + 6), load_f16(from), 16, 0, to, upper);
  }
}

void q5_1(const std::byte* from, std::int64_t n, float* to) {
  std::uint8_t upper[32];
  for (std::int64_t b = 0; b < n; ++b, from += 24, to += kBlock) {
    spread_bits(from + 4, upper);
    nibbles<true>(bytes_of(from + 8), load_f16(from), 0, load_f16(from + 2), to, upper);
  }
}

// 16 MB of values: more than the share of a thread in the last-level cache.
constexpr std::int64_t kStreamedBlocks = (std::int64_t{16} << 20) / (kSuper * 4);

// d, dmin, packed scales and minima, for q5_k 32 bytes of fifth bits, 128 bytes of nibbles.
template <bool kFifth, bool kStream>
HWY_INLINE void k_blocks_to(const std::byte* from, std::int64_t n, float* to) {
  constexpr int kBytes = 4 + kScaleBytes + (kFifth ? 32 : 0) + 128;
  for (std::int64_t b = 0; b < n; ++b, from += kBytes, to += kSuper) {
    const float d = load_f16(from);
    const float dmin = load_f16(from + 2);
    const std::uint8_t* const packed = bytes_of(from + 4);
    const std::uint8_t* const upper = packed + kScaleBytes;
    const std::uint8_t* const codes = upper + (kFifth ? 32 : 0);
    for (int pair = 0; pair < 4; ++pair) {
      const ScaleMin low = unpack_scale_min(packed, 2 * pair);
      const ScaleMin high = unpack_scale_min(packed, 2 * pair + 1);
      nibbles_minus<kFifth, kStream>(
          codes + 32 * pair, d * static_cast<float>(low.scale), dmin * static_cast<float>(low.min),
          d * static_cast<float>(high.scale), dmin * static_cast<float>(high.min), to + 64 * pair,
          upper, static_cast<unsigned>(2 * pair));
    }
  }
}
template <bool kFifth>
HWY_INLINE void k_blocks(const std::byte* from, std::int64_t n, float* to) {
  const bool aligned = reinterpret_cast<std::uintptr_t>(to) % sizeof(hn::Vec<D>) == 0;
  if (aligned && n >= kStreamedBlocks) {
    k_blocks_to<kFifth, true>(from, n, to);
    hwy::FlushStream();
  } else {
    k_blocks_to<kFifth, false>(from, n, to);
  }
}
void q4_k(const std::byte* from, std::int64_t n, float* to) { k_blocks<false>(from, n, to); }
void q5_k(const std::byte* from, std::int64_t n, float* to) { k_blocks<true>(from, n, to); }

// 32 codes of q6_k with two scales: four bits from `low`, two from `high`.
template <int kNibble, int kPair>
HWY_INLINE void six_bits(const std::uint8_t* low, const std::uint8_t* high, float scale0,
                         float scale1, float* to) {
  const D d;
  const Bytes db;
  for (std::size_t i = 0; i < 32; i += hn::Lanes(d)) {
    auto a = hn::LoadU(db, low + i);
    a = kNibble == 0 ? hn::And(a, hn::Set(db, std::uint8_t{15})) : hn::ShiftRight<4>(a);
    const auto u = hn::ShiftRight<2 * kPair>(hn::LoadU(db, high + i));
    const auto code = hn::Or(a, hn::ShiftLeft<4>(hn::And(u, hn::Set(db, std::uint8_t{3}))));
    const auto s = hn::Set(d, i < 16 ? scale0 : scale1);
    hn::StoreU(hn::Mul(s, to_float_minus(code, 32)), d, to + i);
  }
}

// 128 bytes of low nibbles, 64 of upper pairs, 16 signed scales, d.
void q6_k(const std::byte* from, std::int64_t n, float* to) {
  for (std::int64_t b = 0; b < n; ++b, from += 210, to += kSuper) {
    const float d = load_f16(from + 208);
    float scales[16];
    for (std::size_t i = 0; i < 16; ++i) {
      scales[i] = d * static_cast<float>(static_cast<std::int8_t>(from[192 + i]));
    }
    for (int half = 0; half < 2; ++half) {
      const std::uint8_t* const low = bytes_of(from) + 64 * half;
      const std::uint8_t* const high = bytes_of(from) + 128 + 32 * half;
      const float* const s = scales + 8 * half;
      float* const out = to + 128 * half;
      six_bits<0, 0>(low, high, s[0], s[1], out);
      six_bits<0, 1>(low + 32, high, s[2], s[3], out + 32);
      six_bits<1, 2>(low, high, s[4], s[5], out + 64);
      six_bits<1, 3>(low + 32, high, s[6], s[7], out + 96);
    }
  }
}

}  // namespace touchstone::inline v0::weights::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <array>

namespace touchstone::inline v0::weights {

HWY_EXPORT(bf16);
HWY_EXPORT(f16);
HWY_EXPORT(int8_g32);
HWY_EXPORT(int8_g64);
HWY_EXPORT(int8_g128);
HWY_EXPORT(int4_g32);
HWY_EXPORT(int4_g64);
HWY_EXPORT(int4_g128);
HWY_EXPORT(q4_0);
HWY_EXPORT(q4_1);
HWY_EXPORT(q5_0);
HWY_EXPORT(q5_1);
HWY_EXPORT(q4_k);
HWY_EXPORT(q5_k);
HWY_EXPORT(q6_k);

void decode_f64(const std::byte* from, std::int64_t n, float* to) {
  for (std::int64_t i = 0; i < n; ++i) {
    double value = 0;
    std::memcpy(&value, from + 8 * i, 8);
    to[i] = static_cast<float>(value);
  }
}

void decode_f32(const std::byte* from, std::int64_t n, float* to) {
  if (n > 0) std::memcpy(to, from, static_cast<std::size_t>(n) * 4);
}

// e4m3 is f16 with one exponent bit less: shifted into place its values are too small by 2^8,
// subnormals included.
void decode_fp8_e4m3(const std::byte* from, std::int64_t n, float* to) {
  static const std::array<float, 256> kValues = [] {
    std::array<float, 256> values{};
    for (unsigned code = 0; code < 256; ++code) {
      const unsigned bits = (code & 0x7f) == 0x7f ? 0x7e00 : (code & 0x7f) << 7;
      const auto f16 = F16::from_bits(static_cast<std::uint16_t>(bits | (code & 0x80) << 8));
      values[code] = static_cast<float>(f16) * 0x1p8F;
    }
    return values;
  }();
  for (std::int64_t i = 0; i < n; ++i) to[i] = kValues[static_cast<std::size_t>(from[i])];
}

void decode_bf16(const std::byte* from, std::int64_t n, float* to) {
  HWY_DYNAMIC_DISPATCH(bf16)(from, n, to);
}
void decode_f16(const std::byte* from, std::int64_t n, float* to) {
  HWY_DYNAMIC_DISPATCH(f16)(from, n, to);
}
void decode_int8_g32(const std::byte* from, std::int64_t n, float* to) {
  HWY_DYNAMIC_DISPATCH(int8_g32)(from, n, to);
}
void decode_int8_g64(const std::byte* from, std::int64_t n, float* to) {
  HWY_DYNAMIC_DISPATCH(int8_g64)(from, n, to);
}
void decode_int8_g128(const std::byte* from, std::int64_t n, float* to) {
  HWY_DYNAMIC_DISPATCH(int8_g128)(from, n, to);
}
void decode_int4_g32(const std::byte* from, std::int64_t n, float* to) {
  HWY_DYNAMIC_DISPATCH(int4_g32)(from, n, to);
}
void decode_int4_g64(const std::byte* from, std::int64_t n, float* to) {
  HWY_DYNAMIC_DISPATCH(int4_g64)(from, n, to);
}
void decode_int4_g128(const std::byte* from, std::int64_t n, float* to) {
  HWY_DYNAMIC_DISPATCH(int4_g128)(from, n, to);
}
// The same layout as a group of 32 int8 codes.
void decode_q8_0(const std::byte* from, std::int64_t n, float* to) {
  HWY_DYNAMIC_DISPATCH(int8_g32)(from, n, to);
}
void decode_q4_0(const std::byte* from, std::int64_t n, float* to) {
  HWY_DYNAMIC_DISPATCH(q4_0)(from, n, to);
}
void decode_q4_1(const std::byte* from, std::int64_t n, float* to) {
  HWY_DYNAMIC_DISPATCH(q4_1)(from, n, to);
}
void decode_q5_0(const std::byte* from, std::int64_t n, float* to) {
  HWY_DYNAMIC_DISPATCH(q5_0)(from, n, to);
}
void decode_q5_1(const std::byte* from, std::int64_t n, float* to) {
  HWY_DYNAMIC_DISPATCH(q5_1)(from, n, to);
}
void decode_q4_k(const std::byte* from, std::int64_t n, float* to) {
  HWY_DYNAMIC_DISPATCH(q4_k)(from, n, to);
}
void decode_q5_k(const std::byte* from, std::int64_t n, float* to) {
  HWY_DYNAMIC_DISPATCH(q5_k)(from, n, to);
}
void decode_q6_k(const std::byte* from, std::int64_t n, float* to) {
  HWY_DYNAMIC_DISPATCH(q6_k)(from, n, to);
}

}  // namespace touchstone::inline v0::weights
#endif
