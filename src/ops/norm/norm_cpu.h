// Between the two halves of the SIMD implementation: norm_cpu.cc cuts the work into tasks and hands
// them to threads; norm_cpu_forward.cc and norm_cpu_backward.cc hold the kernels, compiled once per
// SIMD target.
//
// Every sum is made of pieces whose borders depend on the shape alone. A row is cut into column
// blocks; a block is summed in the type of arithmetic, blocks are put together in f64 in order. The
// rows are cut into chunks for the weight gradients, in the same manner. Threads only decide who
// computes a piece, never what a piece is, so the bits are the same for any number of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "ops/norm/norm.h"
#include "ops/norm/norm_tuning.h"

namespace touchstone::norm {

using tuning::kL2Bytes;
using tuning::kMaxGroupRows;
using tuning::kPrefetchBytes;

// While a row is worked on the next one is prefetched: otherwise memory would be read in one pass
// and written in the other. The backward prefetches x in the pass that sums and dy in the one that
// writes. Every line: not all hardware fetches the adjacent one.
template <class T>
inline constexpr std::size_t kPrefetchColumns = 64 / sizeof(T);

// ---- forward -------------------------------------------------------------------------------

// weight (weight offset included, 1 where absent) and bias (0 where absent; RMS: null) in the type
// of statistics. `stream`: write y and sum past the cache.
struct ForwardJob {
  Forward p;
  const void* weight = nullptr;
  const void* bias = nullptr;
  double inverse_cols = 0;
  std::int64_t prefetch_rows = 0;  // how far ahead, of rows that are shorter than kPrefetchBytes
  bool stream = false;
};

// Count, mean = anchor + offset and sum of squared deviations from it. RMS: mean 0.
struct Moments {
  double count = 0;
  double anchor = 0;
  double offset = 0;
  double squares = 0;
};

// The union of both sets (Chan, Golub, LeVeque). Offsets are taken from a common anchor, so a large
// mean cancels exactly before anything is rounded.
inline Moments merge(const Moments& a, const Moments& b) {
  if (a.count == 0) return b;
  const double count = a.count + b.count;
  const double step = (b.anchor - a.anchor) + b.offset - a.offset;
  return {count, a.anchor, a.offset + step * (b.count / count),
          a.squares + b.squares + step * step * (a.count * (b.count / count))};
}

// The statistics of a row: xhat = (h - mean) * rstd + shift, where the shift corrects the rounding
// of the mean.
struct RowStatistics {
  double mean = 0;
  double rstd = 0;
  double shift = 0;
  bool sound = false;  // false: a row for normalize_row, which handles every range
};

// Rows per group. Many short rows, so that the slow scalar arithmetic between the two passes of a
// row is vectorized over them; four longer ones, so that they share the loads of weight and bias
// from L2. One only of f32 rows of a page that come from memory: those are still in L1, beside
// weight and bias, when they are written.
inline std::int64_t forward_group_rows(const ForwardJob& job) {
  const std::int64_t element = size_of(job.p.dtype);
  const std::int64_t row = job.p.cols * element * (job.p.residual.data == nullptr ? 1 : 2);
  const std::int64_t some = job.stream && row <= 4096 && element == 4 ? 1 : 4;
  return std::clamp<std::int64_t>(kL2Bytes / row, 1, row <= 2048 ? kMaxGroupRows : some);
}

// Rows [begin, end), start to end.
void forward_rows(const ForwardJob& job, std::int64_t begin, std::int64_t end);
// The same in two steps, for fewer rows than threads: the moments of every block of
// forward_block_columns() columns, merged in order, then y for any range of columns.
std::int64_t forward_block_columns(const ForwardJob& job);
Moments forward_moments(const ForwardJob& job, std::int64_t row, std::int64_t block);
// Writes mean and rstd of a row that is sound.
RowStatistics forward_finish(const ForwardJob& job, std::int64_t row, const Moments& moments);
void forward_write(const ForwardJob& job, std::int64_t row, std::int64_t begin, std::int64_t end,
                   const RowStatistics& statistics);
// All of a row that is not sound: one whose squares leave the range of the arithmetic, or that
// holds NaN or infinity.
void forward_slow_row(const ForwardJob& job, std::int64_t row);

// weights[i] + offset in the type of statistics at dst, in the order that the kernels read.
void widen_weights(DType x_dtype, const void* weights, DType dtype, double offset, void* dst,
                   std::int64_t cols);

// ---- backward ------------------------------------------------------------------------------

struct BackwardJob {
  Backward p;
  const void* weight = nullptr;  // as in ForwardJob
  double inverse_cols = 0;
  bool stream = false;
};

// Sums over a row or a block of it, with t = (x - mean) * rstd and g = dy * weight.
struct RowSums {
  double t = 0;
  double g = 0;
  double gt = 0;
};

// dx = rstd * (g - c1 - xhat * c2), with xhat = (x - mean) * rstd + shift.
struct RowCoefficients {
  double shift = 0;
  double c1 = 0;
  double c2 = 0;
};

// Rows per group: x and dy of all of them stay in L2 from the pass that sums to the one that
// writes.
inline std::int64_t backward_group_rows(const BackwardJob& job) {
  const std::int64_t row = 2 * job.p.cols * size_of(job.p.dtype);
  return std::clamp<std::int64_t>(kL2Bytes / row, 1, kMaxGroupRows);
}

// Column sums of a chunk of rows, in the type of statistics and in the order of the kernels:
// weight[cols], bias[cols].
struct Accumulators {
  void* weight = nullptr;
  void* bias = nullptr;
};

// Rows [begin, end): dx, and their share of the weight gradients added to `sums`.
void backward_rows(const BackwardJob& job, std::int64_t begin, std::int64_t end,
                   const Accumulators& sums);
// Adds up `count` arrays of column sums, `stride` elements from one to the next, in order, in f64,
// and writes them as elements of weight_grad_dtype at `out`, rounded once and in the order of
// memory. `sums`: f64 when is_f64, else f32. The first column and, but at the end of the row, the
// number of them, at most kMergeColumns, are multiples of kOrderColumns.
inline constexpr std::int64_t kOrderColumns = 32;
inline constexpr std::int64_t kMergeColumns = 1024;  // 8 KB of f64
static_assert(kMergeColumns % kOrderColumns == 0);
void backward_merge(const BackwardJob& job, const void* sums, bool is_f64, std::int64_t stride,
                    std::int64_t count, std::int64_t columns, void* out);
// The same in two steps, for fewer chunks than threads: the sums of every block of
// backward_block_columns() columns, added in order, then dx for any range of columns.
std::int64_t backward_block_columns(const BackwardJob& job);
RowSums backward_sums(const BackwardJob& job, std::int64_t row, std::int64_t block);
RowCoefficients backward_finish(const BackwardJob& job, const RowSums& sums);
void backward_write(const BackwardJob& job, std::int64_t row, std::int64_t begin, std::int64_t end,
                    const RowCoefficients& coefficients, const Accumulators& sums);

}  // namespace touchstone::norm
