// Stored keys and values as operands of the tensor cores.
//
// Everything becomes bf16, exactly: codes of int8, int4 and fp8 have at most 8 significant bits.
// Scales and minima stay outside, in f32, where the products are summed.
//
// Rows of shared memory are cut into units of 16 bytes, which ldmatrix hands out 4 bytes to a lane.
// Such a word becomes kTiles operands of two bf16 each. Which number of a vector ends up where
// follows from the bit tricks below, so the query and the output are arranged to fit.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "cache/codec.h"

namespace touchstone::attend {

using cache::Encoding;

// kWhole: one scale for the vector, no minimum. kGrouped: scales, and minima where there are any,
// of 32 numbers or a multiple.
enum class Scaling { kNone, kWhole, kGrouped };

__device__ inline std::uint32_t subtract_bf16(std::uint32_t a, std::uint32_t b) {
  const __nv_bfloat162 difference = __hsub2(reinterpret_cast<const __nv_bfloat162&>(a),
                                            reinterpret_cast<const __nv_bfloat162&>(b));
  return reinterpret_cast<const std::uint32_t&>(difference);
}

__device__ inline std::uint32_t multiply_bf16(std::uint32_t a, std::uint32_t b) {
  const __nv_bfloat162 product = __hmul2(reinterpret_cast<const __nv_bfloat162&>(a),
                                         reinterpret_cast<const __nv_bfloat162&>(b));
  return reinterpret_cast<const std::uint32_t&>(product);
}

// (a & mask) | bits in one instruction, which two constants would make two.
__device__ inline std::uint32_t masked_or(std::uint32_t a, std::uint32_t mask, std::uint32_t bits) {
  std::uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(a), "r"(mask), "r"(bits));
  return result;
}

// What is decoded may be off by a constant: by key_offset or value_offset, which times the scale is
// to be added. `flip` is 0x80808080 for asymmetric codes of int8, otherwise 0.
template <Encoding kEncoding>
struct Codes;

template <>
struct Codes<Encoding::bf16> {
  static constexpr int kBits = 16;
  static constexpr int kTiles = 1;
};

template <>
struct Codes<Encoding::int8> {
  static constexpr int kBits = 8;
  static constexpr int kTiles = 2;

  __device__ static float key_offset(bool asymmetric) { return asymmetric ? 128.0F : 0.0F; }
  __device__ static float value_offset(bool asymmetric) { return key_offset(asymmetric); }

  // 128 + the low 7 bits, less 128 + the sign's 128: both are bf16 with the code in the mantissa
  // and in the last bit of the exponent.
  __device__ static void decode_value(std::uint32_t word, std::uint32_t flip,
                                      std::uint32_t (&x)[2]) {
    constexpr std::uint32_t k128 = 0x43004300;
    word ^= flip;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const std::uint32_t bytes = word >> (8 * j);
      x[j] = subtract_bf16(masked_or(bytes, 0x007f007f, k128), masked_or(bytes, 0x00800080, k128));
    }
  }
  __device__ static void decode_key(std::uint32_t word, std::uint32_t flip, std::uint32_t (&x)[2]) {
    decode_value(word, flip, x);
  }
};

template <>
struct Codes<Encoding::int4> {
  static constexpr int kBits = 4;
  static constexpr int kTiles = 4;

  __device__ static float key_offset(bool asymmetric) { return asymmetric ? -16.0F : -24.0F; }
  __device__ static float value_offset(bool asymmetric) { return asymmetric ? 8.0F : 0.0F; }

  // 16 + the code, which is in the upper bits of the mantissa. One subtraction less than below, and
  // little is lost to it: products with keys are summed over one group only.
  __device__ static void decode_key(std::uint32_t word, std::uint32_t /*flip*/,
                                    std::uint32_t (&x)[4]) {
    constexpr std::uint32_t k16 = 0x41804180;
    x[0] = masked_or(word << 3, 0x00780078, k16);
#pragma unroll
    for (int j = 1; j < 4; ++j) x[j] = masked_or(word >> (4 * j - 3), 0x00780078, k16);
  }

  // 128 + the code, less 136.
  __device__ static void decode_value(std::uint32_t word, std::uint32_t /*flip*/,
                                      std::uint32_t (&x)[4]) {
    constexpr std::uint32_t k128 = 0x43004300;
    constexpr std::uint32_t k136 = 0x43084308;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      x[j] = subtract_bf16(masked_or(word >> (4 * j), 0x000f000f, k128), k136);
    }
  }
};

template <>
struct Codes<Encoding::fp8_e4m3> {
  static constexpr int kBits = 8;
  static constexpr int kTiles = 2;

  __device__ static void decode_value(std::uint32_t word, std::uint32_t /*flip*/,
                                      std::uint32_t (&x)[2]) {
    constexpr std::uint32_t k2To120 = 0x7b807b80;  // the exponents differ by 120
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const std::uint32_t bytes = word >> (8 * j);
      const std::uint32_t magnitude = bytes & 0x007f007fU;
      const std::uint32_t nan = ((magnitude + 0x00010001U) & 0x00800080U) * 0xffU;
      x[j] = multiply_bf16((magnitude << 4) | ((bytes & 0x00800080U) << 8), k2To120) | nan;
    }
  }
  __device__ static void decode_key(std::uint32_t word, std::uint32_t flip, std::uint32_t (&x)[2]) {
    decode_value(word, flip, x);
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

}  // namespace touchstone::attend
