// Every threshold of cached_attention that was chosen by measurement: what it decides, the device,
// the date and the gain. Commands and full tables: docs/notes/cached_attention.md.
#pragma once

#include <cstdint>

namespace touchstone::paged_attention::tuning {

// ---- CPU ----------------------------------------------------------------------------------------

// Scratch for prepared queries and partial results. What does not fit runs in several waves.
inline constexpr std::int64_t kMaxScratch = std::int64_t{64} << 20;
// With one thread waves are short, which leaves most of its core's cache to keys and values. With
// two threads eight waves instead of one cost 8 % of a prefill of 1024 (EPYC Zen 4, 2026-11-15).
inline constexpr std::int64_t kSingleThreadScratch = std::int64_t{128} << 10;
// Lower bounds of a wave, so that rows that share pages meet in one.
inline constexpr std::int64_t kWaveQueries = 128;
inline constexpr std::int64_t kWaveSplits = 4;
// Query tokens of a unit at most, so that a long prefill has work for many threads.
inline constexpr std::int64_t kUnitQueries = 64;
// Less work than this runs on the calling thread: about 10 us at 10 GB/s.
inline constexpr std::int64_t kSerialBytes = std::int64_t{128} << 10;
// Tasks per thread at least, where there are as many. 16 instead of 4: 1 % slower (Xeon, 16 cores,
// 2026-11-16).
inline constexpr std::int64_t kTasksPerThread = 4;

// ---- CUDA: H200, 2026-11-16 ---------------------------------------------------------------------

// Positions of a split. For operands that become f16 (int8, int4, fp8) 2048: int8 0.83 -> 0.88 of
// the copy rate at 64 x 8192; 1024 costs 10 % of int4 at 64 x 16384 and saves 15 % at 1 x 32768.
inline constexpr int kSplit = 512;
inline constexpr int kQuantizedSplit = 2048;
// Query tokens of a CTA, one pass of 8 vectors after another: at most, and fewer, down to those of a
// pass, where there would be less than so many CTAs per SM. 16 nodes of a tree after 512 tokens, 9/3
// heads of 64 (2026-11-19): 198 us with 16 in a CTA; fewer were not timed.
inline constexpr std::int64_t kMaxQueryTile = 16;
inline constexpr std::int64_t kTiledCtasPerSm = 3;
// Decode: CTAs per SM, and splits of a CTA at most. Several splits per CTA: int8 0.52 -> 0.72;
// twice as many: int4 1 % faster, bf16 1 % slower.
inline constexpr std::int64_t kBlocksPerSm = 12;
inline constexpr std::int64_t kMaxSplitsPerBlock = 4;
// Outputs up to which the merge kernel uses four threads per value: fewer leave SMs idle.
inline constexpr std::int64_t kMaxWideMergeOutputs = 512;
// Shared memory of a warp's pipeline of chunks, in bytes: four CTAs fit on an SM. Four instead of
// three: 64 x 512 0.64 -> 0.81, 1 x 32768 0.50 -> 0.67.
inline constexpr int kPipelineBytes = 12672;

// bf16: chunks of keys and values that a warp copies ahead, 8 KiB each, and warps per SM. Five
// warps with five chunks: 4 % slower; twelve with two: 0.5 %.
inline constexpr int kDecodeStages = 3;
inline constexpr int kDecodeWarps = 8;
// bf16: CTAs at most, in warps of all SMs, so that those with little to do are replaced. Persistent
// warps: forks 261 -> 314 us.
inline constexpr int kDecodeWaves = 8;
// bf16, tensor_core_cta: warps that share a split, and splits of KV heads per SM up to which they
// do. 128 splits: 26.6 -> 18.5 us (1 x 1024 of 32/8 heads of 128), 28.0 -> 21.4 (1 x 8192). 512
// splits: 38 -> 46 us (64 x 512), 43 -> 52 (1 x 32768). Before and after are different runs; two
// was not timed.
inline constexpr int kCtaWarps = 4;
inline constexpr std::int64_t kCtaItems = 2;
// bf16, wgmma_prefill: rows with at least this many queries go to the prefill kernel, which has no
// splits to share among SMs.
inline constexpr int kPrefillQueries = 16;

}  // namespace touchstone::paged_attention::tuning
