// Tuning of sample beyond the engine's (ops/selection/selection_tuning.h). Times are microseconds
// per call, top-k 50 with top-p .95, NVIDIA H200, 2026-11-16, `touchstone bench sample --device
// cuda`.
#pragma once

#include <cstdint>

namespace touchstone::sampling {

// ---- CUDA --------------------------------------------------------------------------------------

// Tokens that one warp draws from, two per lane and without barriers. Drawing by the block instead
// adds three barriers: 512 x 128256 bf16, top-k 256 54.3, top-k 50 41.7.
inline constexpr int kWarpTokens = 64;

// Tokens that streaming kernels order for a row that cuts by top_p or min_p without top_k: most
// nuclei are smaller, and more would slow down every such row. The deferred launch has only rows
// that did not fit 64 tokens and orders up to 1024.
inline constexpr int kDefaultSlots = 256;
inline constexpr int kDeferredDefaultSlots = 1024;

// Segments per CTA below which fewer than 54 of 64 tokens are found reliably by `cluster`.
inline constexpr int kMinClusterSampleSegments = 20;

// Threads of a cluster CTA that stream a row which needs more than 64 tokens. 64 rows, top-k 256,
// bf16: 256 threads 28.5, 512 24.4, 1024 27.1.
inline constexpr int kClusterStreamingThreads = 512;

// Candidates of penalized rows, so that four CTAs with their history tables fit an SM: three CTAs
// take 209 against 139.
inline constexpr int kPenalizedCandidates = 1536;

// CTAs per SM of the deferred launch, whose slow path needs registers. An empty one costs 2, a row
// in it 36.
inline constexpr int kDeferredBlocksPerSm = 2;

// subwarp: waves of CTAs, so that the last one is short. 131072 x 128, top-k 8, bf16: rows in one
// wave 195, in four 136.
inline constexpr int kSubwarpMinWaves = 2;
// Above this many tokens ranking beats popping them one by one: 4096 x 1000, top-k 50, 79 -> 62.
inline constexpr int kMaxPops = 12;

// ---- CPU ---------------------------------------------------------------------------------------

// Tasks per thread, so that a delayed one does not delay the rest.
inline constexpr std::int64_t kTasksPerThread = 4;

// Sorted prefixes that are tried in turn for a row with a cut; most rows with top_p keep fewer
// tokens than the first. Larger kept sets are found by a histogram of the whole row.
inline constexpr std::int64_t kPrefixSteps[] = {64, 512, 2048};
inline constexpr std::int64_t kMaxSortedPrefix = 2048;

}  // namespace touchstone::sampling
