// Matrix products of bf16 on tiles (AMX): C = A B, sums in f32.
//
// Operands are packed into tiles of 1 KB: 16 rows of A by 32 of k, and 16 pairs of k by 16 columns
// of B, a pair of k in 32 bits. Past the end of a matrix tiles are zero. A sum of C is a chain over
// k in steps of 32: within a step the even and the odd elements are added each in their order, then
// both to each other and to the chain. That is what the instruction does, wherever in a tile the
// sum stands and whichever operand is on the left, so an element of C has the same bits in every
// batch (linear_amx_test.cc).
#pragma once

#include <cstddef>
#include <cstdint>

#include "touchstone/core/checked.h"
#include "touchstone/core/half.h"

namespace touchstone::linear_layer::amx {

inline constexpr std::int64_t kTileRows = 16;
inline constexpr std::int64_t kTileDepth = 32;
inline constexpr std::int64_t kTileRowBytes = 64;
inline constexpr std::int64_t kTileBytes = kTileRows * kTileRowBytes;
// C is computed in blocks of 2 x 2 tiles.
inline constexpr std::int64_t kBlock = 32;

inline std::int64_t steps_of(std::int64_t depth) { return ceil_div(depth, kTileDepth); }

// A row-major matrix of bf16.
struct Matrix {
  const Bf16* data = nullptr;
  std::int64_t stride = 0;
  std::int64_t rows = 0;
  std::int64_t cols = 0;

  const Bf16* row(std::int64_t r) const { return data + r * stride; }
};

// The tiles of 16 rows of A: packed, or the rows as they are stored.
struct RowTiles {
  const std::byte* data = nullptr;
  std::int64_t stride = kTileRowBytes;  // bytes from row to row
  std::int64_t step = kTileBytes;       // bytes from one step of k to the next
};

// Where the tiles of 16 rows or columns go: segments of `steps` tiles, `stride` bytes apart. What
// is multiplied together lies together.
struct Packed {
  std::byte* data = nullptr;
  std::int64_t steps = 1;
  std::int64_t stride = 0;

  std::byte* tile(std::int64_t step) const {
    return data + step / steps * stride + step % steps * kTileBytes;
  }
};

// 16 rows of `from`, from `row` on, as tiles of A: steps_of(cols) of them.
void pack_rows(const Matrix& from, std::int64_t row, const Packed& to);
// 16 columns of `from`, from `column` on, as tiles of A transposed, k being the rows of `from`.
void pack_columns(const Matrix& from, std::int64_t column, const Packed& to);
// 16 rows of `from`, from `row` on, as tiles of B: columns of B, k along the rows of `from`.
void pack_rows_as_columns(const Matrix& from, std::int64_t row, const Packed& to);
// 16 columns of `from`, from `column` on, as tiles of B, k being the rows of `from`.
void pack_pairs(const Matrix& from, std::int64_t column, const Packed& to);

// Tiles of the calling thread from construction to destruction.
class TileSession {
 public:
  TileSession();
  ~TileSession();
  TileSession(const TileSession&) = delete;
  TileSession& operator=(const TileSession&) = delete;

  // A block of 2 x `columns` tiles (1 or 2) of C over `steps` steps, added to `c` or in its place.
  // The tiles of B begin at `b` and, the second column of them, b_stride bytes later. `c` is
  // [32][16 * columns], rows 32 floats apart.
  void multiply(const RowTiles (&a)[2], const std::byte* b, std::int64_t b_stride,
                std::int64_t columns, std::int64_t steps, bool add, float* c) const;
};

// Transposes a block: [32][32], aligned to 64 bytes.
void transpose_block(const float* from, float* to);
// Rounds `count` numbers as convert<Bf16> does.
void round_to_bf16(const float* from, std::int64_t count, Bf16* to);

}  // namespace touchstone::linear_layer::amx
