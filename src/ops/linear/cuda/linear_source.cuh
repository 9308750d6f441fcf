// Reads the weights that a lane of mma.sync m16n8k16 holds, straight from storage into fragments.
//
// The elements of a step of 16 may be in any order, if W and x agree: a source says with kPairs which
// four of a step lane t % 4 = q has. It takes 32 elements of a row at a time, two steps: load() brings
// the bytes, decode() makes two words of two elements for each step. load() computes with nothing that
// it loads: many of them are under way at a time.
#pragma once

#include "ops/linear/cuda/linear_decode.cuh"

namespace touchstone::linear_layer {

// Elements 4 q to 4 q + 3 of a step, or, where a lane loads eight neighbors and gives half of them to
// the lane two further on, 8 (q % 2) + 4 (q / 2) and the next three.
template <bool kPairs>
__device__ int step_offset(int q) {
  return kPairs ? q % 2 * 8 + q / 2 * 4 : q * 4;
}

struct Fragment {
  std::uint32_t step[2][2];
};

// Halves of eight neighbors change places between lanes q and q ^ 2.
__device__ inline Fragment exchanged(uint4 own, int q) {
  const bool upper = q >= 2;
  const std::uint32_t x = __shfl_xor_sync(~0U, upper ? own.x : own.z, 2);
  const std::uint32_t y = __shfl_xor_sync(~0U, upper ? own.y : own.w, 2);
  if (upper) return {{{x, y}, {own.z, own.w}}};
  return {{{own.x, own.y}, {x, y}}};
}

// Loads that are read once.
__device__ inline uint4 load_16(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
__device__ inline uint2 load_8(const void* p) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v2.u32 {%0, %1}, [%2];"
               : "=r"(v.x), "=r"(v.y)
               : "l"(p));
  return v;
}
__device__ inline std::uint32_t load_2(const std::uint8_t* p) {
  return __ldg(reinterpret_cast<const std::uint16_t*>(p));
}
__device__ inline std::uint32_t load_4(const std::uint8_t* p) {
  return __ldg(reinterpret_cast<const std::uint32_t*>(p));
}
// Four bytes at an even address.
struct Halves {
  std::uint32_t low, high;
  __device__ std::uint32_t word() const { return low | high << 16; }
};
__device__ inline Halves load_halves(const std::uint8_t* p) { return {load_2(p), load_2(p + 2)}; }

// ---- plain types --------------------------------------------------------------------------------

// W in the dtype of x.
template <class T>
struct PlainSource {
  static constexpr bool kPairs = true;
  static constexpr int kBlocks = 4;
  struct Raw {
    uint4 v;
  };
  static __device__ Raw load(const StoredWeight& w, const std::uint8_t* row, std::int64_t k,
                             std::int64_t in, int q) {
    (void)w;
    if (k + q * 8 >= in) return {};
    return {load_16(row + (k + q * 8) * 2)};
  }
  static __device__ Fragment decode(const Raw& raw, int q) { return exchanged(raw.v, q); }
};

// Two of e4m3, in bytes 1 and 3 of `bytes`, as T: exact. NaN is the one code that a product of its
// bits with a power of two would miss.
template <class T>
__device__ std::uint32_t fp8_pair(std::uint32_t bytes) {
  if constexpr (std::is_same_v<T, Bf16>) {
    const std::uint32_t bits = (bytes >> 4 & 0x07f007f0U) | (bytes & 0x80008000U);
    const __nv_bfloat162 scale = __floats2bfloat162_rn(0x1p120F, 0x1p120F);
    const __nv_bfloat162 v = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&bits), scale);
    std::uint32_t result = *reinterpret_cast<const std::uint32_t*>(&v);
    if ((bytes & 0x7f00U) == 0x7f00U) result |= 0x7fc0U;
    if ((bytes & 0x7f000000U) == 0x7f000000U) result |= 0x7fc00000U;
    return result;
  } else {
    const std::uint32_t bits = (bytes >> 1 & 0x3f803f80U) | (bytes & 0x80008000U);
    const __half2 v = __hmul2(*reinterpret_cast<const __half2*>(&bits), __float2half2_rn(256.0F));
    std::uint32_t result = *reinterpret_cast<const std::uint32_t*>(&v);
    if ((bytes & 0x7f00U) == 0x7f00U) result |= 0x7e00U;
    if ((bytes & 0x7f000000U) == 0x7f000000U) result |= 0x7e000000U;
    return result;
  }
}

template <class T>
struct Fp8Source {
  static constexpr bool kPairs = true;
  static constexpr int kBlocks = 4;
  struct Raw {
    uint2 v;
  };
  static __device__ Raw load(const StoredWeight& w, const std::uint8_t* row, std::int64_t k,
                             std::int64_t in, int q) {
    (void)w;
    if (k + q * 8 >= in) return {};
    return {load_8(row + k + q * 8)};
  }
  static __device__ Fragment decode(const Raw& raw, int q) {
    const bool upper = q >= 2;
    const std::uint32_t other = __shfl_xor_sync(~0U, upper ? raw.v.x : raw.v.y, 2);
    const std::uint32_t first = upper ? other : raw.v.x;
    const std::uint32_t second = upper ? raw.v.y : other;
    return {
        {{fp8_pair<T>(__byte_perm(first, 0, 0x1404)), fp8_pair<T>(__byte_perm(first, 0, 0x3424))},
         {fp8_pair<T>(__byte_perm(second, 0, 0x1404)),
          fp8_pair<T>(__byte_perm(second, 0, 0x3424))}}};
  }
};

// ---- blocks -------------------------------------------------------------------------------------

// An integer in the upper mantissa bits of a float beside a power of two: scale * (code - bias) is
// then one fused multiply-add, exact because the result has few bits. Nibble i of a word: 128 + code.
template <int kNibble>
__device__ float nibble_float(std::uint32_t word) {
  constexpr int kShift = 16 - 4 * kNibble;
  const std::uint32_t at = kShift >= 0 ? word << kShift : word >> -kShift;
  return __uint_as_float((at & 0x000f0000U) | 0x43000000U);
}
// Byte i, an unsigned number: 32768 + code.
template <int kByte>
__device__ float byte_float(std::uint32_t word) {
  return __uint_as_float(__byte_perm(word, 0x47000000U, 0x7404 | kByte << 4));
}

__device__ inline float half_float(std::uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<std::uint16_t>(bits)));
}

// int8_g32, _g64, _g128 and q8_0.
template <class T>
struct Int8Source {
  static constexpr bool kPairs = false;
  static constexpr int kBlocks = 2;
  struct Raw {
    Halves first, second;
    std::uint32_t scale;
  };
  static __device__ Raw load(const StoredWeight& w, const std::uint8_t* row, std::int64_t k,
                             std::int64_t in, int q) {
    if (k >= in) return {};
    const int at = static_cast<int>(k);
    const std::uint8_t* const from = row + (at >> w.block_shift) * w.block_bytes;
    const std::uint8_t* const codes = from + 2 + (at & (w.block_elements - 1));
    return {load_halves(codes + q * 4), load_halves(codes + 16 + q * 4), load_2(from)};
  }
  static __device__ std::uint32_t pair(float low, float high, float scale) {
    const float bias = -32896.0F * scale;
    return packed<T>(__fmaf_rn(low, scale, bias), __fmaf_rn(high, scale, bias));
  }
  static __device__ Fragment decode(const Raw& raw, int /*q*/) {
    const float scale = half_float(raw.scale);
    const std::uint32_t a = raw.first.word() ^ 0x80808080U;
    const std::uint32_t b = raw.second.word() ^ 0x80808080U;
    return {{{pair(byte_float<0>(a), byte_float<1>(a), scale),
              pair(byte_float<2>(a), byte_float<3>(a), scale)},
             {pair(byte_float<0>(b), byte_float<1>(b), scale),
              pair(byte_float<2>(b), byte_float<3>(b), scale)}}};
  }
};

// Four nibbles from the lowest on: scale * code + shift, rounded once to T.
template <class T, bool kExact>
__device__ void nibble_words(std::uint32_t word, float scale, float shift, std::uint32_t (&to)[2]) {
  const float v[4] = {nibble_float<0>(word), nibble_float<1>(word), nibble_float<2>(word),
                      nibble_float<3>(word)};
  float x[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (kExact) {  // shift is a multiple of the scale
      x[i] = __fmaf_rn(v[i], scale, shift);
    } else {  // the product is exact, and the sum rounds to f32 as the decoder's does
      x[i] = __fadd_rn(__fmul_rn(scale, v[i] - 128.0F), shift);
    }
  }
  to[0] = packed<T>(x[0], x[1]);
  to[1] = packed<T>(x[2], x[3]);
}

// int4_g32, _g64, _g128: neighbors share a byte.
template <class T>
struct Int4Source {
  static constexpr bool kPairs = false;
  static constexpr int kBlocks = 4;
  struct Raw {
    std::uint32_t first, second, scale;
  };
  static __device__ Raw load(const StoredWeight& w, const std::uint8_t* row, std::int64_t k,
                             std::int64_t in, int q) {
    if (k >= in) return {};
    const int at = static_cast<int>(k);
    const std::uint8_t* const from = row + (at >> w.block_shift) * w.block_bytes;
    const std::uint8_t* const codes = from + 2 + (at & (w.block_elements - 1)) / 2;
    return {load_2(codes + q * 2), load_2(codes + 8 + q * 2), load_2(from)};
  }
  static __device__ Fragment decode(const Raw& raw, int /*q*/) {
    const float scale = half_float(raw.scale);
    Fragment f;
    nibble_words<T, true>(raw.first, scale, -136.0F * scale, f.step[0]);
    nibble_words<T, true>(raw.second, scale, -136.0F * scale, f.step[1]);
    return f;
  }
};

// The nibbles of four bytes: low halves belong to one step and high halves to the other.
__device__ inline std::uint32_t gathered(std::uint32_t bytes) {  // low halves, side by side
  const std::uint32_t x = bytes & 0x0f0f0f0fU;
  const std::uint32_t y = x | x >> 4;
  return (y & 0xffU) | (y >> 8 & 0xff00U);
}

// q4_0 and q4_1.
template <class T, bool kMinimum>
struct Q4Source {
  static constexpr bool kPairs = false;
  static constexpr int kBlocks = 4;
  struct Raw {
    Halves codes;
    std::uint32_t scale, minimum;
  };
  static __device__ Raw load(const StoredWeight& w, const std::uint8_t* row, std::int64_t k,
                             std::int64_t in, int q) {
    (void)w;
    if (k >= in) return {};
    const std::uint8_t* const from = row + (static_cast<int>(k) >> 5) * (kMinimum ? 20 : 18);
    if constexpr (kMinimum) return {load_halves(from + 4 + q * 4), load_2(from), load_2(from + 2)};
    return {load_halves(from + 2 + q * 4), load_2(from), 0};
  }
  static __device__ Fragment decode(const Raw& raw, int /*q*/) {
    const float scale = half_float(raw.scale);
    const float shift = kMinimum ? half_float(raw.minimum) : -136.0F * scale;
    const std::uint32_t codes = raw.codes.word();
    Fragment f;
    nibble_words<T, !kMinimum>(gathered(codes), scale, shift, f.step[0]);
    nibble_words<T, !kMinimum>(gathered(codes >> 4), scale, shift, f.step[1]);
    return f;
  }
};

// q4_k: 32 elements are a sub-block, the low or the high halves of 32 bytes.
template <class T>
struct Q4KSource {
  static constexpr bool kPairs = false;
  static constexpr int kBlocks = 2;
  struct Raw {
    std::uint32_t first, second;
    uint4 head;  // d, dmin, scales and minima
    int sub;
  };
  static __device__ Raw load(const StoredWeight& w, const std::uint8_t* row, std::int64_t k,
                             std::int64_t in, int q) {
    (void)w;
    if (k >= in) return {};
    const int at = static_cast<int>(k);
    const std::uint8_t* const from = row + (at >> 8) * 144;
    const int sub = (at & 255) >> 5;
    const std::uint8_t* const codes = from + 16 + sub / 2 * 32;
    return {load_4(codes + q * 4), load_4(codes + 16 + q * 4),
            __ldg(reinterpret_cast<const uint4*>(from)), sub};
  }
  // Six bits of each of eight scales and eight minima in y, z and w: see sub_block().
  static __device__ SubBlock scales(const uint4& head, int sub) {
    const int shift = sub % 4 * 8;
    const std::uint32_t scale = head.y >> shift;
    const std::uint32_t minimum = head.z >> shift;
    if (sub < 4) return {static_cast<int>(scale & 63), static_cast<int>(minimum & 63)};
    const std::uint32_t low = head.w >> shift;
    return {static_cast<int>((low & 15) | (scale >> 2 & 48)),
            static_cast<int>((low >> 4 & 15) | (minimum >> 2 & 48))};
  }
  static __device__ Fragment decode(const Raw& raw, int /*q*/) {
    const SubBlock s = scales(raw.head, raw.sub);
    const float scale = scaled(half_float(raw.head.x & 0xffff), s.scale);
    const float minimum = scaled(half_float(raw.head.x >> 16), s.min);
    const int shift = raw.sub % 2 * 4;
    Fragment f;
    nibble_words<T, false>(gathered(raw.first >> shift), scale, -minimum, f.step[0]);
    nibble_words<T, false>(gathered(raw.second >> shift), scale, -minimum, f.step[1]);
    return f;
  }
};

// q6_k: two scales for 32 elements, one a step.
template <class T>
struct Q6KSource {
  static constexpr bool kPairs = false;
  static constexpr int kBlocks = 1;
  struct Raw {
    Halves low[2], high[2];
    std::uint32_t scales, d;
    int part;  // which 32 of 128
  };
  static __device__ Raw load(const StoredWeight& w, const std::uint8_t* row, std::int64_t k,
                             std::int64_t in, int q) {
    (void)w;
    if (k >= in) return {};
    const int at = static_cast<int>(k);
    const std::uint8_t* const from = row + (at >> 8) * 210;
    const int half = (at & 255) >> 7;
    const int part = (at & 127) >> 5;
    const std::uint8_t* const low = from + 64 * half + 32 * (part % 2) + q * 4;
    const std::uint8_t* const high = from + 128 + 32 * half + q * 4;
    return {{load_halves(low), load_halves(low + 16)},
            {load_halves(high), load_halves(high + 16)},
            load_2(from + 192 + 8 * half + 2 * part),
            load_2(from + 208),
            part};
  }
  static __device__ Fragment decode(const Raw& raw, int /*q*/) {
    Fragment f;
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const std::uint32_t codes = (raw.low[step].word() >> (4 * (raw.part / 2)) & 0x0f0f0f0fU) |
                                  (raw.high[step].word() >> (2 * raw.part) & 0x03030303U) << 4;
      const float s =
          scaled(half_float(raw.d), static_cast<std::int8_t>(raw.scales >> (8 * step) & 0xff));
      const auto value = [&](float v) { return __fmul_rn(s, v - 32800.0F); };
      f.step[step][0] = packed<T>(value(byte_float<0>(codes)), value(byte_float<1>(codes)));
      f.step[step][1] = packed<T>(value(byte_float<2>(codes)), value(byte_float<3>(codes)));
    }
    return f;
  }
};

}  // namespace touchstone::linear_layer
