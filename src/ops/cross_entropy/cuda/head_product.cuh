// Products of thousands of rows and columns on Hopper's tensor cores, with what happens to the sums as a
// parameter: C[m, n] = sum over k of A(m, k) B(n, k), in one chain of steps of 16 from the first k on.
//
// A CTA goes through tiles of 128 rows by 256 columns of C: a producer keeps a pipeline of tiles of 64 k
// filled by the copy engine, also across tiles of C; two consumer warpgroups have 64 rows each. Operands
// may be stored with k along their rows or along their columns.
#pragma once

#include "cuda/launch.h"
#include "cuda/tensor_map.h"
#include "cuda/wgmma_either.cuh"
#include "ops/cross_entropy/cross_entropy_tuning.h"

// Compiled for other chips the kernel is empty, and what only it uses is unused.
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#pragma nv_diag_suppress 177
#endif

namespace touchstone::cross_entropy_op {

inline constexpr int kSliceBytes = kTileK * kTileK * 2;
inline constexpr int kStageBytes = (kTileM + kTileN) * kTileK * 2;
inline constexpr int kProductThreads = (kGroups + 1) * cuda::kWarpgroup;
inline constexpr int kProductShared = kStages * kStageBytes + 1024;

// The sums of a thread: sum 4 j + i at row `row` + i / 2 * 8 and column `column` + 8 j + i % 2 of C.
using Sums = float[kTileN / 2];
struct AccumulatorCoord {
  std::int64_t row;
  std::int64_t column;
  std::int64_t column_tile;
};

template <class Epilogue>
struct ProductParams {
  CUtensorMap a;
  CUtensorMap b;
  std::int64_t depth = 0;
  std::int64_t row_tiles = 0;
  std::int64_t column_tiles = 0;
  Epilogue epilogue;
};

// Tiles that run side by side share rows of A and of B in L2: blocks of eight row tiles.
template <class Epilogue>
__device__ void tile_of(const ProductParams<Epilogue>& p, std::int64_t index, std::int64_t& row,
                        std::int64_t& column) {
  constexpr std::int64_t kGroup = 8;
  const std::int64_t group = index / (kGroup * p.column_tiles);
  const std::int64_t rows = min(kGroup, p.row_tiles - group * kGroup);
  const std::int64_t within = index - group * kGroup * p.column_tiles;
  row = group * kGroup + within % rows;
  column = within / rows;
}

struct Pipeline {
  std::byte* tiles;
  std::uint64_t* full;
  std::uint64_t* empty;
};

// `rows` of an operand, 64 k from `k` on: slices of 64 rows, or, with k along rows, of 64 columns.
template <bool kTrans>
__device__ void load_operand(std::byte* to, const CUtensorMap* map, int k, int first, int rows,
                             std::uint64_t* barrier) {
  for (int i = 0; i < rows; i += kTileK) {
    cuda::load_slice(to + i / kTileK * kSliceBytes, map, kTrans ? first + i : k,
                     kTrans ? k : first + i, 0, 0, barrier);
  }
}

template <bool kTransA, bool kTransB, class Epilogue>
__device__ void produce(const ProductParams<Epilogue>& p, const Pipeline& pipe) {
  const auto steps = static_cast<int>((p.depth + kTileK - 1) / kTileK);
  int stage = 0;
  std::uint32_t parity = 1;  // of the round before the first: empty from the start
  for (std::int64_t index = blockIdx.x; index < p.row_tiles * p.column_tiles; index += gridDim.x) {
    std::int64_t row = 0, column = 0;
    tile_of(p, index, row, column);
    for (int i = 0; i < steps; ++i) {
      cuda::barrier_wait(&pipe.empty[stage], parity);
      cuda::barrier_expect(&pipe.full[stage], kStageBytes);
      std::byte* const a = pipe.tiles + stage * kStageBytes;
      load_operand<kTransA>(a, &p.a, i * kTileK, static_cast<int>(row) * kTileM, kTileM,
                            &pipe.full[stage]);
      load_operand<kTransB>(a + kTileM * kTileK * 2, &p.b, i * kTileK,
                            static_cast<int>(column) * kTileN, kTileN, &pipe.full[stage]);
      if (++stage == kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }
}

template <class T, bool kTransA, bool kTransB>
__device__ void multiply_stage(Sums& sums, std::uint32_t tiles, int group, bool fresh) {
  const std::uint64_t left = cuda::tile_descriptor(tiles + group * kSliceBytes, kTileK);
  const std::uint64_t right = cuda::tile_descriptor(tiles + kTileM * kTileK * 2, kTileK);
#pragma unroll
  for (int step = 0; step < kTileK / 16; ++step) {
    cuda::wgmma_either<T, kTransA, kTransB>(
        sums, kTransA ? cuda::inner_rows(left, step) : cuda::advanced(left, step * 32),
        kTransB ? cuda::inner_rows(right, step) : cuda::advanced(right, step * 32),
        fresh && step == 0 ? 0 : 1);
  }
}

template <class T, bool kTransA, bool kTransB, class Epilogue>
__device__ void consume(const ProductParams<Epilogue>& p, const Pipeline& pipe, int group) {
  const auto steps = static_cast<int>((p.depth + kTileK - 1) / kTileK);
  const int thread = static_cast<int>(threadIdx.x) % cuda::kWarpgroup;
  const auto release = [&](int stage) {
    if (thread == 0) cuda::barrier_arrive(&pipe.empty[stage]);
  };
  int stage = 0;
  std::uint32_t parity = 0;
  for (std::int64_t index = blockIdx.x; index < p.row_tiles * p.column_tiles; index += gridDim.x) {
    std::int64_t row = 0, column = 0;
    tile_of(p, index, row, column);
    Sums sums;
    for (int i = 0; i < steps; ++i) {
      cuda::barrier_wait(&pipe.full[stage], parity);
      cuda::wgmma_hold(sums);
      cuda::wgmma_begin();
      multiply_stage<T, kTransA, kTransB>(
          sums, cuda::shared_address(pipe.tiles + stage * kStageBytes), group, i == 0);
      cuda::wgmma_commit();
      // The products of the stage before are done, those of this one under way.
      cuda::wgmma_wait<1>();
      if (i > 0) release(stage == 0 ? kStages - 1 : stage - 1);
      if (++stage == kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
    const int lane = thread % 32;
    const AccumulatorCoord at{row * kTileM + group * 64 + thread / 32 * 16 + lane / 4,
                              column * kTileN + lane % 4 * 2, column};
    cuda::wgmma_wait<0>();
    cuda::wgmma_hold(sums);
    release(stage == 0 ? kStages - 1 : stage - 1);
    p.epilogue(sums, at);
  }
}

template <class T, bool kTransA, bool kTransB, class Epilogue>
__global__ void __launch_bounds__(kProductThreads, 1)
    head_product(const __grid_constant__ ProductParams<Epilogue> p) {
  if constexpr (cuda::kWgmma) {
    extern __shared__ std::byte memory[];
    __shared__ std::uint64_t full[kStages];
    __shared__ std::uint64_t empty[kStages];
    const std::uint32_t misaligned = cuda::shared_address(memory) % 1024;
    const Pipeline pipe{memory + (misaligned == 0 ? 0 : 1024 - misaligned), full, empty};
    if (threadIdx.x == 0) {
      for (int i = 0; i < kStages; ++i) {
        cuda::barrier_init(&full[i], 1);
        cuda::barrier_init(&empty[i], kGroups);
      }
      cuda::fence_barrier_init();
    }
    __syncthreads();
    const int group = static_cast<int>(threadIdx.x) / cuda::kWarpgroup;
    if (group == kGroups) {
      cuda::give_registers_back<40>();
      if (threadIdx.x % cuda::kWarpgroup == 0) produce<kTransA, kTransB>(p, pipe);
    } else {
      cuda::take_registers<232>();
      consume<T, kTransA, kTransB>(p, pipe, group);
    }
  }
}

// A matrix [rows, columns] of T as the copy engine reads it.
inline cuda::HeadsShape mapped(const void* data, std::int64_t rows, std::int64_t columns,
                               std::int64_t stride) {
  return {.data = data, .tokens = rows, .columns = columns, .token_stride = stride};
}

// m by n outputs of `epilogue`.
template <class T, bool kTransA, bool kTransB, class Epilogue>
void multiply_head(Context& context, const cuda::HeadsShape& a, const cuda::HeadsShape& b,
                   std::int64_t m, std::int64_t n, std::int64_t depth, const Epilogue& epilogue) {
  ProductParams<Epilogue> p;
  p.a = cuda::slice_map(a, dtype_of<T>, kTileK);
  p.b = cuda::slice_map(b, dtype_of<T>, kTileK);
  p.depth = depth;
  p.row_tiles = (m + kTileM - 1) / kTileM;
  p.column_tiles = (n + kTileN - 1) / kTileN;
  p.epilogue = epilogue;
  const auto kernel = head_product<T, kTransA, kTransB, Epilogue>;
  cuda::allow_shared(context, kernel);
  const std::int64_t sms = cuda::device_attribute(context, cudaDevAttrMultiProcessorCount);
  cuda::launch(context, "cross_entropy product", kernel,
               {.blocks = static_cast<unsigned>(std::min(sms, p.row_tiles * p.column_tiles)),
                .threads = kProductThreads,
                .shared_bytes = kProductShared},
               p);
}

}  // namespace touchstone::cross_entropy_op
