// Tuning of the selection engine: every threshold that chooses or shapes a CUDA kernel, with the
// device, the date and the gain it rests on. Times are microseconds per call, k = 50, graph replay
// with a cold cache, NVIDIA H200 (132 SMs), 2026-11-16, `touchstone bench softmax_topk|sample`.
#pragma once

#include <cstdint>

namespace touchstone::selection {

// ---- streaming: one CTA per row, or a cluster of CTAs ------------------------------------------

inline constexpr int kStreamingThreads = 256;

// Segments that a warp holds in registers: one is processed while the next is in flight.
inline constexpr int kStreamingPrefetchDepth = 2;

// CTAs per SM: unaligned rows need registers for the realignment.
template <bool kAligned16>
inline constexpr int kStreamingBlocksPerSm = kAligned16 ? 4 : 3;

// Largest k that is ranked. The candidates of more do not leave memory for two CTAs per SM.
inline constexpr int kMaxStreamingK = 2048;

// Up to this k the threshold is reached by k tokens of the sample and cannot be too high; above, it
// is estimated from the sample, and rows where the estimate was too high are read again.
inline constexpr int kMaxExactThresholdK = 256;

// CTAs per row where rows leave SMs idle. Three CTAs per SM, since clusters do not divide every GPC
// evenly: 64 x 128256 bf16 17.4 -> 14.9 against four.
inline constexpr int kMaxStreamingCluster = 8;
inline constexpr int kStreamingClusterCtasPerSm = 3;
// Segments per CTA below which the threshold of a share of the row is too loose.
inline constexpr int kMinClusterSegments = 14;
// Dynamic shared memory that caps the CTAs per SM, which spreads a cluster over SMs: at three, and
// at one where there is an SM for every CTA.
inline constexpr std::int64_t kStreamingClusterSmemBytes = 60 << 10;
inline constexpr std::int64_t kStreamingSparseSmemBytes = 116 << 10;

// Packed 32-bit keys (bf16, single CTA) from this k on; fewer candidates gain nothing.
// 512 x 128256 bf16: k = 256 44.5 -> 41.8, k = 1024 48.9 -> 45.8, k = 2048 57.2 -> 51.8.
inline constexpr int kMinPackedKeysK = 65;

// ---- two_phase: many rows, nothing selected while a row is read --------------------------------

// Threads per CTA, segments of a warp in registers, CTAs per SM.
template <int kBlockThreads, int kSegments, int kBlocks>
struct TwoPhaseLayout {
  static constexpr int kThreads = kBlockThreads;
  static constexpr int kPrefetchDepth = kSegments;
  static constexpr int kBlocksPerSm = kBlocks;
};

// All rows resident at once: 512 x 128256 bf16 40.0, streaming 46.6.
using OneWave = TwoPhaseLayout<256, 2, 4>;
// Several waves: small CTAs hide each other's epilogues. 4096 x 50257 bf16 with 64 threads 168,
// with 256 threads 189, streaming 220, this 131. Rows that are not 16-byte aligned need registers
// for the realignment: 168 with two segments and 6 CTAs per SM, 148 with one and 8 (same stage of
// the code).
template <bool kAligned16>
using Waves = TwoPhaseLayout<128, kAligned16 ? 2 : 1, 8>;

// More tokens would need more threads to take maxima from: 512 x 128256 bf16, k = 256 takes 66,
// streaming 48.
inline constexpr int kMaxTwoPhaseK = 64;
// Longer rows have time to select while they are read: 512 x 128256 f32 (513 KB) 71, streaming 69;
// sample 4096 x 151936 f32 (608 KB) 641, streaming 623. f32 stays below the limit: 4096 x 50257
// (201 KB) 238, where streaming adds about 14 per row and wave of selection that nothing hides.
inline constexpr std::int64_t kMaxTwoPhaseRowBytes = 320 << 10;
// With fewer rows per SM, streaming clusters share rows.
inline constexpr std::int64_t kTwoPhaseRowsPerSm = 3;

// ---- cluster: few rows, a cluster of large CTAs per row ----------------------------------------

// 64 x 128256 bf16: streaming 15.3, 512 threads 11.2 and 10.9, 1024 threads 10.7 (then 9.5).
inline constexpr int kClusterThreads = 1024;
inline constexpr int kMaxClusterK = 64;
inline constexpr int kMaxWarpSegments = 8;
// Four CTAs per row while they use at most half of the SMs, else two. 8 x 151936 bf16: two 8.4,
// four 7.5, eight 9.0 (merging eight lists costs 2.1); 32 rows: two 8.0, four 12.9.
inline constexpr int kMaxClusterBlocks = 4;
// Of one CTA: more than half of an SM, so that each CTA has an SM to itself (14.5 -> 11.4).
inline constexpr std::int64_t kClusterSmemBytes = 120 << 10;
// Threads of the first CTA that go on with a row that needs the slow path.
inline constexpr int kSlowPathThreads = 256;
// Rows are prefetched to L2 while the previous grid drains up to this many bytes; more would evict
// what that grid still reads (64 x 128256 f32, 33 MB: 13.6 without, 14.0 with).
inline constexpr std::int64_t kMaxL2PrefetchBytes = 20 << 20;

// ---- subwarp: short rows, several per warp -----------------------------------------------------

// 131072 x 128, k = 8: bf16 13.4, f32 21.7 (copy time 10 and 18).
inline constexpr std::int64_t kMaxSubwarpTokens = 1024;
inline constexpr int kMaxSubwarpK = 8;

// ---- CPU ---------------------------------------------------------------------------------------

// Work worth one more thread: at 20 GB/s per core some 10 us, twice the cost of waking it.
inline constexpr std::int64_t kCpuBytesPerThread = std::int64_t{192} << 10;

}  // namespace touchstone::selection
