// Dense attention on Hopper's tensor cores: what the forward and the backward kernels share.
//
// A CTA is a producer warp, which keeps a multi-stage shared-memory pipeline of tiles filled, and
// two or three consumer warpgroups of 64 rows each. Tiles have the layout of wgmma.cuh.
//
// Determinism: keys are cut into tiles at multiples of the tile size, counted from the first key,
// and a row processes its tiles from the last to the first. A tile that is fully masked for a row
// leaves its sums bitwise unchanged, so it does not matter which tiles the other rows of the CTA
// need.
#pragma once

#include <cstdint>

#include "cuda/launch.h"
#include "cuda/tensor_core.cuh"
#include "cuda/tensor_map.h"
#include "cuda/wgmma.cuh"
#include "ops/attention_dense/cuda/dense_tiles.cuh"

// Compiled for other chips the kernels are empty, and what only they use is unused.
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#pragma nv_diag_suppress 177
#endif

namespace touchstone::dense_attention {

inline constexpr int kConsumerRows = 64;

// ---- tiles --------------------------------------------------------------------------------------

template <int kRows, int kColumns>
inline constexpr int kTileBytes = kRows* kColumns * 2;

// A kernel's shared memory, where tiles may begin.
template <class Shared>
__device__ Shared& shared_memory() {
  extern __shared__ std::byte memory[];
  const std::uint32_t misaligned = cuda::shared_address(memory) % 1024;
  return *reinterpret_cast<Shared*>(memory + (misaligned == 0 ? 0 : 1024 - misaligned));
}

// A tensor as the producer reads it.
struct TileSource {
  CUtensorMap map;
  const std::uint16_t* data = nullptr;
  std::int64_t batch_stride = 0, head_stride = 0, token_stride = 0;
  std::int64_t columns = 0;
};

// A whole warp copies tokens [token, token + kRows) of a head, of which those from `end` on become
// zeros. Where that is what lies behind the tensor the copy engine does it by itself; behind a
// packed sequence lies the next one.
template <int kRows, int kColumns>
__device__ void load_tile(std::byte* shared, const TileSource& source, std::int64_t token,
                          std::int64_t end, int head, int batch, bool packed,
                          std::uint64_t* barrier) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  constexpr int kSlice = kRows * cuda::kSliceRowBytes;
  if (!packed || token + kRows <= end) {
    if (lane == 0) {
      cuda::barrier_expect(barrier, kTileBytes<kRows, kColumns>);
#pragma unroll
      for (int slice = 0; slice < kColumns / cuda::kSliceColumns; ++slice) {
        cuda::load_slice(shared + slice * kSlice, &source.map, slice * cuda::kSliceColumns,
                         static_cast<int>(token), head, batch, barrier);
      }
    }
    return;
  }
  const std::uint16_t* const from = source.data + batch * source.batch_stride +
                                    head * source.head_stride + token * source.token_stride;
  for (int piece = lane; piece < kRows * kColumns / 8; piece += 32) {
    const int row = piece / (kColumns / 8);
    const int column = piece % (kColumns / 8) * 8;
    uint4 value{};
    if (token + row < end && column < source.columns) {
      value = *reinterpret_cast<const uint4*>(from + row * source.token_stride + column);
    }
    const int at = column / cuda::kSliceColumns * kSlice + row * cuda::kSliceRowBytes +
                   ((column % cuda::kSliceColumns / 8) ^ (row % 8)) * 16;
    *reinterpret_cast<uint4*>(shared + at) = value;
  }
  cuda::fence_for_async();
  __syncwarp();
  if (lane == 0) cuda::barrier_arrive(barrier);
}

// Position in a pipeline of kStages stages: stage and phase parity of its barriers.
template <int kStages>
struct PipelineState {
  int stage = 0;
  std::uint32_t parity = 0;
  __device__ void next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

template <int kCount>
__device__ void init_barriers(std::uint64_t (&barriers)[kCount], std::uint32_t arrivals) {
  for (std::uint64_t& barrier : barriers) cuda::barrier_init(&barrier, arrivals);
}

// Tiles of a persistent CTA: the first by its own index, later ones from a global counter, or at
// grid stride without a counter, where all tiles are equally long. By a whole warp.
class TileScheduler {
 public:
  __device__ TileScheduler(unsigned count, unsigned* taken)
      : count_(count), taken_(taken), next_(blockIdx.x) {}
  __device__ bool has() const { return next_ < count_; }
  // Asked for before the work on this one, because the answer takes its time.
  __device__ unsigned take() {
    const unsigned tile = next_;
    next_ += gridDim.x;
    if (taken_ != nullptr) {
      if (threadIdx.x % 32 == 0) next_ = gridDim.x + atomicAdd(taken_, 1U);
      next_ = __shfl_sync(kAllLanes, next_, 0);
    }
    return tile;
  }

 private:
  unsigned count_;
  unsigned* taken_;
  unsigned next_;
};

// ---- output -------------------------------------------------------------------------------------

// A warpgroup's 64 rows of sums go to global memory as T, through `tile`, the warpgroup's own rows
// of a tile in shared memory that nothing reads any more once all of its warps are here. Rows from
// `rows` on do not.
template <class T, int kColumns, int kTileRows, int kParts, int kCount>
__device__ void store_rows(const float (&sums)[kParts][kCount], float scale_low, float scale_high,
                           std::byte* tile, T* output, std::int64_t token_stride, int columns,
                           int rows, int barrier) {
  constexpr int kSlice = kTileRows * cuda::kSliceRowBytes;
  constexpr int kWarpRows = kConsumerRows / 4;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int first_row = static_cast<int>(threadIdx.x % cuda::kWarpgroup) / 32 * kWarpRows;
  const int row = first_row + lane / 4;
  cuda::named_barrier(barrier, cuda::kWarpgroup);
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j) {
      const int column = part * kCount * 2 + j * 8;
      std::byte* const at = tile + column / cuda::kSliceColumns * kSlice +
                            row * cuda::kSliceRowBytes +
                            ((column % cuda::kSliceColumns / 8) ^ (row % 8)) * 16 + lane % 4 * 4;
      const float* const s = &sums[part][4 * j];
      *reinterpret_cast<std::uint32_t*>(at) = packed_pair<T>(s[0] * scale_low, s[1] * scale_low);
      *reinterpret_cast<std::uint32_t*>(at + 8 * cuda::kSliceRowBytes) =
          packed_pair<T>(s[2] * scale_high, s[3] * scale_high);
    }
  }
  // Each warp takes out what it has put in.
  __syncwarp();
  constexpr int kPerRow = kColumns / 8;
#pragma unroll 8
  for (int piece = lane; piece < kWarpRows * kPerRow; piece += 32) {
    const int r = first_row + piece / kPerRow;
    const int column = piece % kPerRow * 8;
    if (r >= rows || column >= columns) continue;
    const std::byte* const at = tile + column / cuda::kSliceColumns * kSlice +
                                r * cuda::kSliceRowBytes +
                                ((column % cuda::kSliceColumns / 8) ^ (r % 8)) * 16;
    *reinterpret_cast<uint4*>(output + r * token_stride + column) =
        *reinterpret_cast<const uint4*>(at);
  }
}

// ---- the host's side ----------------------------------------------------------------------------

template <class Pointer>
cuda::HeadsShape heads_shape(const DenseProblem& p, const Heads<Pointer>& tensor,
                             std::int64_t heads, std::int64_t tokens, std::int64_t columns) {
  return {tensor.data,
          p.query_offsets != nullptr ? 1 : p.batch,
          heads,
          tokens,
          columns,
          tensor.batch_stride,
          tensor.head_stride,
          tensor.token_stride};
}

inline TileSource make_tile_source(const DenseProblem& p, const ConstHeads& tensor,
                                   std::int64_t heads, std::int64_t tokens, std::int64_t columns,
                                   int rows) {
  TileSource source;
  source.map = cuda::slice_map(heads_shape(p, tensor, heads, tokens, columns), p.dtype, rows);
  source.data = static_cast<const std::uint16_t*>(tensor.data);
  source.batch_stride = tensor.batch_stride;
  source.head_stride = tensor.head_stride;
  source.token_stride = tensor.token_stride;
  source.columns = columns;
  return source;
}

// Why the copy engine and 16-byte stores cannot serve a tensor, or nothing.
template <class Pointer>
std::string refuses_layout(const DenseProblem& p, const char* name, const Heads<Pointer>& tensor,
                           std::int64_t heads, std::int64_t tokens, std::int64_t columns) {
  if (cuda::can_map(heads_shape(p, tensor, heads, tokens, columns))) return "";
  return std::string(name) + ": data or strides are no multiples of 16 bytes";
}

}  // namespace touchstone::dense_attention
