// Cross entropy of bf16 and f16 on Hopper's tensor cores.
//
// The product of logits keeps, of every tile of 256 columns, the statistics of each row, so that the
// forward stores no logits. The backward goes through chunks of tokens: logits are kept as f16 distances
// from the largest of their tile, where a softmax needs its digits, and become dl in the dtype of x in
// the same place; then two products make dx and add to dweight.
#include <cuda_fp16.h>

#include <algorithm>

#include "core/context_access.h"
#include "ops/cross_entropy/cuda/cross_entropy_cuda.cuh"
#include "ops/cross_entropy/cuda/head_product.cuh"
#include "touchstone/core/checked.h"

namespace touchstone::cross_entropy_op {
namespace {

std::int64_t chunk_tokens(std::int64_t vocabulary) {
  return std::max<std::int64_t>(kChunkElements / vocabulary / kTileM * kTileM, kTileM);
}
// Elements from row to row of the buffer: the copy engine wants multiples of 16 bytes.
std::int64_t buffer_stride(std::int64_t vocabulary) { return (vocabulary + 7) / 8 * 8; }

// ---- epilogues ---------------------------------------------------------------------------------

__device__ float quad_max(float v) {
  v = fmaxf(v, __shfl_xor_sync(~0U, v, 1));
  return fmaxf(v, __shfl_xor_sync(~0U, v, 2));
}
__device__ float quad_sum(float v) {
  v = __fadd_rn(v, __shfl_xor_sync(~0U, v, 1));
  return __fadd_rn(v, __shfl_xor_sync(~0U, v, 2));
}

struct LogitsEpilogue {
  std::int64_t rows = 0;
  std::int64_t vocabulary = 0;
  float soft_cap = 0;
  Targets targets{};
  Stats* stats = nullptr;          // [column tiles, rows]
  float* target_logits = nullptr;  // [rows]
  __half* distances = nullptr;     // [rows, stride], or null
  std::int64_t stride = 0;

  __device__ void operator()(Sums& sums, const AccumulatorCoord& at) const {
    const bool ragged = at.column + kTileN > vocabulary;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::int64_t row = at.row + i * 8;
      if (soft_cap > 0) cap(sums, i);
      if (ragged) hide(sums, i, at.column);
      const std::int64_t target = row < rows ? targets[row] : -1;
      find_target(sums, i, row, target - at.column);
      put_row(sums, i, row, at, ragged);
    }
  }

 private:
  // f(offset of the column, value) for the values of row i of the thread.
  template <class F>
  __device__ static void for_row(Sums& sums, int i, const F& f) {
#pragma unroll
    for (int j = 0; j < kTileN / 8; ++j) {
      f(8 * j, sums[4 * j + 2 * i]);
      f(8 * j + 1, sums[4 * j + 2 * i + 1]);
    }
  }
  __device__ void cap(Sums& sums, int i) const {
    for_row(sums, i,
            [&](int, float& v) { v = __fmul_rn(soft_cap, tanhf(__fdiv_rn(v, soft_cap))); });
  }
  // Columns beyond the vocabulary count for nothing.
  __device__ void hide(Sums& sums, int i, std::int64_t column) const {
    for_row(sums, i, [&](int offset, float& v) {
      if (column + offset >= vocabulary) v = -INFINITY;
    });
  }
  __device__ void find_target(Sums& sums, int i, std::int64_t row, std::int64_t offset) const {
    if (offset < 0 || offset >= kTileN) return;
    const auto wanted = static_cast<int>(offset);
    for_row(sums, i, [&](int at, float& v) {
      if (at == wanted) target_logits[row] = v;
    });
  }
  __device__ void put_row(Sums& sums, int i, std::int64_t row, const AccumulatorCoord& at,
                          bool ragged) const {
    float largest = -INFINITY;
    for_row(sums, i, [&](int, float& v) { largest = fmaxf(largest, v); });
    largest = quad_max(largest);
    const float base = largest == -INFINITY ? 0 : largest;
    float sum = 0, logits = 0;
    for_row(sums, i, [&](int offset, float& v) {
      if (!ragged || at.column + offset < vocabulary) logits = __fadd_rn(logits, v);
      v = __fsub_rn(v, base);
      sum = __fadd_rn(sum, exp_of(v));
    });
    sum = quad_sum(sum);
    logits = quad_sum(logits);
    if (row >= rows) return;
    if (threadIdx.x % 4 == 0) stats[at.column_tile * rows + row] = {largest, sum, logits};
    if (distances == nullptr) return;
    __half* const to = distances + row * stride + at.column;
#pragma unroll
    for (int j = 0; j < kTileN / 8; ++j) {
      if (at.column + 8 * j >= stride) continue;
      *reinterpret_cast<__half2*>(to + 8 * j) =
          __floats2half2_rn(sums[4 * j + 2 * i], sums[4 * j + 2 * i + 1]);
    }
  }
};

// Stores the sums as G, or adds them to what is there.
template <class G>
struct GradientEpilogue {
  G* to = nullptr;
  std::int64_t stride = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;  // even
  bool accumulate = false;

  struct alignas(2 * sizeof(G)) Pair {
    G first, second;
  };
  // Old values are loaded in batches of a row's pairs: as many as registers hold beside the sums.
  static constexpr int kBatch = 16;
  static constexpr int kPerRow = kTileN / 8 / kBatch;
  static constexpr int kBatches = 2 * kPerRow;

  __device__ void operator()(Sums& sums, const AccumulatorCoord& at) const {
#pragma unroll
    for (int i = 0; i < kBatches; ++i) {
      if (accumulate) add_batch(sums, at, i);
      store_batch(sums, at, i);
    }
  }

 private:
  // Pair j of batch i: its row, its first column and its first sum.
  __device__ static std::int64_t row_of(const AccumulatorCoord& at, int i) {
    return at.row + i / kPerRow * 8;
  }
  __device__ static std::int64_t column_of(const AccumulatorCoord& at, int i, int j) {
    return at.column + 8 * (i % kPerRow * kBatch + j);
  }
  __device__ static int sum_of(int i, int j) {
    return 4 * (i % kPerRow * kBatch + j) + 2 * (i / kPerRow);
  }

  __device__ void add_batch(Sums& sums, const AccumulatorCoord& at, int i) const {
    if (row_of(at, i) >= rows) return;
    const G* const row = to + row_of(at, i) * stride;
    Pair pairs[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const std::int64_t column = column_of(at, i, j);
      if (column < columns) pairs[j] = *reinterpret_cast<const Pair*>(row + column);
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      float& first = sums[sum_of(i, j)];
      float& second = sums[sum_of(i, j) + 1];
      first = __fadd_rn(cuda::widen(pairs[j].first), first);
      second = __fadd_rn(cuda::widen(pairs[j].second), second);
    }
  }
  __device__ void store_batch(const Sums& sums, const AccumulatorCoord& at, int i) const {
    if (row_of(at, i) >= rows) return;
    G* const row = to + row_of(at, i) * stride;
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const std::int64_t column = column_of(at, i, j);
      if (column >= columns) continue;
      *reinterpret_cast<Pair*>(row + column) = {cuda::narrow<G>(sums[sum_of(i, j)]),
                                                cuda::narrow<G>(sums[sum_of(i, j) + 1])};
    }
  }
};

// ---- rows --------------------------------------------------------------------------------------

struct RowParams {
  TokenOutputs outputs;
  std::int64_t rows;
  std::int64_t tiles;
  const Stats* stats;
  const float* target_logits;
  const float* dloss;
  const float* mean_gradient;
  float* lse;  // [rows], for the gradients
  __half* distances;
  std::int64_t stride;
  unsigned pieces;  // blocks of a row
};

// A warp per token joins the statistics of its tiles: every lane those of every 32nd, then the lanes.
__global__ __launch_bounds__(kRowThreads) void join_kernel(const __grid_constant__ RowParams p) {
  const std::int64_t row =
      std::int64_t{blockIdx.x} * (kRowThreads / 32) + static_cast<int>(threadIdx.x) / 32;
  if (row >= p.rows) return;
  Stats mine = no_stats();
  for (std::int64_t tile = threadIdx.x % 32; tile < p.tiles; tile += 32) {
    mine = joined(mine, p.stats[tile * p.rows + row]);
  }
  for (int offset = 1; offset < 32; offset *= 2) {
    const Stats other{__shfl_xor_sync(~0U, mine.largest, offset),
                      __shfl_xor_sync(~0U, mine.sum, offset),
                      __shfl_xor_sync(~0U, mine.logits, offset)};
    mine = joined(mine, other);
  }
  if (threadIdx.x % 32 != 0) return;
  p.lse[row] = lse_of(mine);
  put_token(p.outputs, row, mine, p.target_logits[row]);
}

// Distances become dl in place, eight neighbors at a time: blocks of 2048 columns of a row.
template <class T>
__global__ __launch_bounds__(kRowThreads) void gradient_kernel(
    const __grid_constant__ RowParams p) {
  const std::int64_t row = blockIdx.x / p.pieces;
  const std::int64_t column = (std::int64_t{blockIdx.x % p.pieces} * kRowThreads + threadIdx.x) * 8;
  if (column >= p.stride) return;
  uint4* const at = reinterpret_cast<uint4*>(p.distances + row * p.stride + column);
  const Formula& f = p.outputs.formula;
  const std::int64_t target = p.outputs.targets[row];
  float dl[8];
#pragma unroll
  for (float& v : dl) v = 0;
  if (kind_of(f, target) == TargetKind::in_range) {
    const float lse = p.lse[row];
    const RowGradient<float> c =
        gradient_of<float>(f, lse, dloss_of(p.outputs, p.dloss, p.mean_gradient, row));
    const float largest = p.stats[column / kTileN * p.rows + row].largest;
    const float shift = __fsub_rn(largest, lse);
    float d[8];
    cuda::unpack_as<F16>(*at, d);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (column + i >= f.vocabulary) continue;
      dl[i] = dl_of(f, c, __fadd_rn(largest, d[i]), __fadd_rn(d[i], shift), column + i == target);
    }
  }
  *at = cuda::pack_as<T>(dl);
}

// ---- host --------------------------------------------------------------------------------------

// Scratch beside what is common: statistics, logits of targets, lse and, backward, distances.
struct Scratch {
  std::int64_t rows;
  std::int64_t tiles;
  std::int64_t stats_bytes, row_bytes, distance_bytes;

  Scratch(const Problem& p, std::int64_t wanted)
      : rows(std::min(wanted, p.tokens)),
        tiles(ceil_div(p.vocabulary, kTileN)),
        stats_bytes(aligned(checked_mul(rows * tiles, sizeof(Stats)))),
        row_bytes(aligned(rows * 4)),
        distance_bytes(p.backward ? aligned(checked_mul(rows, buffer_stride(p.vocabulary) * 2))
                                  : 0) {}
  std::int64_t bytes() const { return stats_bytes + 2 * row_bytes + distance_bytes; }
};

// Backward a chunk, which V decides; forward as many tokens as fit, which changes no bit.
Scratch scratch_of(const Context& context, const Problem& p) {
  if (p.backward) return {p, chunk_tokens(p.vocabulary)};
  const std::int64_t per_row = ceil_div(p.vocabulary, kTileN) * std::int64_t{sizeof(Stats)} + 8;
  const std::int64_t left = context.workspace_bytes() - common_bytes(p) - 1024;
  return {p, std::max<std::int64_t>(left / per_row / kTileM * kTileM, kTileM)};
}

cuda::HeadsShape rows_of(const Matrix& m, DType dtype, std::int64_t first, std::int64_t rows,
                         std::int64_t columns) {
  return mapped(static_cast<const std::byte*>(m.data) + first * m.stride * size_of(dtype), rows,
                columns, m.stride);
}

template <class T>
void multiply_gradients(Context& context, const Problem& p, std::int64_t first, std::int64_t rows,
                        const RowParams& row) {
  const cuda::HeadsShape dl = mapped(row.distances, rows, p.vocabulary, row.stride);
  if (p.dx.data != nullptr) {
    const GradientEpilogue<T> epilogue{static_cast<T*>(p.dx.data) + first * p.dx.stride,
                                       p.dx.stride, rows, p.dim};
    multiply_head<T, false, true>(context, dl, rows_of(p.weight, p.dtype, 0, p.vocabulary, p.dim),
                                  rows, p.dim, p.vocabulary, epilogue);
  }
  if (p.dweight.data == nullptr) return;
  const cuda::HeadsShape x = rows_of(p.x, p.dtype, first, rows, p.dim);
  const auto run = [&]<class G>() {
    const GradientEpilogue<G> epilogue{static_cast<G*>(p.dweight.data), p.dweight.stride,
                                       p.vocabulary, p.dim, p.accumulate || first > 0};
    multiply_head<T, true, true>(context, dl, x, p.vocabulary, p.dim, rows, epilogue);
  };
  p.dweight_dtype == DType::f32 ? run.template operator()<float>() : run.template operator()<T>();
}

template <class T>
void run_chunks(Context& context, const Problem& p) {
  const Scratch scratch = scratch_of(context, p);
  auto* memory = static_cast<std::byte*>(
      detail::ContextAccess::workspace(context, common_bytes(p) + scratch.bytes()));
  const Common common = common_of(p, memory);
  memory += common_bytes(p);
  auto* const stats = reinterpret_cast<Stats*>(memory);
  auto* const target_logits = reinterpret_cast<float*>(memory + scratch.stats_bytes);
  auto* const lse = target_logits + scratch.row_bytes / 4;
  auto* const distances =
      p.backward ? reinterpret_cast<__half*>(lse + scratch.row_bytes / 4) : nullptr;
  count_tokens(context, p, common);
  for (std::int64_t first = 0; first < p.tokens; first += scratch.rows) {
    const std::int64_t rows = std::min(scratch.rows, p.tokens - first);
    const RowParams row{
        outputs_of(p, common, first),
        rows,
        scratch.tiles,
        stats,
        target_logits,
        p.dloss == nullptr ? nullptr : static_cast<const float*>(p.dloss) + first,
        common.mean_gradient,
        lse,
        distances,
        buffer_stride(p.vocabulary),
        static_cast<unsigned>(ceil_div(buffer_stride(p.vocabulary), kRowThreads * 8))};
    const LogitsEpilogue logits{rows,
                                p.vocabulary,
                                static_cast<float>(p.soft_cap),
                                row.outputs.targets,
                                stats,
                                target_logits,
                                distances,
                                row.stride};
    multiply_head<T, false, false>(context, rows_of(p.x, p.dtype, first, rows, p.dim),
                                   rows_of(p.weight, p.dtype, 0, p.vocabulary, p.dim), rows,
                                   p.vocabulary, p.dim, logits);
    cuda::launch(
        context, "cross_entropy join", join_kernel,
        {.blocks = static_cast<unsigned>(ceil_div(rows, kRowThreads / 32)), .threads = kRowThreads},
        row);
    if (!p.backward) continue;
    cuda::launch(context, "cross_entropy gradient", gradient_kernel<T>,
                 {.blocks = static_cast<unsigned>(rows) * row.pieces, .threads = kRowThreads}, row);
    multiply_gradients<T>(context, p, first, rows, row);
  }
  put_mean(context, p, common);
}

}  // namespace

std::string wgmma_refuses(const Context& context, const Problem& p) {
  if (std::string refusal = cuda::sm_90a_refusal(context); !refusal.empty()) return refusal;
  if (p.dtype == DType::f32) return "x of f32, needs bf16 or f16";
  if (p.tokens == 0 || p.dim == 0) return "a size of 0";
  if (!cuda::can_map(rows_of(p.x, p.dtype, 0, p.tokens, p.dim))) {
    return "x: data or strides are no multiples of 16 bytes";
  }
  if (!cuda::can_map(rows_of(p.weight, p.dtype, 0, p.vocabulary, p.dim))) {
    return "weight: data or strides are no multiples of 16 bytes";
  }
  const auto pairs = [&](const Matrix& m, DType dtype) {
    const auto bytes = static_cast<std::uintptr_t>(2 * size_of(dtype));
    return reinterpret_cast<std::uintptr_t>(m.data) % bytes == 0 && m.stride % 2 == 0;
  };
  if (p.backward && p.dim % 2 != 0) return "E is odd";
  if (!pairs(p.dx, p.dtype)) return "dx: rows do not begin at pairs of elements";
  if (!pairs(p.dweight, p.dweight_dtype)) return "dweight: rows do not begin at pairs of elements";
  const std::int64_t bytes = common_bytes(p) + scratch_of(context, p).bytes();
  if (bytes > context.workspace_bytes()) {
    return "a workspace of " + std::to_string(context.workspace_bytes()) + " bytes, needs " +
           std::to_string(bytes);
  }
  return {};
}

void run_wgmma(Context& context, const Problem& p) {
  const cuda::DeviceScope scope(context.device().index);
  p.dtype == DType::bf16 ? run_chunks<Bf16>(context, p) : run_chunks<F16>(context, p);
}

}  // namespace touchstone::cross_entropy_op
