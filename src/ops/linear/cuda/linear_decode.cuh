// One stored weight as f32, of any format: as cpu/weight_decode.cc computes it.
#pragma once

#include <bit>

#include "cpu/ternary_layout.h"
#include "ops/linear/cuda/linear_cuda.cuh"

namespace touchstone::linear_layer {

// W as kernels read it.
struct StoredWeight {
  const std::uint8_t* data = nullptr;
  std::int64_t row_bytes = 0;
  WeightFormatId id = WeightFormatId::f32;
  int block_elements = 1;
  int block_bytes = 4;
  int block_shift = 0;  // log2 of block_elements
};

inline StoredWeight stored(const Weight& w) {
  return {.data = reinterpret_cast<const std::uint8_t*>(w.data),
          .row_bytes = w.row_bytes,
          .id = w.format->id,
          .block_elements = static_cast<int>(w.format->block_elements),
          .block_bytes = static_cast<int>(w.format->block_bytes),
          .block_shift = std::countr_zero(static_cast<unsigned>(w.format->block_elements))};
}

// Blocks begin at even addresses.
__device__ inline float half_at(const std::uint8_t* p) {
  return __half2float(__ushort_as_half(*reinterpret_cast<const std::uint16_t*>(p)));
}

// Rounds as a product and a sum that are not merged.
__device__ inline float scaled(float scale, int code) {
  return __fmul_rn(scale, static_cast<float>(code));
}

// e4m3 shifted into the place of f16 is 2^-8 of what it means, subnormals included.
__device__ inline float fp8_value(unsigned code) {
  const unsigned magnitude = code & 0x7f;
  const unsigned bits = (magnitude == 0x7f ? 0x7e00U : magnitude << 7) | (code & 0x80) << 8;
  return __half2float(__ushort_as_half(static_cast<std::uint16_t>(bits))) * 256.0F;
}

// Scale and minimum of sub-block i of q4_k and q5_k: 6 bits each, in 12 bytes.
struct SubBlock {
  int scale;
  int min;
};
__device__ inline SubBlock sub_block(const std::uint8_t* packed, int i) {
  if (i < 4) return {packed[i] & 63, packed[i + 4] & 63};
  const int low = packed[i + 4];
  return {(low & 15) | ((packed[i - 4] >> 2) & 48), (low >> 4) | ((packed[i] >> 2) & 48)};
}

// Nibble i of 32: the first sixteen in the low halves of 16 bytes.
__device__ inline int nibble_32(const std::uint8_t* p, int i) {
  return i < 16 ? p[i] & 15 : p[i - 16] >> 4;
}

// q4_k and q5_k: value i of a block of 256; pairs of sub-blocks share 32 bytes of nibbles.
__device__ inline float k_block_value(const std::uint8_t* block, int i, bool fifth) {
  const int pair = i / 64;
  const int high = i % 64 / 32;
  const int at = i % 32;
  const SubBlock sub = sub_block(block + 4, 2 * pair + high);
  const std::uint8_t* const upper = block + 16;
  const std::uint8_t* const codes = upper + (fifth ? 32 : 0);
  int code = codes[32 * pair + at] >> (4 * high) & 15;
  if (fifth) code |= (upper[at] >> (2 * pair + high) & 1) << 4;
  return __fadd_rn(__fmul_rn(scaled(half_at(block), sub.scale), static_cast<float>(code)),
                   -scaled(half_at(block + 2), sub.min));
}

__device__ inline float q6_k_value(const std::uint8_t* block, int i) {
  const int half = i / 128;
  const int quarter = i % 128 / 32;
  const int at = i % 32;
  const std::uint8_t* const low = block + 64 * half + 32 * (quarter % 2);
  const std::uint8_t* const high = block + 128 + 32 * half;
  const int code = (low[at] >> (4 * (quarter / 2)) & 15) | (high[at] >> (2 * quarter) & 3) << 4;
  const int scale = static_cast<std::int8_t>(block[192 + 8 * half + 2 * quarter + at / 16]);
  return __fmul_rn(scaled(half_at(block + 208), scale), static_cast<float>(code - 32));
}

// Value i of a block.
__device__ inline float block_value(WeightFormatId id, const std::uint8_t* block, int i) {
  using Id = WeightFormatId;
  switch (id) {
    case Id::int8_g32:
    case Id::int8_g64:
    case Id::int8_g128:
    case Id::q8_0:
      return scaled(half_at(block), static_cast<std::int8_t>(block[2 + i]));
    case Id::int4_g32:
    case Id::int4_g64:
    case Id::int4_g128:
      return scaled(half_at(block), (block[2 + i / 2] >> (i % 2 * 4) & 15) - 8);
    case Id::q4_0:
      return scaled(half_at(block), nibble_32(block + 2, i) - 8);
    case Id::q4_1:
      return __fadd_rn(scaled(half_at(block), nibble_32(block + 4, i)), half_at(block + 2));
    case Id::q5_0: {
      const int fifth = block[2 + i / 8] >> (i % 8) & 1;
      return scaled(half_at(block), (nibble_32(block + 6, i) | fifth << 4) - 16);
    }
    case Id::q5_1: {
      const int fifth = block[4 + i / 8] >> (i % 8) & 1;
      return __fadd_rn(scaled(half_at(block), nibble_32(block + 8, i) | fifth << 4),
                       half_at(block + 2));
    }
    case Id::q4_k:
      return k_block_value(block, i, false);
    case Id::q5_k:
      return k_block_value(block, i, true);
    case Id::q6_k:
      return q6_k_value(block, i);
    default: {
      const ternary::Layout layout = ternary::layout_of(id);
      return scaled(half_at(block + layout.scale), ternary::code_at(layout, block, i));
    }
  }
}

__device__ inline float weight_at(const StoredWeight& w, std::int64_t row, std::int64_t column) {
  using Id = WeightFormatId;
  const std::uint8_t* const from = w.data + row * w.row_bytes;
  switch (w.id) {
    case Id::f32:
      return reinterpret_cast<const float*>(from)[column];
    case Id::bf16:
      return cuda::widen(reinterpret_cast<const Bf16*>(from)[column]);
    case Id::f16:
      return cuda::widen(reinterpret_cast<const F16*>(from)[column]);
    case Id::fp8_e4m3:
      return fp8_value(from[column]);
    default:
      break;
  }
  const std::int64_t block = column / w.block_elements;
  return block_value(w.id, from + block * w.block_bytes,
                     static_cast<int>(column - block * w.block_elements));
}

// All of W, or rows [first, first + rows) of it, rounded to T into [rows, in]: linear_portable.cu.
void decode_rows(Context& context, const Weight& w, std::int64_t first, std::int64_t rows,
                 std::int64_t in, DType dtype, void* to);

}  // namespace touchstone::linear_layer
