// Dense attention on the tensor cores of any GPU from Ampere on (mma.sync, ldmatrix, cp.async):
// what the forward and the backward kernels share.
//
// A block owns some rows of one side, queries or keys, and goes over the tiles of the other side,
// which all its warps read. A warp has 16 or 32 of the rows: their scores, weights and sums stay in
// its registers, because the registers in which one product leaves its sums are those in which the
// next wants its left operand.
//
// Bits depend on little for the reason that dense_wgmma.cuh gives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "cuda/hopper.cuh"
#include "cuda/tensor_core.cuh"
#include "ops/attention_dense/cuda/dense_tiles.cuh"

namespace touchstone::dense_attention {

inline constexpr int kMmaWarps = 4;
inline constexpr int kMmaThreads = kMmaWarps * 32;

// ---- tiles --------------------------------------------------------------------------------------

template <int kRows, int kDim>
inline constexpr int kMmaTileBytes = kRows* kDim * 2;

// The tokens of one head, from a certain one on.
struct Tokens {
  const std::uint16_t* data;
  std::int64_t stride;
  int columns;

  __device__ Tokens(const ConstHeads& heads, std::int64_t columns, std::int64_t sequence, int head,
                    std::int64_t token)
      : data(token_of<std::uint16_t>(heads, sequence, head, token)),
        stride(heads.token_stride),
        columns(static_cast<int>(columns)) {}
};

// All threads of the block copy tokens; those from `rows` on and columns that the head has not
// become zeros.
template <int kRows, int kDim>
__device__ void issue_tile(std::uint32_t shared, const Tokens& tokens, std::int64_t first,
                           std::int64_t rows) {
  constexpr int kUnits = kDim / 8;
  constexpr int kStep = kMmaThreads / kUnits;
  const int unit = static_cast<int>(threadIdx.x) % kUnits;
  const int row = static_cast<int>(threadIdx.x) / kUnits;
  const int last = unit * 8 < tokens.columns ? static_cast<int>(smaller(rows, kRows)) : 0;
  const std::uint16_t* const from = tokens.data + (first + row) * tokens.stride + unit * 8;
#pragma unroll
  for (int r = 0; r < kRows; r += kStep) {
    const bool there = row + r < last;
    cuda::copy_async_16_if(shared + cuda::spread_unit<kUnits>(row + r, unit),
                           there ? from + r * tokens.stride : tokens.data, there);
  }
}

// Where a lane reads operands of 16 by 16 in a tile: those of 16 rows by 2 units, either as left
// operand or, transposed, as right one; and those of two right operands of 8 rows each.
template <int kDim>
struct LaneOffsets {
  std::uint32_t across, along;
  __device__ LaneOffsets() {
    const int lane = static_cast<int>(threadIdx.x % 32);
    across = cuda::spread_unit<kDim / 8>(lane % 16, lane / 16);
    along = cuda::spread_unit<kDim / 8>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
  }
};

// The address `unit` units further on. Tiles begin at multiples of 128 bytes.
__device__ inline std::uint32_t further(std::uint32_t coord, int unit) {
  return (coord ^ static_cast<std::uint32_t>(unit % 8 * 16)) +
         static_cast<std::uint32_t>(unit / 8 * 128);
}

// ---- products -----------------------------------------------------------------------------------

template <class T>
__device__ void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                             std::uint32_t b1) {
  if constexpr (std::is_same_v<T, Bf16>) {
    cuda::multiply_add_bf16(c, a, b0, b1);
  } else {
    cuda::multiply_add_f16(c, a, b0, b1);
  }
}

// [16 * kTiles, 8 * kBlocks] as the lanes of a warp hold it: lane l has of every 16 by 8 the
// columns l % 4 * 2 and the next of row l / 4, then of row l / 4 + 8.
template <int kTiles, int kColumns>
using Sums = float[kTiles][kColumns / 8][4];

template <int kTiles, int kColumns>
__device__ void clear(float (&sums)[kTiles][kColumns][4]) {
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[m][j][i] = 0;
    }
  }
}

// Heads that leave the last quarter of a tile's columns empty need not multiply it.
template <int kDim>
__device__ constexpr bool ends_early(int first_column, int columns) {
  return first_column == kDim / 4 * 3 && columns <= first_column;
}

// sums += left * right transposed: both along their columns. left(a, c) gives the operands of the
// warp's rows from column c on.
template <class T, int kDim, int kTiles, int kBlocks, class Left>
__device__ void add_columns(float (&sums)[kTiles][kBlocks][4], const Left& left,
                            std::uint32_t right, const LaneOffsets<kDim>& places, int columns) {
#pragma unroll
  for (int c = 0; c < kDim; c += 16) {
    if (ends_early<kDim>(c, columns)) break;
    std::uint32_t a[kTiles][4];
    left(a, c);
#pragma unroll
    for (int j = 0; j < kBlocks; j += 2) {
      std::uint32_t b[4];
      cuda::load_matrices(further(right + places.along, c / 8) + j * 8 * kDim * 2, b);
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        multiply_add<T>(sums[m][j], a[m], b[0], b[1]);
        multiply_add<T>(sums[m][j + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// Left operands from a tile; `address` is that of the warp's rows.
template <int kDim>
struct FromTile {
  std::uint32_t address;
  LaneOffsets<kDim> places;
  template <int kTiles>
  __device__ void operator()(std::uint32_t (&a)[kTiles][4], int c) const {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      cuda::load_matrices(further(address + places.across, c / 8) + m * 16 * kDim * 2, a[m]);
    }
  }
};

// sums += left * right, along the rows of `right`; `left` is rounded to T.
template <class T, int kDim, int kTiles, int kBlocks>
__device__ void add_rows(float (&sums)[kTiles][kDim / 8][4],
                         const float (&left)[kTiles][kBlocks][4], std::uint32_t right,
                         const LaneOffsets<kDim>& places, int columns) {
#pragma unroll
  for (int j = 0; j < kBlocks; j += 2) {
    std::uint32_t a[kTiles][4];
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* const pair = &left[m][j + i / 2][i % 2 * 2];
        a[m][i] = packed_pair<T>(pair[0], pair[1]);
      }
    }
#pragma unroll
    for (int c = 0; c < kDim; c += 16) {
      if (ends_early<kDim>(c, columns)) break;
      std::uint32_t b[4];
      cuda::load_transposed(further(right + places.across, c / 8) + j * 8 * kDim * 2, b);
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        multiply_add<T>(sums[m][c / 8], a[m], b[0], b[1]);
        multiply_add<T>(sums[m][c / 8 + 1], a[m], b[2], b[3]);
      }
    }
  }
}

// ---- scores -------------------------------------------------------------------------------------

// function(number, down, across): how far it is from the lane's first row and first column.
template <int kTiles, int kBlocks, class Function>
__device__ void for_each(float (&sums)[kTiles][kBlocks][4], const Function& function) {
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) function(sums[m][j][i], 16 * m + i / 2 * 8, 8 * j + i % 2);
    }
  }
}

// ALiBi and bias. `own` is the lane's first row, a query if kQueries and else a key, `other` its
// first column.
template <bool kQueries, int kTiles, int kBlocks>
__device__ void add_to_scores(float (&scores)[kTiles][kBlocks][4], const ScoreRule& rule,
                              const SequenceSpan& span, int own, int other) {
  if (rule.slope() != 0) {
    const auto apart =
        static_cast<float>(own - other + (kQueries ? rule.offset() : -rule.offset()));
    for_each(scores, [&](float& score, int down, int across) {
      score = fmaf(-rule.slope(), fabsf(apart + static_cast<float>(down - across)), score);
    });
  }
  if (rule.bias() == nullptr) return;
  const std::int64_t own_stride = kQueries ? rule.query_stride() : rule.key_stride();
  const std::int64_t other_stride = kQueries ? rule.key_stride() : rule.query_stride();
  const std::int64_t rows = (kQueries ? span.queries : span.keys) - own;
  const std::int64_t columns = (kQueries ? span.keys : span.queries) - other;
  const float* const bias = rule.bias() + own * own_stride + other * other_stride;
  for_each(scores, [&](float& score, int down, int across) {
    if (down < rows && across < columns) score += bias[down * own_stride + across * other_stride];
  });
}

// Products become scores.
template <bool kQueries, int kTiles, int kBlocks>
__device__ void apply_score_mods(float (&scores)[kTiles][kBlocks][4], const ScoreRule& rule,
                                 const SequenceSpan& span, int own, int other) {
  if (rule.caps()) {
    for_each(scores, [&](float& score, int, int) { score = rule.capped(score); });
  } else {
    for_each(scores, [&](float& score, int, int) { score *= rule.scale(); });
  }
  add_to_scores<kQueries>(scores, rule, span, own, other);
}

// Masked scores become `hidden`.
template <bool kQueries, int kTiles, int kBlocks>
__device__ void hide(float (&scores)[kTiles][kBlocks][4], const TileMask& pair, int own, int other,
                     float hidden) {
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = own + 16 * m + 8 * r;
      const RowMask visible = kQueries ? pair.row(row) : pair.of_key(row);
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          if (!visible.attends(other + 8 * j + c)) scores[m][j][2 * r + c] = hidden;
        }
      }
    }
  }
}

// Weights, or their gradients, times what dropout keeps of them. `own` and `other` as above; the four
// lanes of a quad share the words of a block of eight keys.
template <bool kQueries, int kTiles, int kBlocks>
__device__ void drop_weights(float (&weights)[kTiles][kBlocks][4], const DenseProblem& p,
                             const SequenceSpan& span, std::int64_t sequence, int head, int own,
                             int other) {
  const std::int64_t first = query_token(p, span, sequence, 0);
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = own + 16 * m + 8 * r;
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) {
        const int column = other + 8 * j;
        if constexpr (kQueries) {
          const PhiloxWords words = p.dropout.words(head, first + row, column / 8);
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            weights[m][j][2 * r + c] *=
                p.dropout.factor(words, static_cast<unsigned>((column + c) % 8));
          }
        } else {
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            weights[m][j][2 * r + c] *= p.dropout.factor(head, first + column + c, row);
          }
        }
      }
    }
  }
}

// ---- output -------------------------------------------------------------------------------------

// A warp's sums, times a factor per row, go to global memory as T, through its own rows of a tile
// in shared memory that nothing reads any more. Rows from `rows` on do not.
template <class T, int kDim, int kTiles>
__device__ void store_rows(const float (&sums)[kTiles][kDim / 8][4],
                           const float (&factors)[kTiles][2], std::byte* tile, T* output,
                           std::int64_t token_stride, std::int64_t columns, std::int64_t rows) {
  constexpr int kUnits = kDim / 8;
  const int lane = static_cast<int>(threadIdx.x % 32);
  __syncwarp();
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = 16 * m + 8 * r + lane / 4;
        std::byte* const at = tile + cuda::spread_unit<kUnits>(row, j) + lane % 4 * 4;
        *reinterpret_cast<std::uint32_t*>(at) = packed_pair<T>(
            sums[m][j][2 * r] * factors[m][r], sums[m][j][2 * r + 1] * factors[m][r]);
      }
    }
  }
  __syncwarp();
  for (int piece = lane; piece < 16 * kTiles * kUnits; piece += 32) {
    const int row = piece / kUnits;
    const int unit = piece % kUnits;
    if (row >= rows || unit * 8 >= columns) continue;
    *reinterpret_cast<uint4*>(output + row * token_stride + unit * 8) =
        *reinterpret_cast<const uint4*>(tile + cuda::spread_unit<kUnits>(row, unit));
  }
}

// ---- the host's side ----------------------------------------------------------------------------

// Why 16-byte copies cannot serve a tensor, or nothing.
template <class Pointer>
std::string mma_refuses_layout(const char* name, const Heads<Pointer>& tensor) {
  const bool fits = reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0 &&
                    tensor.batch_stride % 8 == 0 && tensor.head_stride % 8 == 0 &&
                    tensor.token_stride % 8 == 0;
  return fits ? "" : std::string(name) + ": data or strides are no multiples of 16 bytes";
}

// What neither direction takes.
inline std::string mma_refuses(const Context& context, const DenseProblem& p) {
  if (cuda::device_attribute(context, cudaDevAttrComputeCapabilityMajor) < 8) {
    return "compute capability below 8.0";
  }
  std::string refusal = refuses_heads(p);
  if (refusal.empty()) refusal = refuses_count(p);
  if (refusal.empty()) refusal = mma_refuses_layout("q", p.q);
  if (refusal.empty()) refusal = mma_refuses_layout("k", p.k);
  if (refusal.empty()) refusal = mma_refuses_layout("v", p.v);
  return refusal;
}

}  // namespace touchstone::dense_attention
