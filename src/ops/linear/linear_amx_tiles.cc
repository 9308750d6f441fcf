// Packing and products on tiles: see linear_amx.h. The only file with these instructions, so that
// the rest is compiled for every processor.
#include <algorithm>
#include <bit>

#include "hwy/base.h"
#include "ops/linear/linear_amx.h"

#if HWY_ARCH_X86_64

#include <immintrin.h>

HWY_PUSH_ATTRIBUTES("avx512f,avx512bw,avx512vl,avx512dq,amx-tile,amx-bf16")
namespace touchstone::linear_layer::amx {
namespace {

// What a tile is: the operand of ldtilecfg.
struct alignas(64) TileConfiguration {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

constexpr TileConfiguration full_tiles() {
  TileConfiguration c;
  std::fill_n(c.row_bytes, 8, std::uint16_t{kTileRowBytes});
  std::fill_n(c.rows, 8, std::uint8_t{kTileRows});
  return c;
}
constexpr TileConfiguration kFullTiles = full_tiles();

// Not in the constructor: GCC does not compile that for the target above.
HWY_NOINLINE void configure_tiles() { _tile_loadconfig(&kFullTiles); }
HWY_NOINLINE void release_tiles() { _tile_release(); }

// The first `count` of 16 or 32 lanes, at most all of them.
__mmask32 first_32(std::int64_t count) {
  return count >= 32 ? ~__mmask32{0} : (__mmask32{1} << std::max<std::int64_t>(count, 0)) - 1;
}
__mmask16 first_16(std::int64_t count) {
  return static_cast<__mmask16>(first_32(std::min<std::int64_t>(count, 16)));
}

// 32 elements of row `row` from column `column` on, zero past the matrix.
__m512i load_32(const Matrix& m, std::int64_t row, std::int64_t column) {
  if (row >= m.rows) return _mm512_setzero_si512();
  return _mm512_maskz_loadu_epi16(first_32(m.cols - column), m.row(row) + column);
}
// 16 elements, one in each 32 bits.
__m512i load_16(const Matrix& m, std::int64_t row, std::int64_t column) {
  if (row >= m.rows) return _mm512_setzero_si512();
  return _mm512_cvtepu16_epi32(
      _mm256_maskz_loadu_epi16(first_16(m.cols - column), m.row(row) + column));
}

void transpose(__m512i (&v)[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  // v[4 g + c]: in each 128 bits q the column 4 q + c of rows 4 g to 4 g + 3.
  for (int c = 0; c < 4; ++c) {
    const __m512i even_low = _mm512_shuffle_i32x4(v[c], v[4 + c], 0x88);
    const __m512i odd_low = _mm512_shuffle_i32x4(v[c], v[4 + c], 0xdd);
    const __m512i even_high = _mm512_shuffle_i32x4(v[8 + c], v[12 + c], 0x88);
    const __m512i odd_high = _mm512_shuffle_i32x4(v[8 + c], v[12 + c], 0xdd);
    t[c] = _mm512_shuffle_i32x4(even_low, even_high, 0x88);
    t[8 + c] = _mm512_shuffle_i32x4(even_low, even_high, 0xdd);
    t[4 + c] = _mm512_shuffle_i32x4(odd_low, odd_high, 0x88);
    t[12 + c] = _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd);
  }
  std::copy_n(t, 16, v);
}

void store_tile(const __m512i (&rows)[16], std::byte* to) {
  for (int i = 0; i < 16; ++i) _mm512_store_si512(to + i * kTileRowBytes, rows[i]);
}

// A step of 32 rows of `from` from `k` on, 16 columns: a pair of rows in each vector.
void load_pairs(const Matrix& from, std::int64_t k, std::int64_t column, __m512i (&v)[16]) {
  for (int i = 0; i < 16; ++i) {
    v[i] = _mm512_or_si512(load_16(from, k + 2 * i, column),
                           _mm512_slli_epi32(load_16(from, k + 2 * i + 1, column), 16));
  }
}

constexpr std::int64_t kSumStride = kBlock * static_cast<std::int64_t>(sizeof(float));

// Tiles 0 and 1 are the first 16 rows of C, 2 and 3 the others; 4 and 5 those of A, 6 and 7 those
// of B.
void multiply_two(const RowTiles (&a)[2], const std::byte* b, std::int64_t b_stride,
                  std::int64_t steps, bool add, float* c) {
  float* const lower = c + kTileRows * kBlock;
  if (add) {
    _tile_loadd(0, c, kSumStride);
    _tile_loadd(1, c + kTileRows, kSumStride);
    _tile_loadd(2, lower, kSumStride);
    _tile_loadd(3, lower + kTileRows, kSumStride);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  const std::byte* a0 = a[0].data;
  const std::byte* a1 = a[1].data;
  for (std::int64_t s = 0; s < steps; ++s, a0 += a[0].step, a1 += a[1].step, b += kTileBytes) {
    _tile_loadd(6, b, kTileRowBytes);
    _tile_loadd(4, a0, a[0].stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, a1, a[1].stride);
    _tile_dpbf16ps(2, 5, 6);
    _tile_loadd(7, b + b_stride, kTileRowBytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, kSumStride);
  _tile_stored(1, c + kTileRows, kSumStride);
  _tile_stored(2, lower, kSumStride);
  _tile_stored(3, lower + kTileRows, kSumStride);
}

void multiply_one(const RowTiles (&a)[2], const std::byte* b, std::int64_t steps, bool add,
                  float* c) {
  float* const lower = c + kTileRows * kBlock;
  if (add) {
    _tile_loadd(0, c, kSumStride);
    _tile_loadd(2, lower, kSumStride);
  } else {
    _tile_zero(0);
    _tile_zero(2);
  }
  const std::byte* a0 = a[0].data;
  const std::byte* a1 = a[1].data;
  for (std::int64_t s = 0; s < steps; ++s, a0 += a[0].step, a1 += a[1].step, b += kTileBytes) {
    _tile_loadd(6, b, kTileRowBytes);
    _tile_loadd(4, a0, a[0].stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, a1, a[1].stride);
    _tile_dpbf16ps(2, 5, 6);
  }
  _tile_stored(0, c, kSumStride);
  _tile_stored(2, lower, kSumStride);
}

}  // namespace

void pack_rows(const Matrix& from, std::int64_t row, const Packed& to) {
  const std::int64_t steps = steps_of(from.cols);
  for (std::int64_t r = 0; r < kTileRows; ++r) {
    for (std::int64_t s = 0; s < steps; ++s) {
      _mm512_store_si512(to.tile(s) + r * kTileRowBytes, load_32(from, row + r, s * kTileDepth));
    }
  }
}

void pack_columns(const Matrix& from, std::int64_t column, const Packed& to) {
  const std::int64_t steps = steps_of(from.rows);
  for (std::int64_t s = 0; s < steps; ++s) {
    __m512i v[16];
    load_pairs(from, s * kTileDepth, column, v);
    transpose(v);
    store_tile(v, to.tile(s));
  }
}

void pack_rows_as_columns(const Matrix& from, std::int64_t row, const Packed& to) {
  const std::int64_t steps = steps_of(from.cols);
  for (std::int64_t s = 0; s < steps; ++s) {
    __m512i v[16];
    for (int r = 0; r < 16; ++r) v[r] = load_32(from, row + r, s * kTileDepth);
    transpose(v);
    store_tile(v, to.tile(s));
  }
}

void pack_pairs(const Matrix& from, std::int64_t column, const Packed& to) {
  const std::int64_t steps = steps_of(from.rows);
  for (std::int64_t s = 0; s < steps; ++s) {
    __m512i v[16];
    load_pairs(from, s * kTileDepth, column, v);
    store_tile(v, to.tile(s));
  }
}

TileSession::TileSession() { configure_tiles(); }
TileSession::~TileSession() { release_tiles(); }

void TileSession::multiply(const RowTiles (&a)[2], const std::byte* b, std::int64_t b_stride,
                           std::int64_t columns, std::int64_t steps, bool add, float* c) const {
  if (columns == 2) {
    multiply_two(a, b, b_stride, steps, add, c);
  } else {
    multiply_one(a, b, steps, add, c);
  }
}

void transpose_block(const float* from, float* to) {
  for (std::int64_t row = 0; row < kBlock; row += kTileRows) {
    for (std::int64_t column = 0; column < kBlock; column += kTileRows) {
      __m512i v[16];
      for (int i = 0; i < 16; ++i) v[i] = _mm512_load_si512(from + (row + i) * kBlock + column);
      transpose(v);
      for (int i = 0; i < 16; ++i) _mm512_store_si512(to + (column + i) * kBlock + row, v[i]);
    }
  }
}

void round_to_bf16(const float* from, std::int64_t count, Bf16* to) {
  for (std::int64_t i = 0; i < count; i += 16) {
    const __mmask16 lanes = first_16(count - i);
    const __m512i word = _mm512_maskz_loadu_epi32(lanes, from + i);
    const __m512i upper = _mm512_srli_epi32(word, 16);
    const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_srli_epi32(
        _mm512_add_epi32(_mm512_add_epi32(word, _mm512_set1_epi32(0x7fff)), odd), 16);
    const __m512 value = _mm512_castsi512_ps(word);
    const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    const __m512i result = _mm512_mask_or_epi32(rounded, nan, upper, _mm512_set1_epi32(0x40));
    _mm256_mask_storeu_epi16(to + i, lanes, _mm512_cvtepi32_epi16(result));
  }
}

}  // namespace touchstone::linear_layer::amx
HWY_POP_ATTRIBUTES

#else  // no such instructions: amx_refuses_* say so, and nothing calls these

namespace touchstone::linear_layer::amx {

void pack_rows(const Matrix& /*from*/, std::int64_t /*row*/, const Packed& /*to*/) {}
void pack_columns(const Matrix& /*from*/, std::int64_t /*column*/, const Packed& /*to*/) {}
void pack_rows_as_columns(const Matrix& /*from*/, std::int64_t /*row*/, const Packed& /*to*/) {}
void pack_pairs(const Matrix& /*from*/, std::int64_t /*column*/, const Packed& /*to*/) {}
TileSession::TileSession() = default;
TileSession::~TileSession() = default;
void TileSession::multiply(const RowTiles (&/*a*/)[2], const std::byte* /*b*/,
                           std::int64_t /*b_stride*/, std::int64_t /*columns*/,
                           std::int64_t /*steps*/, bool /*add*/, float* /*c*/) const {}
void transpose_block(const float* /*from*/, float* /*to*/) {}
void round_to_bf16(const float* /*from*/, std::int64_t /*count*/, Bf16* /*to*/) {}

}  // namespace touchstone::linear_layer::amx

#endif
