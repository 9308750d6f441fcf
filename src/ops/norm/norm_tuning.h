// Every number of the norm kernels that was chosen by measurement. None of them changes a contract;
// those marked "bits" change the order of additions, so that results move by a rounding.
//
// CUDA: NVIDIA H200, 2026-11-15 and 16, `touchstone bench layer_norm --device cuda --case full
// --peers none`, microseconds before -> after. CPU: 2026-11-15 and 16, an Intel Xeon with AVX-512
// (16 cores) and an AMD EPYC of Zen 4 (2 cores). docs/notes/layer_norm.md has the tables. "Not
// measured alone" marks numbers that were set with others.
#pragma once

#include <cstdint>

namespace touchstone::norm::tuning {

// ---- CUDA, forward ------------------------------------------------------------------------------

// 16-byte vectors per thread: of one row, or of several short ones. Bits. Twice as many where the
// group cannot grow any more. A row per group in registers instead of a pipeline: bf16 65536x1024
// 72.7 -> 70.1, f32 137.4 -> 135.9.
inline constexpr int kForwardVectors = 4;
inline constexpr int kForwardMaxVectors = 8;
// Threads of the largest group; longer rows take a cluster. Bits. Not measured alone.
inline constexpr int kForwardMaxGroup = 512;
// Threads that an SM holds: 64 registers each, four CTAs of 256 instead of three of 80 registers.
// bf16 65536x1024 70.9 -> 66.8, f32 131072x128 40.1 -> 37.3.
inline constexpr int kForwardThreadsPerSm = 1024;

// Mode::full, kernels without bounds checks for rows that fill every vector of their group, gains 5
// to 20 % in `registers` and in `persistent`. Without them (2026-11-16): layer_norm bf16 8192x1024
// 9.25 -> 11.16, 8192x2048 +12 %, 65536x1024 +6.5 %, 4096x16384 +11 %, f32 2048x65536 +9.5 %;
// rms_norm bf16 8192x1024 +19 %. f32 4096x768, not full in either, moved by +13 % in the same
// comparison: for small shapes not all of the difference is the kernel's.

// Rows of the first CTAs of each SM are prefetched to L2 before pdl_wait(): bf16 8192x1024 11.2 ->
// 10.5, 4096x768 4.95 -> 4.2. Beyond these bytes of x it costs: bf16 8192x4096 34.9 -> 35.5.
inline constexpr int kForwardPrefetchCtasPerSm = 2;
inline constexpr std::int64_t kForwardPrefetchMaxBytes16 = std::int64_t{32} << 20;  // 16-bit x
inline constexpr std::int64_t kForwardPrefetchMaxBytes32 = std::int64_t{16} << 20;  // f32 x

// `persistent` takes more than the first and at most the second number of bytes of x: bf16
// 8192x1024 10.4 -> 9.2, 8192x2048 18.6 -> 17.4, f32 8192x1024 18.2 -> 16.6, 4096x768 7.6 -> 6.7.
// Below, a CTA has too few rows; above, start and end of the grid matter little.
inline constexpr std::int64_t kPersistentMinBytes = std::int64_t{8} << 20;
inline constexpr std::int64_t kPersistentMaxBytes = std::int64_t{40} << 20;
// Groups that it has kernels for, with kForwardVectors vectors per thread.
inline constexpr int kPersistentMinGroup = 32;
inline constexpr int kPersistentMaxGroup = 128;
// CTAs per SM and pipeline stages per group. Not measured alone.
inline constexpr int kPersistentCtasPerSm = 2;
inline constexpr int kPersistentStages = 3;
// One in this many rows of a CTA is prefetched to L2 before pdl_wait(): more compete with the
// writes of the previous grid. Not measured alone.
inline constexpr int kPersistentPrefetchShare = 4;

// ---- CUDA, backward -----------------------------------------------------------------------------

// 16-byte vectors per thread. Bits. What a row costs beside its columns, the reduction above all,
// is paid once for all of them: bf16 4096x768 10.3 -> 8.6, 8192x4096 55.5 -> 54.1; one vector for
// short rows: bf16 131072x128 67.8 -> 53.5. Rows of the largest group in 16 bits keep 2: with 4,
// bf16 16384x8192 204 -> 220.
inline constexpr int kBackwardMaxVectors = 4;
constexpr int backward_max_group_vectors(std::int64_t element_bytes) {
  return element_bytes == 2 ? 2 : 4;
}
inline constexpr int kBackwardMaxGroup = 512;  // bits; not measured alone
// Threads of a CTA. With a deep pipeline one CTA per SM saturates DRAM, and few threads leave each
// enough registers for the column sums: dweight, dbias, weight and xhat take four per column.
constexpr int backward_threads(std::int64_t element_bytes, int vectors) {
  return element_bytes == 2 && vectors > 2 ? 256 : 512;
}
// Registers per thread. 16 bits: few enough that a CTA of the second kernel fits beside this one.
constexpr int backward_max_registers(std::int64_t element_bytes, int vectors) {
  return element_bytes == 4 ? 128 : 57344 / backward_threads(element_bytes, vectors);
}

// Shared memory of the pipelines of a CTA, of the 227 KB of an SM; the rest is for barriers,
// reductions and the CTA of the second kernel. 64 and 96 KB: slower for long rows.
inline constexpr std::int64_t kPipelineBytes = 208 << 10;
// Stages of a group that is alone in its CTA, and of one of several: those run out of step and need
// less depth. bf16 65536x1024 110.0 -> 103.8 together with the prologue.
inline constexpr int kMaxStages = 8;
inline constexpr int kMaxStagesOfSeveral = 3;
// Stages issued before the first row is there. With more, every group waits for the last of them:
// requests are served in no order.
inline constexpr int kPrologueStages = 2;
// Rows of each group prefetched to L2 before pdl_wait(): bf16 8192x1024 19.2 -> 18.1, f32 29.3 ->
// 27.4. Three or four: no gain.
inline constexpr int kBackwardPrefetchRows = 2;

// The error of an f32 sum of n terms grows with n. Up to kRowsInFloat rows a thread adds in f32
// alone; with more, its sums move to float64 every kRowsPerFlush rows, which costs some traffic in
// L2 and keeps the error at the size of one rounding of the result for any number of rows. Bits.
inline constexpr int kRowsInFloat = 256;
inline constexpr int kRowsPerFlush = 64;

// The second kernel: columns of a CTA, few so that there is one for every SM, partial rows read
// side by side, and loads in flight per thread: with 132 partial rows of f32 all of them. bf16
// 8192x1024 21.3 -> 19.2.
inline constexpr int kReduceColumns = 16;
inline constexpr int kReduceLanes = 16;
template <class Partial>
inline constexpr int kReduceLoads = sizeof(Partial) == 4 ? 10 : 5;

// ---- CUDA, portable -----------------------------------------------------------------------------

// Columns of a row up to which one warp takes it, eight rows to a CTA; longer rows take the CTA.
// Bits. Not measured alone.
inline constexpr std::int64_t kWarpRowColumns = 1024;
// Scratch for the column sums of the backward: as many CTAs as fit in it. Bits of the gradients.
inline constexpr std::int64_t kPartialBytes = 48 << 20;

// ---- CPU ----------------------------------------------------------------------------------------

// Elements worth one more thread, some 10 us of one. Not bytes: in cache the time goes by elements,
// whatever their size.
inline constexpr std::int64_t kForwardElementsPerThread = std::int64_t{24} << 10;
inline constexpr std::int64_t kBackwardElementsPerThread = std::int64_t{16} << 10;
inline constexpr std::int64_t kMergeElementsPerThread = std::int64_t{48} << 10;
// A core's share of the last level cache, beyond which outputs are written past it: 1 to 4 MiB on
// servers; the size reported can be that of a whole socket of which we have a few cores.
inline constexpr std::int64_t kCacheBytesPerThread = std::int64_t{2} << 20;

// How far ahead of the sums memory is prefetched, into L2: the best on Zen 4. Into L1: 0.75 instead
// of 0.98 of a copy; none: 0.50 to 0.73 (f32, 1024 columns).
inline constexpr std::int64_t kPrefetchBytes = 8192;
// L2 budget of a group of rows: a quarter of 1 MB, since the next group is prefetched meanwhile.
inline constexpr std::int64_t kL2Bytes = std::int64_t{256} << 10;
// Rows that pass through a kernel together, at most. Groups of 1, 2, 4 and 8 rows of the bf16
// backward make no difference; short rows of the forward gain by 8.
inline constexpr std::int64_t kMaxGroupRows = 8;

// The rows of the backward are cut into at most kMaxChunks chunks, one per core, of at least
// kMinChunkRows rows, so that the sums of a chunk are small beside its rows. The f32 sums of a
// chunk are added to float64 sums after kChunkRowsPerFlush rows: a relative error below 256 *
// 2^-24, in practice near its square root. Bits of the gradients.
inline constexpr std::int64_t kMaxChunks = 64;
inline constexpr std::int64_t kMinChunkRows = 32;
inline constexpr std::int64_t kChunkRowsPerFlush = 256;

}  // namespace touchstone::norm::tuning
