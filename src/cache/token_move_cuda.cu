#include <cuda_runtime.h>

#include <algorithm>

#include "cache/token_move.h"
#include "cuda/check.h"

namespace touchstone::inline v0::cache {
namespace {

constexpr int kThreads = 128;
// Loads in flight. Safe to issue before the stores: no move writes what a later one reads.
constexpr int kAtOnce = 8;

// One column of a part: `Unit` bytes of one head at every token that moves.
template <class Unit>
__device__ void move_column(const TokenBytes& group, const TokenMove* moves, int count,
                            std::int64_t base, std::int64_t row_bytes) {
  const auto at = [&](std::int32_t page, std::int32_t slot) {
    return reinterpret_cast<Unit*>(group.memory + page * group.page_bytes + base +
                                   slot * row_bytes);
  };
  for (int first = 0; first < count; first += kAtOnce) {
    Unit held[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i < count) held[i] = *at(moves[first + i].from_page, moves[first + i].from_slot);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i < count) *at(moves[first + i].to_page, moves[first + i].to_slot) = held[i];
    }
  }
}

template <class Unit>
__device__ void move_part(const TokenBytes& group, const StoredPart& part, const TokenMove* moves,
                          int count, std::int64_t layer) {
  const auto units = static_cast<int>(part.bytes / static_cast<std::int64_t>(sizeof(Unit)));
  const int columns = static_cast<int>(group.heads) * units;
  for (int column = static_cast<int>(threadIdx.x); column < columns; column += kThreads) {
    const int head = column / units;
    const std::int64_t base = layer * group.layer_bytes + part.offset +
                              head * group.page_tokens * part.bytes +
                              (column % units) * static_cast<std::int64_t>(sizeof(Unit));
    move_column<Unit>(group, moves, count, base, part.bytes);
  }
}

// A block per run and layer.
__global__ void __launch_bounds__(kThreads)
    move_tokens_kernel(const __grid_constant__ MoveBatch batch) {
  const MoveRun& run = batch.runs[blockIdx.x];
  const TokenBytes& group = batch.groups[run.group];
  const std::int64_t layer = blockIdx.y;
  if (layer >= group.layers) return;
  const TokenMove* const moves = batch.moves.data() + run.first;
  for (const StoredPart& part : group.parts) {
    if (part.bytes == 0) continue;
    // Pages begin on 16 bytes; the widest unit that divides everything else.
    const auto all = static_cast<unsigned long long>(part.bytes | part.offset | group.layer_bytes |
                                                     group.page_bytes);
    if (all % 16 == 0) {
      move_part<uint4>(group, part, moves, run.count, layer);
    } else if (all % 4 == 0) {
      move_part<std::uint32_t>(group, part, moves, run.count, layer);
    } else if (all % 2 == 0) {
      move_part<std::uint16_t>(group, part, moves, run.count, layer);
    } else {
      move_part<std::uint8_t>(group, part, moves, run.count, layer);
    }
  }
}

}  // namespace

void move_tokens_cuda(int device, void* stream, const MoveBatch& batch) {
  const cuda::DeviceScope scope(device);
  std::int64_t layers = 1;
  for (int g = 0; g < batch.group_count; ++g) {
    layers = std::max(layers, batch.groups[static_cast<std::size_t>(g)].layers);
  }
  const dim3 grid(static_cast<unsigned>(batch.run_count), static_cast<unsigned>(layers));
  move_tokens_kernel<<<grid, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(batch);
  cuda::check(cudaGetLastError(), "move_tokens");
}

}  // namespace touchstone::inline v0::cache
