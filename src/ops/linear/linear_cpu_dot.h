// Sums of four products of unsigned codes and signed bytes in the 32-bit lanes of a vector, exact
// in every variant. AVX2 and AVX-512 only. No #pragma once: read once per target, after cpu/simd.h.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu/vnni.h"

#if defined(TOUCHSTONE_LINEAR_CPU_DOT_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TOUCHSTONE_LINEAR_CPU_DOT_H_
#undef TOUCHSTONE_LINEAR_CPU_DOT_H_
#else
#define TOUCHSTONE_LINEAR_CPU_DOT_H_
#endif

#if HWY_ARCH_X86 && (HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3)

HWY_BEFORE_NAMESPACE();
namespace touchstone::linear_layer::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using CodeTag = hn::ScalableTag<std::uint8_t>;
using ByteTag = hn::ScalableTag<std::int8_t>;
using IntTag = hn::ScalableTag<std::int32_t>;
using CodeVec = hn::Vec<CodeTag>;
using ByteVec = hn::Vec<ByteTag>;
using IntVec = hn::Vec<IntTag>;

#if HWY_TARGET == HWY_AVX3

// Whether to use the instruction below. It is not part of a target that is compiled, hence written
// in assembly.
HWY_INLINE bool has_vnni() { return uses_vnni(); }
HWY_INLINE __m512i vnni_dot4(__m512i acc, __m512i codes, __m512i q) {
  asm("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(codes), "v"(q));
  return acc;
}
// The same four bytes for every lane.
HWY_INLINE __m512i vnni_dot4_of(__m512i acc, __m512i codes, const std::int8_t* q) {
  using Four [[gnu::may_alias, gnu::aligned(1)]] = std::int32_t;
  asm("vpdpbusd %2%{1to16%}, %1, %0"
      : "+v"(acc)
      : "v"(codes), "m"(*reinterpret_cast<const Four*>(q)));
  return acc;
}

#else

HWY_INLINE bool has_vnni() { return false; }

#endif

// Without that instruction the sum of two products has to fit 16 bits: codes of at most 128.
HWY_INLINE IntVec dot4(CodeVec codes, ByteVec q) {
#if HWY_TARGET == HWY_AVX3
  const __m512i pairs = _mm512_maddubs_epi16(codes.raw, q.raw);
  return IntVec{_mm512_madd_epi16(pairs, _mm512_set1_epi16(1))};
#else
  const __m256i pairs = _mm256_maddubs_epi16(codes.raw, q.raw);
  return IntVec{_mm256_madd_epi16(pairs, _mm256_set1_epi16(1))};
#endif
}
// The same of signed codes: |code| times the integer with the code's sign.
HWY_INLINE IntVec dot4_signed(CodeVec codes, ByteVec q) {
#if HWY_TARGET == HWY_AVX3
  const __m512i flipped =
      _mm512_mask_sub_epi8(q.raw, _mm512_movepi8_mask(codes.raw), _mm512_setzero_si512(), q.raw);
  return dot4(CodeVec{_mm512_abs_epi8(codes.raw)}, ByteVec{flipped});
#else
  return dot4(CodeVec{_mm256_abs_epi8(codes.raw)}, ByteVec{_mm256_sign_epi8(q.raw, codes.raw)});
#endif
}

// acc + the products; kSigned: of signed codes, without VNNI only.
template <bool kVnni, bool kSigned>
HWY_INLINE IntVec add_dot4(IntVec acc, CodeVec codes, ByteVec q) {
  static_assert(!(kVnni && kSigned));
#if HWY_TARGET == HWY_AVX3
  if constexpr (kVnni) return IntVec{vnni_dot4(acc.raw, codes.raw, q.raw)};
#endif
  return hn::Add(acc, kSigned ? dot4_signed(codes, q) : dot4(codes, q));
}
// The same four bytes for every lane.
template <bool kVnni, bool kSigned>
HWY_INLINE IntVec add_dot4_of(IntVec acc, CodeVec codes, const std::int8_t* q) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (kVnni) return IntVec{vnni_dot4_of(acc.raw, codes.raw, q)};
#endif
  std::int32_t four = 0;
  std::memcpy(&four, q, sizeof(four));
  return add_dot4<kVnni, kSigned>(acc, codes, hn::BitCast(ByteTag(), hn::Set(IntTag(), four)));
}

}  // namespace touchstone::linear_layer::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // AVX2, AVX-512
#endif  // per-target include guard
