// Linear from ternary weights with int8 activations on CUDA: what its kernels share.
//
// A row of x becomes integers q of at most 127 and a scale. The sum of a group of W, codes times q, is an
// int32; groups are added in order, acc = fma(scale of the group, sum, acc), in segments of kSegment
// columns that start from 0, and the sums of segments are added in order. The CPU does the same
// (linear_ternary_cpu.cc): equal bits, before what follows the product.
//
// The fast kernels multiply stored codes (code + 1) by mma.sync m16n8k32 of u8 and s8, 16 rows of W by 8
// rows of x; sums start at minus the sum of the group's q, which compensates the +1 offset. A word of codes of
// ternary_g128 holds four neighbors in each of its four planes: masked, these are operands as they are.
// pq2_0 holds sixteen neighbors; x is permuted for it.
#pragma once

#include <algorithm>

#include "cpu/ternary_layout.h"
#include "cuda/hopper.cuh"
#include "ops/linear/cuda/linear_cuda.cuh"
#include "ops/linear/cuda/linear_decode.cuh"

namespace touchstone::linear_layer {

inline constexpr int kTernaryGroup = 128;
inline constexpr int kTernaryBlockBytes = 34;
inline constexpr int kTernarySegmentBlocks = static_cast<int>(kSegment) / kTernaryGroup;
// Bytes of a segment of a row: 17 times 16, so that eight rows begin in eight groups of four banks.
inline constexpr int kTernarySlab = kTernarySegmentBlocks * kTernaryBlockBytes;
inline constexpr int kTernaryRows = 16;  // of W in a tile
inline constexpr int kTernaryStage = kTernaryRows * kTernarySlab;

// x in int8 as kernels read it.
struct Int8Rows {
  const std::int8_t* q = nullptr;  // [rows, in]
  const int* sums = nullptr;  // [rows, in / 128], of groups of 128; null where no kernel wants them
  const float* scales = nullptr;  // [rows]
};

struct TernaryParams {
  StoredWeight weight;
  const void* x = nullptr;  // where the kernel rounds it itself
  DType x_dtype = DType::f32;
  std::int64_t x_stride = 0;
  Int8Rows rounded;
  std::int64_t rows = 0;
  std::int64_t out = 0;  // rows of W
  int in = 0;
  int segments = 0;
  bool ahead = false;  // W may be read before the kernel before ends
  Sink sink;           // scales are applied before it
  // Few rows: warps that share a tile's segments, tiles a CTA has at a time, and all of them.
  int stages = 1;  // of a warp's ring
  int split = 1;
  int row_tiles = 1;
  std::int64_t tile_groups = 0;
  int x_pitch = 0;
};

// ---- x ------------------------------------------------------------------------------------------

// Column c of a group in the order of pq2_0: word t of its codes holds columns 16 t .. 16 t + 15, four
// steps apart in each of its four pairs of bits; words 0 to 3 and 4 to 7 are the halves of a product.
__device__ inline int permuted_column(int c) {
  const int word = c / 16;
  const int step = c % 4;
  return 32 * step + 16 * (word / 4) + 4 * (word % 4) + c % 16 / 4;
}

__device__ inline void load_8(const void* x, DType dtype, std::int64_t at, float (&to)[8]) {
  if (dtype == DType::f32) {
    const auto* const from = reinterpret_cast<const float4*>(static_cast<const float*>(x) + at);
    const float4 a = from[0];
    const float4 b = from[1];
    to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
    to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
    return;
  }
  const auto* const from =
      reinterpret_cast<const uint4*>(static_cast<const std::uint16_t*>(x) + at);
  if (dtype == DType::bf16) {
    cuda::unpack(*from, to, Bf16{});
  } else {
    cuda::unpack(*from, to, F16{});
  }
}

// rint(value / scale) as IEEE division gives it, at most 127. The product with the inverse is off by less
// than 2^-15: only near a half does the division decide.
__device__ inline int round_quotient(float value, float scale, float inverse) {
  float quotient = value * inverse;
  float rounded = rintf(quotient);
  if (!(fabsf(fabsf(quotient - rounded) - 0.5F) > 0x1p-10F)) {
    rounded = rintf(__fdiv_rn(value, scale));
  }
  return static_cast<int>(fminf(fmaxf(rounded, -127.0F), 127.0F));
}

__device__ inline float larger_magnitude(float largest, float value) {
  return fabsf(value) < INFINITY ? fmaxf(largest, fabsf(value)) : INFINITY;
}

// The scale of a row from the largest magnitude of each thread, INFINITY where one is not finite.
// `scratch`: a float per warp; a barrier is inside.
__device__ inline float row_scale(float largest, float* scratch) {
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int half = 16; half > 0; half /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffU, largest, half));
  }
  if (thread % 32 == 0) scratch[thread / 32] = largest;
  __syncthreads();
  largest = scratch[0];
  for (int w = 1; w < static_cast<int>(blockDim.x) / 32; ++w) largest = fmaxf(largest, scratch[w]);
  return largest < INFINITY ? __fdiv_rn(largest, 127.0F) : __int_as_float(0x7fffffff);
}

struct Vector8 {
  float values[8];
};

// Eight integers of vector v of a row; returns their sum. A call, with the vector in registers: four
// copies of it in a kernel need 130 registers more, which halves the CTAs that are resident.
__device__ __noinline__ inline int store_8(Vector8 vector, float scale, float inverse, int v,
                                           bool permute, std::int8_t* q) {
  int code[8] = {};
  int sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    code[i] = scale > 0 ? round_quotient(vector.values[i], scale, inverse) : 0;
    sum += code[i];
  }
  if (permute) {
    std::int8_t* const group = q + v / 16 * kTernaryGroup;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      group[permuted_column(v % 16 * 8 + i)] = static_cast<std::int8_t>(code[i]);
    }
    return sum;
  }
  std::uint32_t words[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    words[i] = (code[4 * i] & 0xff) | (code[4 * i + 1] & 0xff) << 8 |
               (code[4 * i + 2] & 0xff) << 16 | static_cast<std::uint32_t>(code[4 * i + 3]) << 24;
  }
  *reinterpret_cast<uint2*>(q + v * 8) = {words[0], words[1]};
  return sum;
}

// Rounds a row by all threads of a CTA, a multiple of 32. kWide: eight elements at a time, the row
// aligned to 16 bytes and in to 128. sums[group * sum_step] = factor * (sum of the group's q).
// `scratch`: a float per warp. Returns the scale; ends with a barrier.
template <bool kWide>
__device__ float round_row(const void* x, DType dtype, int in, bool permute, std::int8_t* q,
                           int* sums, int sum_step, int factor, float* scratch) {
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  float scale = 0;
  if constexpr (kWide) {
    // The first vectors of a thread stay in registers; all loads are under way before one is used.
    constexpr int kHeld = 4;
    Vector8 held[kHeld] = {};
    float largest = 0;
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int v = thread + j * threads;
      if (v < in / 8) load_8(x, dtype, v * 8, held[j].values);
    }
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
#pragma unroll
      for (int i = 0; i < 8; ++i) largest = larger_magnitude(largest, held[j].values[i]);
    }
    for (int v = thread + kHeld * threads; v < in / 8; v += threads) {
      float values[8];
      load_8(x, dtype, v * 8, values);
#pragma unroll
      for (int i = 0; i < 8; ++i) largest = larger_magnitude(largest, values[i]);
    }
    scale = row_scale(largest, scratch);
    const float inverse = __fdiv_rn(1.0F, scale);
    // Sixteen lanes are a group of 128; all lanes of a warp stay for the reduction.
    const auto finish_vector = [&](int v, const Vector8& vector) {
      int sum = v < in / 8 ? store_8(vector, scale, inverse, v, permute, q) : 0;
#pragma unroll
      for (int half = 8; half > 0; half /= 2) sum += __shfl_xor_sync(0xffffffffU, sum, half);
      if (v < in / 8 && v % 16 == 0) sums[v / 16 * sum_step] = factor * sum;
    };
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      if (thread / 32 * 32 + j * threads < in / 8) finish_vector(thread + j * threads, held[j]);
    }
    for (int first = thread / 32 * 32 + kHeld * threads; first < in / 8; first += threads) {
      const int v = first + thread % 32;
      Vector8 vector = {};
      if (v < in / 8) load_8(x, dtype, v * 8, vector.values);
      finish_vector(v, vector);
    }
  } else {
    float largest = 0;
    for (int i = thread; i < in; i += threads) {
      largest = larger_magnitude(largest, cuda::load_any(x, dtype, i));
    }
    scale = row_scale(largest, scratch);
    const float inverse = __fdiv_rn(1.0F, scale);
    for (int i = thread; i < in; i += threads) {
      q[i] = static_cast<std::int8_t>(
          scale > 0 ? round_quotient(cuda::load_any(x, dtype, i), scale, inverse) : 0);
    }
  }
  __syncthreads();
  return scale;
}

// ---- W ------------------------------------------------------------------------------------------

// c += a * b: [16, 32] of u8 by [32, 8] of s8.
__device__ inline void multiply_add_int8(int (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                         std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The row of W that is row r of tile `tile`, the last one again past the end. With a gate a tile has
// eight gate rows and the eight up rows that go with them.
__device__ inline std::int64_t ternary_row(const TernaryParams& p, std::int64_t tile, int r) {
  if (p.sink.gate == LinearGate::none) {
    return min(tile * kTernaryRows + r, p.out - 1);
  }
  const std::int64_t column = min(tile * (kTernaryRows / 2) + r % 8, p.sink.columns - 1);
  return column + r / 8 * p.sink.columns;
}

// Starts to copy a segment of the 16 rows of a tile to `to`, by one warp.
template <int kCopy>
__device__ void copy_tile(const TernaryParams& p, std::int64_t tile, int segment,
                          std::uint32_t to) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::uint8_t* const from = p.weight.data + segment * kTernarySlab;
  if constexpr (kCopy == 16) {
    // Whole segments: eight lanes copy 128 bytes of a row at a time, twice; the last 16 bytes of every
    // row are a copy of their own.
    static_assert(kTernarySlab == 2 * 128 + 16);
#pragma unroll
    for (int four = 0; four < kTernaryRows; four += 4) {
      const int r = four + lane / 8;
      const std::uint8_t* const at =
          from + ternary_row(p, tile, r) * p.weight.row_bytes + lane % 8 * 16;
      const auto place = to + static_cast<std::uint32_t>(r * kTernarySlab + lane % 8 * 16);
      cuda::copy_async_16(place, at);
      cuda::copy_async_16(place + 128, at + 128);
    }
    if (lane < kTernaryRows) {
      cuda::copy_async_16(to + static_cast<std::uint32_t>(lane * kTernarySlab + 256),
                          from + ternary_row(p, tile, lane) * p.weight.row_bytes + 256);
    }
  } else {
    const int bytes =
        min(kTernarySlab, p.in / kTernaryGroup * kTernaryBlockBytes - segment * kTernarySlab);
    const int pieces = bytes / kCopy;
    for (int i = lane; i < kTernaryRows * pieces; i += 32) {
      const int r = i / pieces;
      const int byte = (i - r * pieces) * kCopy;
      cuda::copy_async_small<kCopy>(to + static_cast<std::uint32_t>(r * kTernarySlab + byte),
                                    from + ternary_row(p, tile, r) * p.weight.row_bytes + byte);
    }
  }
}

// Codes and scales of block kBlock % 2 of two, 16 rows: the left operands of four products. Lane 4 g + t
// has words t and t + 4 of rows g and g + 8.
struct TernaryLeft {
  std::uint32_t words[4];  // row g, g + 8: word t; row g, g + 8: word t + 4
  float scale[2];          // of rows g and g + 8

  __device__ __forceinline__ void plane(int k, std::uint32_t (&a)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = words[i] >> (2 * k) & 0x03030303U;
  }
};

template <bool kScaleFirst, bool kOdd>
__device__ __forceinline__ TernaryLeft load_left(const std::uint8_t* block) {
  constexpr int kCodes = kScaleFirst ? 2 : 0;
  constexpr bool kAligned = ((kOdd ? kTernaryBlockBytes : 0) + kCodes) % 4 == 0;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  TernaryLeft left;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::uint8_t* const row = block + (lane / 4 + half * 8) * kTernarySlab;
    const std::uint8_t* const codes = row + kCodes + lane % 4 * 4;
#pragma unroll
    for (int word = 0; word < 2; ++word) {
      const std::uint8_t* const at = codes + word * 16;
      if constexpr (kAligned) {
        left.words[word * 2 + half] = *reinterpret_cast<const std::uint32_t*>(at);
      } else {
        const auto* const low = reinterpret_cast<const std::uint32_t*>(at - 2);
        left.words[word * 2 + half] = __funnelshift_r(low[0], low[1], 16);
      }
    }
    const auto bits = *reinterpret_cast<const std::uint16_t*>(row + (kScaleFirst ? 0 : 32));
    left.scale[half] = __half2float(__ushort_as_half(bits));
  }
  return left;
}

// Adds one group to the sums of 8 * kTilesN rows of x: x[n] is the address of the group's q of this lane's
// row of ldmatrix in tile n, `sums` minus the sums of q of the group. Products that follow each other add to
// different sums: a warp issues in order and would wait for the one before.
template <int kTilesN>
__device__ __forceinline__ void add_group(const TernaryLeft& left,
                                          const std::uint32_t (&x)[kTilesN], const int* sums,
                                          float (&acc)[kTilesN][4]) {
  constexpr int kChains = kTilesN == 1 ? 2 : 1;
  const int t = static_cast<int>(threadIdx.x) % 4;
  int c[kTilesN][kChains][4] = {};
#pragma unroll
  for (int n = 0; n < kTilesN; ++n) {
    const int2 start = *reinterpret_cast<const int2*>(sums + n * 8 + 2 * t);
    c[n][0][0] = start.x;
    c[n][0][1] = start.y;
    c[n][0][2] = start.x;
    c[n][0][3] = start.y;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    std::uint32_t b[kTilesN][4];
#pragma unroll
    for (int n = 0; n < kTilesN; ++n) {
      cuda::load_matrices(x[n] + static_cast<std::uint32_t>(half * 64), b[n]);
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      std::uint32_t a[4];
      left.plane(2 * half + k, a);
#pragma unroll
      for (int n = 0; n < kTilesN; ++n) {
        multiply_add_int8(c[n][k % kChains], a, b[n][2 * k], b[n][2 * k + 1]);
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kTilesN; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      int sum = c[n][0][i];
      if constexpr (kChains == 2) sum += c[n][1][i];
      acc[n][i] = __fmaf_rn(left.scale[i / 2], static_cast<float>(sum), acc[n][i]);
    }
  }
}

// All groups of a segment that lies in `slab`; sums of group b at sums + b * sum_step.
template <bool kScaleFirst, int kTilesN>
__device__ __forceinline__ void add_segment(const std::uint8_t* slab, int blocks,
                                            std::uint32_t (&x)[kTilesN], const int* sums,
                                            int sum_step, float (&acc)[kTilesN][4]) {
  for (int b = 0; b < blocks; b += 2) {
    const std::uint8_t* const block = slab + b * kTernaryBlockBytes;
    add_group(load_left<kScaleFirst, false>(block), x, sums + b * sum_step, acc);
#pragma unroll
    for (std::uint32_t& at : x) at += kTernaryGroup;
    add_group(load_left<kScaleFirst, true>(block + kTernaryBlockBytes), x,
              sums + (b + 1) * sum_step, acc);
#pragma unroll
    for (std::uint32_t& at : x) at += kTernaryGroup;
  }
}

// Many rows: linear_ternary_tiles.cu. x is in int8.
void launch_ternary_tiles(Context& context, const TernaryParams& params, int copy);
std::int64_t ternary_tiles_shared_bytes();

}  // namespace touchstone::linear_layer
