// Every threshold of cross_entropy. CUDA: NVIDIA H200, 2026-11-16, bench/probes/token_rate.cu
// `loss`, milliseconds of 4096 tokens, E = 4096, V = 128256, bf16; docs/notes/cross_entropy.md has
// the ladder.
#pragma once

#include <cstdint>

namespace touchstone::cross_entropy_op {

// CPU: columns of a tile of logits. Part of what a token's dx is: its sums over the vocabulary are
// made tile by tile. At 4096 tokens a tile in f32 takes 8 MB. Not measured alone.
inline constexpr std::int64_t kCpuTile = 512;

// CUDA: tile of a product, tokens by columns by depth. One instruction of 256 columns instead of
// two of 128: forward 6.34 -> 6.14.
inline constexpr int kTileM = 128;
inline constexpr int kTileN = 256;
inline constexpr int kTileK = 64;
inline constexpr int kGroups = 2;  // consumer warpgroups
// Depth of the pipeline: what fits in shared memory. Not measured alone.
inline constexpr int kStages = 4;
// Elements of a chunk of logits: 2048 tokens of 128256. A function of V alone, since the sums of
// dweight depend on it. Half as many: loss, dx and dweight 22.5 -> 24.2 to 25.3.
inline constexpr std::int64_t kChunkElements = std::int64_t{1} << 28;
// Threads of a block that has a row. Not measured alone.
inline constexpr int kRowThreads = 256;

}  // namespace touchstone::cross_entropy_op
