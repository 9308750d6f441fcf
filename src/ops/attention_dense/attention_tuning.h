// Every threshold of attention that was chosen by measurement: what it decides, the device, the
// date and the gain. Commands and full tables: docs/notes/attention.md.
#pragma once

#include <cstddef>
#include <cstdint>

namespace touchstone::dense_attention::tuning {

// ---- CPU: EPYC Zen 4, 2026-11-15 ----------------------------------------------------------------

// Tokens a task owns at most: four vectors of AVX-512.
inline constexpr std::size_t kOwn = 64;
// Keys (backward: queries) of a tile.
inline constexpr std::int64_t kTile = 128;
// Multiplications that run on the calling thread: at 50 per ns about 20 us.
inline constexpr double kSerialWork = 1e6;
// f32 dq of a thread at most: beyond, dq is computed in a pass of its own. One pass instead of two:
// 42.7 -> 33.5 ms at 1x1x2048x128.
inline constexpr std::size_t kMaxFusedBytes = std::size_t{64} << 20;
// Queries of a turn in the fused dq: rows of accumulators in registers. Fewer shorten the waits.
inline constexpr std::int64_t kTurnQueries = 48;

// ---- CUDA: H200, 2026-11-16 ---------------------------------------------------------------------

// Bytes of the other side that the tiles of a group may read, so that they stay in L2: about half
// of its 50 MB.
inline constexpr std::int64_t kL2GroupBytes = std::int64_t{24} << 20;
// The running max of the online softmax is updated when it grows by more than 2^kRescaleSlack.
inline constexpr float kRescaleSlack = 8;

}  // namespace touchstone::dense_attention::tuning
