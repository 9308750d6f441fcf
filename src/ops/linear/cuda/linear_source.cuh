// Reads stored weights from shared memory into fragments of mma.sync m16n8k16.
//
// W is the left operand: lane 4 g + q holds, of each step of 16 elements of rows g and g + 8, four. Which four is
// free as long as x agrees, because a step's bits do not depend on the order of its elements; kOrder
// names the choice that costs a format the fewest instructions. A source takes a unit of 128 elements at a
// time: load() brings its bytes, decode() makes of block i of 32 elements, two steps, two words of two
// weights for each step. `half` is the half of a block of 256 elements. Sizes are constants: addresses of
// a unit are immediate offsets.
//
// What is decoded is rounded as linear_decode.cuh rounds: to f32, then to T.
#pragma once

#include "ops/linear/cuda/linear_decode.cuh"

namespace touchstone::linear_layer {

// The four elements of a step that lane q holds, in words of two.
enum class StepOrder : std::uint8_t {
  split,        // (2q, 2q + 1), (8 + 2q, 9 + 2q): what ldmatrix gives
  neighbors,    // (4q, 4q + 1), (4q + 2, 4q + 3)
  interleaved,  // (4q, 4q + 2), (4q + 1, 4q + 3)
};

// The eight words of a step of x in the places where ldmatrix finds them for `order`.
template <StepOrder kOrder>
__device__ void reorder_step(std::uint32_t (&w)[8]) {
  if constexpr (kOrder != StepOrder::split) {
    std::uint32_t to[8];
#pragma unroll
    for (int q = 0; q < 4; ++q) {
      if constexpr (kOrder == StepOrder::neighbors) {
        to[q] = w[2 * q];
        to[4 + q] = w[2 * q + 1];
      } else {
        to[q] = __byte_perm(w[2 * q], w[2 * q + 1], 0x5410);
        to[4 + q] = __byte_perm(w[2 * q], w[2 * q + 1], 0x7632);
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) w[i] = to[i];
  }
}

struct Fragment {
  std::uint32_t step[2][2];
};

__device__ inline std::uint32_t load_2(const std::uint8_t* p) {
  return *reinterpret_cast<const std::uint16_t*>(p);
}
__device__ inline std::uint32_t load_4(const std::uint8_t* p) {
  return *reinterpret_cast<const std::uint32_t*>(p);
}
// Four bytes at an even address.
struct Halves {
  std::uint32_t low, high;
  __device__ std::uint32_t word() const { return __byte_perm(low, high, 0x5410); }
};
__device__ inline Halves load_halves(const std::uint8_t* p) { return {load_2(p), load_2(p + 2)}; }

__device__ inline float half_float(std::uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<std::uint16_t>(bits)));
}

template <class T>
using Pair = std::conditional_t<std::is_same_v<T, Bf16>, __nv_bfloat162, __half2>;
template <class T>
__device__ Pair<T> as_pair(std::uint32_t bits) {
  return *reinterpret_cast<const Pair<T>*>(&bits);
}
template <class P>
__device__ std::uint32_t as_bits(P pair) {
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

// ---- fp8 ----------------------------------------------------------------------------------------

// The two codes of e4m3 in the low half of `bytes` as T: exact, NaN included.
template <class T>
__device__ std::uint32_t fp8_pair(std::uint32_t bytes) {
  std::uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<std::uint16_t>(bytes)));
  if constexpr (std::is_same_v<T, F16>) return halves;
  const float2 values = __half22float2(as_pair<F16>(halves));
  return packed<T>(values.x, values.y);
}

template <class T>
struct Fp8Source {
  static constexpr StepOrder kOrder = StepOrder::neighbors;
  static constexpr int kUnitBytes = 128;
  struct Raw {
    std::uint32_t word[4][2];
  };
  static __device__ __forceinline__ Raw load(const std::uint8_t* p, int /*half*/, int q) {
    Raw raw;
#pragma unroll
    for (int i = 0; i < 8; ++i) raw.word[i / 2][i % 2] = load_4(p + i * 16 + q * 4);
    return raw;
  }
  static __device__ __forceinline__ Fragment decode(const Raw& raw, int i) {
    Fragment f;
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      f.step[step][0] = fp8_pair<T>(raw.word[i][step]);
      f.step[step][1] = fp8_pair<T>(raw.word[i][step] >> 16);
    }
    return f;
  }
};

// ---- blocks of bytes ----------------------------------------------------------------------------

// Byte i, an unsigned number: 32768 + code.
template <int kByte>
__device__ float byte_float(std::uint32_t word) {
  return __uint_as_float(__byte_perm(word, 0x47000000U, 0x7404 | kByte << 4));
}

// int8_g32, _g64, _g128 and q8_0.
template <class T, int kGroup>
struct Int8Source {
  static constexpr StepOrder kOrder = StepOrder::neighbors;
  static constexpr int kUnitBytes = 128 / kGroup * (kGroup + 2);
  struct Raw {
    Halves codes[4][2];
    std::uint32_t scale[128 / kGroup];
  };
  static __device__ __forceinline__ Raw load(const std::uint8_t* p, int /*half*/, int q) {
    Raw raw;
#pragma unroll
    for (int i = 0; i < 128 / kGroup; ++i) raw.scale[i] = load_2(p + i * (kGroup + 2));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int at = i * 16;
      raw.codes[i / 2][i % 2] =
          load_halves(p + at / kGroup * (kGroup + 2) + 2 + at % kGroup + q * 4);
    }
    return raw;
  }
  // The product has 19 bits at most: exact. The difference is exact before it.
  static __device__ __forceinline__ std::uint32_t pair(float low, float high, float scale) {
    return packed<T>(__fmul_rn(low - 32896.0F, scale), __fmul_rn(high - 32896.0F, scale));
  }
  static __device__ __forceinline__ Fragment decode(const Raw& raw, int i) {
    const float scale = half_float(raw.scale[i * 32 / kGroup]);
    const std::uint32_t a = raw.codes[i][0].word() ^ 0x80808080U;
    const std::uint32_t b = raw.codes[i][1].word() ^ 0x80808080U;
    return {{{pair(byte_float<0>(a), byte_float<1>(a), scale),
              pair(byte_float<2>(a), byte_float<3>(a), scale)},
             {pair(byte_float<0>(b), byte_float<1>(b), scale),
              pair(byte_float<2>(b), byte_float<3>(b), scale)}}};
  }
};

// ---- blocks of nibbles --------------------------------------------------------------------------

// A scale of f16 as a multiplier of small integers c, |c| <= 8, whose product is rounded once to T.
template <class T>
struct NibbleScale;

template <>
struct NibbleScale<F16> {
  static constexpr std::uint32_t kMagic = 0x64006400U;  // 1024; the last bit is worth 1
  std::uint32_t scale;

  explicit __device__ NibbleScale(std::uint32_t bits) : scale(bits | bits << 16) {}
  __device__ std::uint32_t times(std::uint32_t codes) const {
    const __half2 c = __hsub2(as_pair<F16>(codes), __float2half2_rn(1032.0F));
    return as_bits(__hmul2(c, as_pair<F16>(scale)));
  }
};

// bf16 holds 8 bits of a scale's 11. The rest has 3, c times it is exact, and a fused multiply-add of
// both rounds c * scale once.
template <>
struct NibbleScale<Bf16> {
  static constexpr std::uint32_t kMagic = 0x43004300U;  // 128; the last bit is worth 1
  std::uint32_t high;
  std::uint32_t low;

  explicit __device__ NibbleScale(std::uint32_t bits) {
    const float scale = half_float(bits);
    high = packed<Bf16>(scale, scale);
    const float rest = __fsub_rn(scale, __uint_as_float(high << 16));
    // Nothing is left of infinity.
    const float kept = fabsf(scale) < INFINITY ? rest : 0.0F;
    low = packed<Bf16>(kept, kept);
  }
  __device__ std::uint32_t times(std::uint32_t codes) const {
    const __nv_bfloat162 c = __hsub2(as_pair<Bf16>(codes), __floats2bfloat162_rn(136.0F, 136.0F));
    return as_bits(__hfma2(c, as_pair<Bf16>(high), __hmul2(c, as_pair<Bf16>(low))));
  }
};

// Nibbles 0 and 4 of `word >> shift` beside the magic number.
// One instruction besides the shift: with both constants in registers, which the compiler would not do.
template <class T>
__device__ std::uint32_t nibble_pair(std::uint32_t word, int shift) {
  std::uint32_t mask;
  std::uint32_t magic;
  std::uint32_t pair;
  asm("mov.b32 %0, 0x000f000f;" : "=r"(mask));
  asm("mov.b32 %0, %1;" : "=r"(magic) : "n"(NibbleScale<T>::kMagic));
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(pair) : "r"(word >> shift), "r"(mask), "r"(magic));
  return pair;
}

// int4_g32, _g64, _g128: neighbors share a byte.
template <class T, int kGroup>
struct Int4Source {
  static constexpr StepOrder kOrder = StepOrder::interleaved;
  static constexpr int kBlockBytes = kGroup / 2 + 2;
  static constexpr int kUnitBytes = 128 / kGroup * kBlockBytes;
  struct Raw {
    std::uint32_t step[4][2];
    std::uint32_t scale[128 / kGroup];
  };
  static __device__ __forceinline__ Raw load(const std::uint8_t* p, int /*half*/, int q) {
    Raw raw;
#pragma unroll
    for (int i = 0; i < 128 / kGroup; ++i) raw.scale[i] = load_2(p + i * kBlockBytes);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int at = i * 16;
      raw.step[i / 2][i % 2] = load_2(p + at / kGroup * kBlockBytes + 2 + at % kGroup / 2 + q * 2);
    }
    return raw;
  }
  static __device__ __forceinline__ Fragment decode(const Raw& raw, int i) {
    const NibbleScale<T> scale(raw.scale[i * 32 / kGroup]);
    // Bytes of both steps in turns: nibbles of one parity and one step then lie 16 bits apart.
    const std::uint32_t w = __byte_perm(raw.step[i][0], raw.step[i][1], 0x5140);
    return {{{scale.times(nibble_pair<T>(w, 0)), scale.times(nibble_pair<T>(w, 4))},
             {scale.times(nibble_pair<T>(w, 8)), scale.times(nibble_pair<T>(w, 12))}}};
  }
};

// q4_0: the low halves of 16 bytes are one step, the high halves the other.
template <class T>
struct Q40Source {
  static constexpr StepOrder kOrder = StepOrder::interleaved;
  static constexpr int kUnitBytes = 4 * 18;
  struct Raw {
    Halves codes[4];
    std::uint32_t scale[4];
  };
  static __device__ __forceinline__ Raw load(const std::uint8_t* p, int /*half*/, int q) {
    Raw raw;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      raw.scale[i] = load_2(p + i * 18);
      raw.codes[i] = load_halves(p + i * 18 + 2 + q * 4);
    }
    return raw;
  }
  static __device__ __forceinline__ Fragment decode(const Raw& raw, int i) {
    const NibbleScale<T> scale(raw.scale[i]);
    const std::uint32_t w = raw.codes[i].word();
    return {{{scale.times(nibble_pair<T>(w, 0)), scale.times(nibble_pair<T>(w, 8))},
             {scale.times(nibble_pair<T>(w, 4)), scale.times(nibble_pair<T>(w, 12))}}};
  }
};

// The code in nibble i of a word as a float.
template <int kNibble>
__device__ float nibble_float(std::uint32_t word) {
  constexpr int kShift = 16 - 4 * kNibble;
  const std::uint32_t at = kShift >= 0 ? word << kShift : word >> -kShift;
  return __uint_as_float((at & 0x000f0000U) | 0x43000000U) - 128.0F;
}

// scale * code + shift for nibbles a, b of a word: the product is exact, and the sum rounds to f32 as
// the decoder's does.
template <class T, int kA, int kB>
__device__ std::uint32_t shifted_pair(std::uint32_t word, float scale, float shift) {
  return packed<T>(__fadd_rn(__fmul_rn(scale, nibble_float<kA>(word)), shift),
                   __fadd_rn(__fmul_rn(scale, nibble_float<kB>(word)), shift));
}

template <class T>
struct Q41Source {
  static constexpr StepOrder kOrder = StepOrder::neighbors;
  static constexpr int kUnitBytes = 4 * 20;
  struct Raw {
    std::uint32_t codes[4], scales[4];
  };
  static __device__ __forceinline__ Raw load(const std::uint8_t* p, int /*half*/, int q) {
    Raw raw;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      raw.scales[i] = load_4(p + i * 20);
      raw.codes[i] = load_4(p + i * 20 + 4 + q * 4);
    }
    return raw;
  }
  static __device__ __forceinline__ Fragment decode(const Raw& raw, int i) {
    const float scale = half_float(raw.scales[i] & 0xffff);
    const float shift = half_float(raw.scales[i] >> 16);
    return {{{shifted_pair<T, 0, 2>(raw.codes[i], scale, shift),
              shifted_pair<T, 4, 6>(raw.codes[i], scale, shift)},
             {shifted_pair<T, 1, 3>(raw.codes[i], scale, shift),
              shifted_pair<T, 5, 7>(raw.codes[i], scale, shift)}}};
  }
};

// q4_k: 32 elements are a sub-block, the low or the high halves of 32 bytes.
template <class T>
struct Q4KSource {
  static constexpr StepOrder kOrder = StepOrder::neighbors;
  static constexpr int kUnitBytes = 144;  // of two units
  struct Raw {
    std::uint32_t codes[2][2];
    uint4 head;  // d, dmin, scales and minima
    int half;
  };
  static __device__ __forceinline__ Raw load(const std::uint8_t* p, int half, int q) {
    Raw raw;
    raw.head = *reinterpret_cast<const uint4*>(p);
    raw.half = half;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      raw.codes[i / 2][i % 2] = load_4(p + 16 + half * 64 + i * 16 + q * 4);
    }
    return raw;
  }
  // Six bits of each of eight scales and eight minima in y, z and w: see sub_block().
  static __device__ __forceinline__ SubBlock scales(const uint4& head, int half, int i) {
    const std::uint32_t scale = head.y >> (i * 8);
    const std::uint32_t minimum = head.z >> (i * 8);
    if (half == 0) return {static_cast<int>(scale & 63), static_cast<int>(minimum & 63)};
    const std::uint32_t low = head.w >> (i * 8);
    return {static_cast<int>((low & 15) | (scale >> 2 & 48)),
            static_cast<int>((low >> 4 & 15) | (minimum >> 2 & 48))};
  }
  static __device__ __forceinline__ Fragment decode(const Raw& raw, int i) {
    const SubBlock s = scales(raw.head, raw.half, i);
    const float scale = scaled(half_float(raw.head.x & 0xffff), s.scale);
    const float shift = -scaled(half_float(raw.head.x >> 16), s.min);
    const std::uint32_t a = raw.codes[i / 2][0] >> (i % 2 * 4);
    const std::uint32_t b = raw.codes[i / 2][1] >> (i % 2 * 4);
    return {{{shifted_pair<T, 0, 2>(a, scale, shift), shifted_pair<T, 4, 6>(a, scale, shift)},
             {shifted_pair<T, 0, 2>(b, scale, shift), shifted_pair<T, 4, 6>(b, scale, shift)}}};
  }
};

// q6_k: two scales for 32 elements, one a step.
template <class T>
struct Q6KSource {
  static constexpr StepOrder kOrder = StepOrder::neighbors;
  static constexpr int kUnitBytes = 210;  // of two units
  struct Raw {
    Halves low[2][2], high[2];
    std::uint32_t scales[4], d;
  };
  static __device__ __forceinline__ Raw load(const std::uint8_t* p, int half, int q) {
    Raw raw;
    raw.d = load_2(p + 208);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      raw.low[i / 2][i % 2] = load_halves(p + 64 * half + i * 16 + q * 4);
      raw.scales[i] = load_2(p + 192 + 8 * half + 2 * i);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) raw.high[i] = load_halves(p + 128 + 32 * half + i * 16 + q * 4);
    return raw;
  }
  static __device__ __forceinline__ Fragment decode(const Raw& raw, int i) {
    Fragment f;
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const std::uint32_t codes = (raw.low[i % 2][step].word() >> (4 * (i / 2)) & 0x0f0f0f0fU) |
                                  (raw.high[step].word() >> (2 * i) & 0x03030303U) << 4;
      const float s =
          scaled(half_float(raw.d), static_cast<std::int8_t>(raw.scales[i] >> (8 * step) & 0xff));
      const auto value = [&](float v) { return __fmul_rn(s, v - 32800.0F); };
      f.step[step][0] = packed<T>(value(byte_float<0>(codes)), value(byte_float<1>(codes)));
      f.step[step][1] = packed<T>(value(byte_float<2>(codes)), value(byte_float<3>(codes)));
    }
    return f;
  }
};

}  // namespace touchstone::linear_layer
