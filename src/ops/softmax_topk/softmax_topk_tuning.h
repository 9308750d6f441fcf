// Tuning of softmax_topk beyond the engine's (ops/selection/selection_tuning.h).
#pragma once

#include <cstdint>

namespace touchstone::topk {

// ---- subwarp_smem and subwarp, NVIDIA H200, 2026-11-16, 131072 x 128 bf16, k = 8, microseconds --

// subwarp_smem, rows in shared memory: warps that process one tile each. CTAs of 1, 2, 4, 8 warps:
// 14.2, 13.6, 13.5, 13.7; 32 resident warps per SM against 26 or 40: 13.5, 13.7, 13.5. Rows in
// registers: 15.1.
inline constexpr int kSubwarpTileWarps = 4;
inline constexpr int kSubwarpTileBlocksPerSm = 8;

// subwarp, rows in registers (bias, mask, or at most 64 tokens): threads per CTA and CTAs per SM,
// persistent. f32 with 32-bit keys: 128 threads with 96 registers 27.0, with 80 registers 31.6.
// 16-bit: 2, 3, 4 CTAs of 256 threads per SM 15.8, 15.9, 16.8.
template <bool kPrefixKeys, int kKeyBytes>
struct SubwarpRegisterLayout {
  static constexpr int kThreads = kPrefixKeys ? 128 : 256;
  static constexpr int kBlocksPerSm = kPrefixKeys ? 5 : kKeyBytes == 4 ? 3 : 2;
};

// ---- CPU ---------------------------------------------------------------------------------------

// Tasks per thread, so that a delayed one does not delay the rest. 512 x 128256 bf16 on 16 cores of
// a Xeon, 2026-11-16: 4 tasks 105 and 93 GB/s, 32 tasks 110 and 109.
inline constexpr std::int64_t kTasksPerThread = 32;

}  // namespace touchstone::topk
