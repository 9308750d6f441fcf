// Stored keys and values as operands of the tensor cores.
//
// Codes of int8, int4 and fp8 become f16, exactly. Scales and minima stay
// outside: those of keys in f32, where the products are summed; those of values in the weights.
//
// Rows of shared memory are cut into units of 16 bytes, of which ldmatrix gives 4 bytes to each
// lane. Such a word becomes kTiles operands of two numbers each. Which number of a vector ends up
// where follows from the bit tricks below, so the query and the output are arranged to fit.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "cache/codec.h"

namespace touchstone::paged_attention {

// kWhole: one scale for the vector, no minimum. kGrouped: scales, and minima where there are any,
// of 32 numbers or a multiple.
enum class Scaling { kNone, kWhole, kGrouped };

__device__ inline std::uint32_t multiply_f16(std::uint32_t a, std::uint32_t b) {
  std::uint32_t result;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}
__device__ inline std::uint32_t subtract_f16(std::uint32_t a, std::uint32_t b) {
  std::uint32_t result;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}
// What rounding took from the product of a and b.
__device__ inline std::uint32_t lost_by_f16(std::uint32_t a, std::uint32_t b,
                                            std::uint32_t product) {
  std::uint32_t result;
  asm("{.reg .b32 less;\n"
      "neg.f16x2 less, %3;\n"
      "fma.rn.f16x2 %0, %1, %2, less;}"
      : "=r"(result)
      : "r"(a), "r"(b), "r"(product));
  return result;
}
// a * b + c, rounded once.
__device__ inline std::uint32_t multiply_add_f16(std::uint32_t a, std::uint32_t b,
                                                 std::uint32_t c) {
  std::uint32_t result;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
}

// (a & mask) ^ bits in one instruction, which two constants would make two.
__device__ inline std::uint32_t masked_xor(std::uint32_t a, std::uint32_t mask,
                                           std::uint32_t bits) {
  std::uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(result) : "r"(a), "r"(mask), "r"(bits));
  return result;
}

// Keys are decoded times 2^-kKeyExponent. What is decoded may be off by a constant: key_offset or
// value_offset times the scale is to be added.
template <DType kEncoding>
struct DequantOperand;

template <>
struct DequantOperand<DType::i8> {
  static constexpr int kBits = 8;
  static constexpr int kTiles = 2;
  static constexpr bool kHalf = true;
  static constexpr int kKeyExponent = 0;
  __device__ static float key_offset(bool asymmetric) { return asymmetric ? 128.0F : 0.0F; }
  __device__ static float value_offset(bool asymmetric) { return key_offset(asymmetric); }

  // 1024 + the code, or + 128 + the signed code, in the mantissa; less 1152. Asymmetric codes come
  // out 128 too low.
  __device__ static void decode_key(std::uint32_t word, bool asymmetric, std::uint32_t (&x)[2]) {
    constexpr std::uint32_t k1152 = 0x64806480;
    const std::uint32_t flip = asymmetric ? 0x64006400U : k1152;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      x[j] = subtract_f16(masked_xor(word >> (8 * j), 0x00ff00ff, flip), k1152);
    }
  }
  __device__ static void decode_value(std::uint32_t word, bool asymmetric, std::uint32_t (&x)[2]) {
    decode_key(word, asymmetric, x);
  }
};

template <>
struct DequantOperand<DType::i4> {
  static constexpr int kBits = 4;
  static constexpr int kTiles = 4;
  static constexpr bool kHalf = true;
  static constexpr int kKeyExponent = 20;
  __device__ static float key_offset(bool asymmetric) { return asymmetric ? 0.0F : -8.0F; }
  __device__ static float value_offset(bool asymmetric) { return asymmetric ? 8.0F : 0.0F; }

  // Where a code stands in the mantissa it is a subnormal number: the code times 2^-20. It would be
  // even among the last bits, but the tensor cores keep no more bits below the first one that a
  // number could have than they do of others.
  __device__ static void decode_key(std::uint32_t word, bool /*asymmetric*/,
                                    std::uint32_t (&x)[4]) {
    constexpr std::uint32_t kMask = 0x00f000f0;
    x[0] = word << 4 & kMask;
    x[1] = word & kMask;
    x[2] = word >> 4 & kMask;
    x[3] = word >> 8 & kMask;
  }

  // 1024 + the code, or four bits higher 64 + the code; less that and 8. The tensor cores round
  // sums toward zero, so the many of values shall not all be of one sign.
  __device__ static void decode_value(std::uint32_t word, bool /*asymmetric*/,
                                      std::uint32_t (&x)[4]) {
    const std::uint32_t upper = word >> 8;
    x[0] = subtract_f16(masked_xor(word, 0x000f000f, 0x64006400), 0x64086408);
    x[1] = subtract_f16(masked_xor(word, 0x00f000f0, 0x54005400), 0x54805480);
    x[2] = subtract_f16(masked_xor(upper, 0x000f000f, 0x64006400), 0x64086408);
    x[3] = subtract_f16(masked_xor(upper, 0x00f000f0, 0x54005400), 0x54805480);
  }
};

template <>
struct DequantOperand<DType::f8_e4m3> {
  static constexpr int kBits = 8;
  static constexpr int kTiles = 2;
  static constexpr bool kHalf = true;
  static constexpr int kKeyExponent = 0;

  __device__ static void decode_key(std::uint32_t word, bool /*asymmetric*/,
                                    std::uint32_t (&x)[2]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    const std::uint32_t pairs = __byte_perm(word, 0, 0x3120);
    asm("{.reg .b16 low, high;\n"
        "mov.b32 {low, high}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, low;\n"
        "cvt.rn.f16x2.e4m3x2 %1, high;}"
        : "=r"(x[0]), "=r"(x[1])
        : "r"(pairs));
#else
    constexpr std::uint32_t k256 = 0x5c005c00;  // the exponents differ by 8
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const std::uint32_t bytes = word >> (8 * j);
      const std::uint32_t magnitude = bytes & 0x007f007fU;
      const std::uint32_t nan = ((magnitude + 0x00010001U) & 0x00800080U) * 0xffU;
      x[j] = multiply_f16((magnitude << 7) | ((bytes & 0x00800080U) << 8), k256) | nan;
    }
#endif
  }
  __device__ static void decode_value(std::uint32_t word, bool asymmetric, std::uint32_t (&x)[2]) {
    decode_key(word, asymmetric, x);
  }
};

// Operand i is the i % kTiles-th of unit i / kTiles. The number of a vector in half x of a key
// operand, in lane c of four:
template <class C>
__device__ constexpr int key_number(int operand, int c, int x) {
  return 8 * C::kTiles * (operand / C::kTiles) + 2 * C::kTiles * c + C::kTiles * x +
         operand % C::kTiles;
}

// The number of a vector in row n of eight of a value operand, whose halves are two tokens.
template <class C>
__device__ constexpr int value_number(int operand, int n) {
  return 8 * C::kTiles * (operand / C::kTiles) + C::kTiles * n + operand % C::kTiles;
}

}  // namespace touchstone::paged_attention
