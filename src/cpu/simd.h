// The SIMD layer over Highway: loads that widen element types to the lanes of arithmetic and stores
// that narrow them, tails that never touch memory past the end, streaming stores, sums in a fixed
// order.
// Written to the subset of Highway 1.0.3.
//
// A source file that is compiled for every SIMD target starts like this:
//
//   #undef HWY_TARGET_INCLUDE
//   #define HWY_TARGET_INCLUDE "ops/norm/norm_cpu_forward.cc"  // the file itself
//   #include "hwy/foreach_target.h"
//   #include "cpu/simd.h"
//
//   HWY_BEFORE_NAMESPACE();
//   namespace touchstone::norm::HWY_NAMESPACE { ... void work(int n) { ... } ... }
//   HWY_AFTER_NAMESPACE();
//
//   #if HWY_ONCE
//   namespace touchstone::norm {
//   HWY_EXPORT(work);
//   void run(int n) { HWY_DYNAMIC_DISPATCH(work)(n); }
//   }
//   #endif
//
// No #pragma once: this file is read once per target.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "touchstone/core/half.h"

#if defined(TOUCHSTONE_CPU_SIMD_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TOUCHSTONE_CPU_SIMD_H_
#undef TOUCHSTONE_CPU_SIMD_H_
#else
#define TOUCHSTONE_CPU_SIMD_H_
#endif

// Whether the hardware converts f16 (exactly, with every special value) on the current target.
#undef TOUCHSTONE_SIMD_F16C
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
#define TOUCHSTONE_SIMD_F16C 1
#else
#define TOUCHSTONE_SIMD_F16C 0
#endif

HWY_BEFORE_NAMESPACE();
namespace touchstone::simd::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// In what follows `d` is a tag of float or double lanes (the type of arithmetic) and T the element
// type in memory: float or double itself, or, for float lanes, Bf16 or F16.

template <class D>
using Bits16 = hn::Rebind<std::uint16_t, D>;

// ---- bf16 ----------------------------------------------------------------------------------

template <class D>
HWY_INLINE hn::Vec<D> widen_bf16(D d, hn::Vec<Bits16<D>> v) {
  const hn::RebindToUnsigned<D> du;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, v)));
}

// The bits of `v` rounded to bf16, in the upper half of each lane; the lower half is undefined.
// Highway's own DemoteTo truncates, and the AVX-512 instruction flushes subnormals. A NaN must have
// a lower half of zeros, or the carry may turn it into something else.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> round_bits_bf16(D d, hn::Vec<D> v) {
  const hn::RebindToUnsigned<D> du;
  (void)d;
  const auto bits = hn::BitCast(du, v);
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  const auto odd = hn::TestBit(bits, hn::Set(du, 0x10000));
  return hn::Add(bits, hn::IfThenElse(odd, hn::Set(du, 0x8000), hn::Set(du, 0x7fff)));
#else
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  return hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fff)));
#endif
}

// Any NaN as a quiet one with a lower half of zeros, sign and upper payload kept.
template <class D>
HWY_INLINE hn::Vec<D> clean_nan(D d, hn::Vec<D> v) {
  if constexpr (sizeof(hn::TFromD<D>) == 4) {
    const hn::RebindToUnsigned<D> du;
    const auto bits = hn::BitCast(du, v);
    const auto upper = hn::And(bits, hn::Set(du, 0xffff0000U));
    const auto clean = hn::BitCast(d, hn::Or(upper, hn::Set(du, 0x400000)));
    return hn::IfThenElse(hn::IsNaN(v), clean, v);
  } else {
    return v;
  }
}

template <class D>
HWY_INLINE hn::Vec<Bits16<D>> narrow_bf16(D d, hn::Vec<D> v) {
  return hn::TruncateTo(Bits16<D>(), hn::ShiftRight<16>(round_bits_bf16(d, clean_nan(d, v))));
}

// ---- f16 -----------------------------------------------------------------------------------

#if TOUCHSTONE_SIMD_F16C

template <class D>
HWY_INLINE hn::Vec<D> widen_f16(D d, hn::Vec<Bits16<D>> v) {
  return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), v));
}

template <class D>
HWY_INLINE hn::Vec<Bits16<D>> narrow_f16(D d, hn::Vec<D> v) {
  (void)d;
  return hn::BitCast(Bits16<D>(), hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), v));
}

#else  // Highway's emulation loses infinity, NaN and the last bit, so: integers.

template <class D>
HWY_INLINE hn::Vec<D> widen_f16(D d, hn::Vec<Bits16<D>> v) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const auto bits = hn::PromoteTo(du, v);
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000)));
  const auto half = hn::BitCast(di, hn::And(bits, hn::Set(du, 0x7fff)));
  const auto shifted = hn::ShiftLeft<13>(half);
  // The exponent biases are 15 and 127; 31, infinity and NaN, becomes 255.
  const auto normal = hn::Add(shifted, hn::Set(di, (127 - 15) << 23));
  const auto special = hn::Add(shifted, hn::Set(di, (255 - 31) << 23));
  // A subnormal is an integer times 2^-24, which a float holds exactly.
  const auto subnormal = hn::BitCast(di, hn::Mul(hn::ConvertTo(d, half), hn::Set(d, 0x1p-24F)));
  const auto above = hn::IfThenElse(hn::Gt(half, hn::Set(di, 0x7bff)), special, normal);
  const auto magnitude = hn::IfThenElse(hn::Lt(half, hn::Set(di, 0x400)), subnormal, above);
  return hn::BitCast(d, hn::Or(hn::BitCast(du, magnitude), sign));
}

template <class D>
HWY_INLINE hn::Vec<Bits16<D>> narrow_f16(D d, hn::Vec<D> v) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const auto bits = hn::BitCast(du, v);
  const auto sign = hn::ShiftRight<16>(hn::And(bits, hn::Set(du, 0x80000000U)));
  const auto magnitude = hn::BitCast(di, hn::And(bits, hn::Set(du, 0x7fffffff)));
  // Normal: rebias, add just under half a unit, and one more where the kept part is odd. A carry
  // runs into the exponent, up to infinity.
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(di, 1));
  const auto rebias = hn::Set(di, -((127 - 15) << 23) + 0xfff);
  const auto normal = hn::ShiftRight<13>(hn::Add(hn::Add(magnitude, rebias), odd));
  // Below 2^-14: adding 0.5, whose last bit is worth 2^-24 like that of every f16 subnormal, lets
  // the addition do the rounding.
  const auto shifted = hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5F));
  const auto subnormal = hn::Sub(hn::BitCast(di, shifted), hn::Set(di, 0x3f000000));
  const auto payload = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(di, 0x3ff));
  const auto nan = hn::Or(payload, hn::Set(di, 0x7e00));
  const auto is_nan = hn::Gt(magnitude, hn::Set(di, 0x7f800000));
  const auto special = hn::IfThenElse(is_nan, nan, hn::Set(di, 0x7c00));
  const auto finite = hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, 0x38800000)), subnormal, normal);
  // From 65536 on there is nothing but infinity and NaN.
  const auto result = hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, 0x47800000)), finite, special);
  return hn::TruncateTo(Bits16<D>(), hn::Or(hn::BitCast(du, result), sign));
}

#endif  // TOUCHSTONE_SIMD_F16C

// ---- widening and narrowing by element type ---------------------------------------------------

template <class T>
inline constexpr bool kIs16 = std::is_same_v<T, Bf16> || std::is_same_v<T, F16>;

template <class T, class D>
HWY_INLINE hn::Vec<D> widen(D d, hn::Vec<Bits16<D>> v) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return widen_bf16(d, v);
  } else {
    return widen_f16(d, v);
  }
}

template <class T, class D>
HWY_INLINE hn::Vec<Bits16<D>> narrow(D d, hn::Vec<D> v) {
  if constexpr (std::is_same_v<T, Bf16>) {
    return narrow_bf16(d, v);
  } else {
    return narrow_f16(d, v);
  }
}

// `v` rounded to the values that T has.
template <class T, class D>
HWY_INLINE hn::Vec<D> round_to(D d, hn::Vec<D> v) {
  if constexpr (std::is_same_v<T, Bf16>) {
    const hn::RebindToUnsigned<D> du;
    const auto bits = round_bits_bf16(d, clean_nan(d, v));
    return hn::BitCast(d, hn::And(bits, hn::Set(du, 0xffff0000U)));
  } else if constexpr (std::is_same_v<T, F16>) {
    return widen_f16(d, narrow_f16(d, v));
  } else {
    return v;
  }
}

// ---- memory -------------------------------------------------------------------------------

// F16 and Bf16 are one std::uint16_t each.
template <class T>
HWY_INLINE const std::uint16_t* bits_of(const T* p) {
  return reinterpret_cast<const std::uint16_t*>(p);
}
template <class T>
HWY_INLINE std::uint16_t* bits_of(T* p) {
  return reinterpret_cast<std::uint16_t*>(p);
}

// Lanes(d) elements from p, at any alignment.
template <class D, class T>
HWY_INLINE hn::Vec<D> load(D d, const T* p) {
  if constexpr (kIs16<T>) {
    return widen<T>(d, hn::LoadU(Bits16<D>(), bits_of(p)));
  } else {
    return hn::LoadU(d, p);
  }
}

// Whether masked loads and stores of T are one instruction that leaves the other lanes' memory
// alone. Elsewhere Highway reads all lanes and blends.
template <class T>
inline constexpr bool kNativeMask = HWY_ARCH_X86 && (HWY_TARGET <= HWY_AVX3 ||
                                                     (HWY_TARGET <= HWY_AVX2 && sizeof(T) >= 4));

template <class D, class T>
HWY_INLINE hn::Vec<D> load_lanes_partial(D d, const T* p, std::size_t n) {
  if constexpr (kNativeMask<T>) {
    return hn::MaskedLoad(hn::FirstN(d, n), d, p);
  } else {
    alignas(64) T buffer[hn::MaxLanes(D())] = {};
    std::memcpy(buffer, p, n * sizeof(T));
    return hn::Load(d, buffer);
  }
}

template <class D, class T>
HWY_INLINE void store_lanes_partial(hn::Vec<D> v, D d, T* p, std::size_t n) {
  if constexpr (kNativeMask<T>) {
    hn::BlendedStore(v, hn::FirstN(d, n), d, p);
  } else {
    alignas(64) T buffer[hn::MaxLanes(D())];
    hn::Store(v, d, buffer);
    std::memcpy(p, buffer, n * sizeof(T));
  }
}

// The first n < Lanes(d) elements from p, zero in the other lanes. Reads nothing past them.
template <class D, class T>
HWY_INLINE hn::Vec<D> load_partial(D d, const T* p, std::size_t n) {
  if constexpr (kIs16<T>) {
    return widen<T>(d, load_lanes_partial(Bits16<D>(), bits_of(p), n));
  } else {
    return load_lanes_partial(d, p, n);
  }
}

// Rounds to T, to nearest even, and writes Lanes(d) elements at any alignment.
template <class D, class T>
HWY_INLINE void store(hn::Vec<D> v, D d, T* p) {
  if constexpr (kIs16<T>) {
    hn::StoreU(narrow<T>(d, v), Bits16<D>(), bits_of(p));
  } else {
    hn::StoreU(v, d, p);
  }
}

// The first n < Lanes(d) elements only.
template <class D, class T>
HWY_INLINE void store_partial(hn::Vec<D> v, D d, T* p, std::size_t n) {
  if constexpr (kIs16<T>) {
    store_lanes_partial(narrow<T>(d, v), Bits16<D>(), bits_of(p), n);
  } else {
    store_lanes_partial(v, d, p, n);
  }
}

// As load and load_partial, for n <= Lanes(d).
template <class D, class T>
HWY_INLINE hn::Vec<D> load_some(D d, const T* p, std::size_t n) {
  return n < hn::Lanes(d) ? load_partial(d, p, n) : load(d, p);
}

// As store and store_partial, for n <= Lanes(d).
template <class D, class T>
HWY_INLINE void store_some(hn::Vec<D> v, D d, T* p, std::size_t n) {
  if (n < hn::Lanes(d)) {
    store_partial(v, d, p, n);
  } else {
    store(v, d, p);
  }
}

// ---- packs --------------------------------------------------------------------------------
//
// A pack is as many vectors of arithmetic as fill one whole vector of T. Memory is then read and
// written in whole vectors, on AVX-512 whole cache lines. For bf16 the first vector of a pack holds
// the even elements and the second the odd ones: widening is then a shift and a mask and narrowing
// needs no shuffle, a third of the instructions. Arrays of float that go with a bf16 row element by
// element are kept in that order too (to_pack_order), up to the last whole pack.

template <class T>
inline constexpr bool kEvenOdd = std::is_same_v<T, Bf16>&& HWY_TARGET != HWY_SCALAR;

template <class T>
inline constexpr std::size_t kPack = kIs16<T>&& HWY_TARGET != HWY_SCALAR ? 2 : 1;

template <class T>
HWY_INLINE std::size_t pack_columns() {
  using C = std::conditional_t<std::is_same_v<T, double>, double, float>;
  return kPack<T> * hn::Lanes(hn::ScalableTag<C>());
}

template <class D, class T>
HWY_INLINE void load_pack(D d, const T* p, hn::Vec<D>* pack) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kEvenOdd<T>) {
    const hn::Repartition<std::uint16_t, D> d16;
    const hn::RebindToUnsigned<D> du;
    const auto bits = hn::BitCast(du, hn::LoadU(d16, bits_of(p)));
    pack[0] = hn::BitCast(d, hn::ShiftLeft<16>(bits));
    pack[1] = hn::BitCast(d, hn::And(bits, hn::Set(du, 0xffff0000U)));
    return;
  }
#endif
  for (std::size_t k = 0; k < kPack<T>; ++k) pack[k] = load(d, p + k * hn::Lanes(d));
}

#if HWY_TARGET != HWY_SCALAR
template <class T, class D>
HWY_INLINE hn::Vec<hn::Repartition<std::uint16_t, D>> narrow_pack(D d, const hn::Vec<D>* pack) {
  const hn::Repartition<std::uint16_t, D> d16;
  if constexpr (kEvenOdd<T>) {
    const hn::RebindToUnsigned<D> du;
    const auto even = hn::ShiftRight<16>(round_bits_bf16(d, pack[0]));
    const auto odd = round_bits_bf16(d, pack[1]);
    return hn::BitCast(d16, hn::OrAnd(even, odd, hn::Set(du, 0xffff0000U)));
  } else {
    return hn::Combine(d16, narrow_f16(d, pack[1]), narrow_f16(d, pack[0]));
  }
}
#endif

// The inverse of load_pack. A NaN that goes to bf16 must have a lower half of zeros (clean_nan);
// those that arithmetic makes, and those that come from bf16, do.
template <class D, class T>
HWY_INLINE void store_pack(const hn::Vec<D>* pack, D d, T* p) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kIs16<T>) {
    hn::StoreU(narrow_pack<T>(d, pack), hn::Repartition<std::uint16_t, D>(), bits_of(p));
    return;
  }
#endif
  store(pack[0], d, p);
}

// Whether streaming stores bypass the cache on the current target.
inline constexpr bool kCanStream = HWY_ARCH_X86 && HWY_TARGET < HWY_EMU128;

// As store_pack, past the cache. `p` must be a multiple of the size of the pack. Other threads see
// the data only after hwy::FlushStream() here.
template <class D, class T>
HWY_INLINE void stream_pack(const hn::Vec<D>* pack, D d, T* p) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kCanStream && kIs16<T>) {
    hn::Stream(narrow_pack<T>(d, pack), hn::Repartition<std::uint16_t, D>(), bits_of(p));
    return;
  }
#endif
  if constexpr (kCanStream && !kIs16<T>) {
    hn::Stream(pack[0], d, p);
  } else {
    store_pack(pack, d, p);
  }
}

// Whether stream_pack may write to p.
template <class T>
HWY_INLINE bool is_pack_aligned(const T* p) {
  return reinterpret_cast<std::uintptr_t>(p) % (pack_columns<T>() * sizeof(T)) == 0;
}

// Copies n elements past the cache, to any address.
template <class T>
HWY_INLINE void stream_copy(const T* from, T* to, std::size_t n) {
  const hn::ScalableTag<std::uint8_t> d;
  const std::size_t vector = hn::Lanes(d);
  const auto* src = reinterpret_cast<const std::uint8_t*>(from);
  auto* dst = reinterpret_cast<std::uint8_t*>(to);
  std::size_t bytes = n * sizeof(T);
  const std::size_t over = reinterpret_cast<std::uintptr_t>(dst) % vector;
  const std::size_t head = over == 0 ? 0 : std::min(bytes, vector - over);
  std::memcpy(dst, src, head);
  std::size_t i = head;
  if constexpr (kCanStream) {
    for (; i + vector <= bytes; i += vector) hn::Stream(hn::LoadU(d, src + i), d, dst + i);
  }
  std::memcpy(dst + i, src + i, bytes - i);
}

// values[0 .. n) from natural order to the order of packs of T.
template <class T, class C>
HWY_INLINE void to_pack_order(C* values, std::size_t n) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kEvenOdd<T>) {
    const hn::ScalableTag<C> d;
    const std::size_t lanes = hn::Lanes(d);
    for (std::size_t i = 0; i + 2 * lanes <= n; i += 2 * lanes) {
      const auto low = hn::LoadU(d, values + i);
      const auto high = hn::LoadU(d, values + i + lanes);
      hn::StoreU(hn::ConcatEven(d, high, low), d, values + i);
      hn::StoreU(hn::ConcatOdd(d, high, low), d, values + i + lanes);
    }
  }
#endif
  (void)values;
  (void)n;
}

// The inverse of to_pack_order<T>, for values of any type.
template <class T, class C>
HWY_INLINE void from_pack_order(const C* from, std::size_t n, C* to) {
  std::size_t i = 0;
  if constexpr (kEvenOdd<T>) {
    const std::size_t half = pack_columns<T>() / 2;
    for (; i + 2 * half <= n; i += 2 * half) {
      for (std::size_t k = 0; k < half; ++k) {
        to[i + 2 * k] = from[i + k];
        to[i + 2 * k + 1] = from[i + half + k];
      }
    }
  }
  std::copy(from + i, from + n, to + i);
}

// Prefetches the line of p to L2, for the next pass.
template <class T>
HWY_INLINE void prefetch(const T* p) {
  __builtin_prefetch(p, 0, 2);
}

// Sum of all lanes, in an order that depends on the target only.
template <class D>
HWY_INLINE hn::TFromD<D> sum_lanes(D d, hn::Vec<D> v) {
  return hn::GetLane(hn::SumOfLanes(d, v));
}

}  // namespace touchstone::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
