// Numbers that change speed, never results: what they decide, the device, the date and the gain.
// Full tables: docs/notes/linear.md.
#pragma once

#include <cstddef>
#include <cstdint>

namespace touchstone::linear_layer::tuning {

// ---- CPU: AMD EPYC Zen 4, 2026-11-18 ------------------------------------------------------------

// Products below which starting threads costs more than they save. Not measured alone.
inline constexpr double kSerialWork = 3e4;
// How far ahead of the loads W is prefetched, in bytes: at least, and the largest tile of rows that
// is skipped whole. GB/s of W, one row of bf16, against 2048 bytes in each row: 768 columns 14.9 ->
// 29.2, 4096 24.0 -> 29.6.
inline constexpr std::size_t kPrefetchBytes = 8192;
inline constexpr std::size_t kMaxPrefetchBytes = 262144;
// The same of the int8 kernels, in whole tiles of rows, against 1024 bytes of each row: int4_g128
// 24.5 -> 31.3, q4_1 20.0 -> 24.8, q8_0 28.2 -> 29.7; q4_1 of 576 columns 21.8 -> 22.9.
inline constexpr std::size_t kTilePrefetchBytes = 24576;
// The same of ternary rows, in whole tiles of rows further on: 24576 x 4096 of ternary_g128 from
// memory 24.4 with 8192, 25.9 with this, 25.7 with 65536.
inline constexpr std::int64_t kTernaryPrefetchBytes = 24576;
// Bytes of x, in the type of the sums, up to which plain weights are widened for every few rows of
// x instead of panel by panel: half of the second cache. us of 1024 x 4096 of bf16 by 8 rows 1338
// -> 648, 16 rows 1942 -> 1458, 32 rows 3299 -> 2909.
inline constexpr std::size_t kDirectBytes = 524288;

// ---- CPU with AMX: Intel Xeon (Emerald Rapids), 2026-11-18 --------------------------------------

// Rows of x up to which tiles of W are loaded from the rows as they are stored: 64 x 4096 -> 4096
// in cache packed 4059 us, as stored 2674.
inline constexpr std::int64_t kAmxDirectRows = 64;
// Rows of x that are packed at a time: a strip of W is packed once for all of them. Not measured
// alone.
inline constexpr std::int64_t kAmxRowChunk = 512;
// Rows of x up to which sums are transposed one by one instead of by blocks: 1 x 512 -> 2816 in
// cache 157 -> 126 us.
inline constexpr std::int64_t kAmxGatheredRows = 4;

// ---- CUDA: NVIDIA H200, 2026-11-17, bench/probes/linear_rate.cu ---------------------------------

// stream: rows of x at most, two tiles of mma.sync.
inline constexpr int kStreamMaxRows = 16;
// stream: bytes of a row of W that a stage holds, about, in multiples of the unit of elements. Not
// measured alone.
inline constexpr std::int64_t kStreamSliceBytes = 256;
inline constexpr std::int64_t kStreamSliceUnit = 256;
// stream: bytes of a tile up to which it is one stage. Not measured alone.
inline constexpr std::int64_t kStreamMaxWholeBytes = 40 * 1024;
// stream: dynamic shared memory of a CTA that leaves as much to a co-resident CTA of the next
// kernel, used while it reads at most kStreamSmallW bytes of W and x has at most kStreamSmallX, and
// of one that is alone (2026-11-19, us). 1 x 4096, in = 4096, two tiles: 5 stages with two CTAs per
// multiprocessor 13.2, 11 stages with two 11.4, 19 with one 12.0; 6144, three tiles: 5 and 7 with
// two 17.3 and 15.5, 11 with one 14.7; in = 14336, out = 4096: 5 and 9 with two 38.8 and 36.0, 19
// with one 31.0; 8 x 4096: 12.9 with two, 11.3 with one.
inline constexpr std::int64_t kStreamSharedOfTwo = 110 * 1024;
inline constexpr std::int64_t kStreamSmallW = 320 * 1024;
inline constexpr std::int64_t kStreamSmallX = 32 * 1024;
inline constexpr std::int64_t kStreamSharedOfOne = 219 * 1024;
// stream: rows of x from which all warps that a CTA can have bring x: 8 x 4096 12.0 -> 11.3 us.
inline constexpr int kStreamManyRows = 5;

// wgmma: the bytes from L2 and the products of a multiprocessor per cycle, and the fixed cycles of
// a tile: a cost model by which tiles are chosen. Not measured alone.
inline constexpr double kReceivedBytesPerCycle = 45;
inline constexpr double kProductsPerCycle = 1700;
inline constexpr double kTileCycles = 1500;

// ternary, up to kTernaryStreamMaxRows rows of x: stages of a warp, warps that share the segments
// of a tile, warps of a CTA at least (it rounds x with as many), rows that every CTA rounds by
// itself rather than a kernel before it; CTAs of kTernaryMaxSplit warps that a multiprocessor has
// registers for. Not measured alone; what the kernel reaches: docs/ternary.md.
inline constexpr int kTernaryStreamMaxRows = 16;
inline constexpr int kTernaryMaxStages = 2;
inline constexpr int kTernaryMaxSplit = 8;
inline constexpr int kTernaryMinWarps = 4;
inline constexpr int kTernaryMinCtas = 3;
inline constexpr std::int64_t kTernaryRowsRoundedInside = 2;

}  // namespace touchstone::linear_layer::tuning
