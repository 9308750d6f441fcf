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

namespace touchstone::norm {

// While a row is worked on the next one is asked for: otherwise memory would be read in one sweep
// and written in the other. The backward asks for x in the sweep that sums and for dy in the one
// that writes. Every line: not all hardware brings the one beside it.
template <class T>
inline constexpr std::size_t kFetchColumns = 64 / sizeof(T);

// ---- forward -------------------------------------------------------------------------------

// gamma (weight offset included, 1 where absent) and beta (null where absent) in the type of
// statistics. `stream`: write y and sum past the cache.
struct ForwardJob {
  Forward p;
  const void* gamma = nullptr;
  const void* beta = nullptr;
  double inverse_cols = 0;
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

// What the elements of a row are computed from: xhat = ((h - mean) - delta) * rstd.
struct RowStatistics {
  double mean = 0;
  double delta = 0;
  double rstd = 0;
  bool sound = false;  // false: normalize_row must do this row
};

// Writes mean and rstd of a row that is sound.
template <class C>
RowStatistics forward_finish(const ForwardJob& job, std::int64_t row, const Moments& moments) {
  constexpr double kSmall =
      std::is_same_v<C, double> ? std::numeric_limits<double>::min() * 0x1p52 : kSmallMeanSquare;
  const Forward& p = job.p;
  double variance = moments.squares * job.inverse_cols;
  if (variance < 0) variance = 0;  // not std::max, which would turn NaN into 0
  const double mean_square = variance + p.eps;
  RowStatistics s;
  s.sound = mean_square >= kSmall && mean_square <= std::numeric_limits<double>::max();
  if (!s.sound) return s;
  const auto mean = static_cast<C>(moments.anchor + moments.offset);
  const auto rstd = static_cast<C>(1 / std::sqrt(mean_square));
  s.mean = static_cast<double>(mean);
  s.delta = (moments.anchor - s.mean) + moments.offset;
  s.rstd = static_cast<double>(rstd);
  if (p.mean != nullptr) static_cast<C*>(p.mean)[row] = mean;
  if (p.rstd != nullptr) static_cast<C*>(p.rstd)[row] = rstd;
  return s;
}

// Rows that are taken through a kernel together, at most.
inline constexpr std::int64_t kMostRows = 8;
// What a kernel may count on: most of an L1 of 32 KB, a quarter of an L2 of 1 MB (the group being
// worked on is in there, the next one arrives, and there must be room for chance).
inline constexpr std::int64_t kL1Bytes = std::int64_t{24} << 10;
inline constexpr std::int64_t kL2Bytes = std::int64_t{256} << 10;

// Rows per group: as many as stay in L1 beside gamma and beta, so that the short but slow
// arithmetic between the two sweeps of a row is hidden behind the other rows; or, where not even
// one does, as many as stay in L2, so that they share the trip of gamma and beta from there.
inline std::int64_t forward_group_rows(const ForwardJob& job) {
  const std::int64_t element = size_of(job.p.dtype);
  const std::int64_t weights = 2 * job.p.cols * (element == 8 ? 8 : 4);
  const std::int64_t row = job.p.cols * element * (job.p.residual.data == nullptr ? 1 : 2);
  const std::int64_t in_l1 = (kL1Bytes - weights) / row;
  return std::clamp<std::int64_t>(in_l1 >= 1 ? in_l1 : kL2Bytes / row, 1, kMostRows);
}

// Rows [begin, end), start to end.
void forward_rows(const ForwardJob& job, std::int64_t begin, std::int64_t end);
// The same in two steps, for rows so few that threads must share one: the moments of every block of
// forward_block_columns() columns, merged in order, then y for any range of columns.
std::int64_t forward_block_columns(const ForwardJob& job);
Moments forward_moments(const ForwardJob& job, std::int64_t row, std::int64_t block);
void forward_write(const ForwardJob& job, std::int64_t row, std::int64_t begin, std::int64_t end,
                   const RowStatistics& statistics);
// The whole of a row that is not sound.
void forward_rescue(const ForwardJob& job, std::int64_t row);

// weights[i] + offset in the type of statistics at dst, in the order the kernels want it in.
void widen_weights(DType x_dtype, const void* weights, DType dtype, double offset, void* dst,
                   std::int64_t cols);

// ---- backward ------------------------------------------------------------------------------

struct BackwardJob {
  Backward p;
  const void* gamma = nullptr;  // as in ForwardJob
  bool stream = false;
};

// Sums over a row or a block of it, with t = (x - mean) * rstd and g = dy * gamma.
struct RowSums {
  double t = 0;
  double g = 0;
  double gt = 0;
};

// dx = rstd * (g - c1 - xhat * c2).
struct RowCoefficients {
  double delta = 0;
  double c1 = 0;
  double c2 = 0;
};

// Rows per group: x and dy of all of them stay in L2 from the sweep that sums to the one that
// writes.
inline std::int64_t backward_group_rows(const BackwardJob& job) {
  const std::int64_t row = 2 * job.p.cols * size_of(job.p.dtype);
  return std::clamp<std::int64_t>(kL2Bytes / row, 1, kMostRows);
}

// Column sums of a chunk of rows, in the type of statistics and in the order of the kernels:
// gamma[cols], beta[cols].
struct Accumulators {
  void* gamma = nullptr;
  void* beta = nullptr;
};

// Rows [begin, end): dx, and their share of the weight gradients added to `sums`.
void backward_rows(const BackwardJob& job, std::int64_t begin, std::int64_t end,
                   const Accumulators& sums);
// n columns from the order of the kernels to that of memory. The first of them and, but at the end
// of the row, n are multiples of kOrderColumns.
inline constexpr std::int64_t kOrderColumns = 32;
void to_natural_order(const BackwardJob& job, const double* from, std::int64_t n, double* to);
// The same in two steps, for chunks so few that threads must share one: the sums of every block of
// backward_block_columns() columns, added in order, then dx for any range of columns.
std::int64_t backward_block_columns(const BackwardJob& job);
RowSums backward_sums(const BackwardJob& job, std::int64_t row, std::int64_t block);
RowCoefficients backward_finish(const BackwardJob& job, std::int64_t row, const RowSums& sums);
void backward_write(const BackwardJob& job, std::int64_t row, std::int64_t begin, std::int64_t end,
                    const RowCoefficients& coefficients, const Accumulators& sums);

}  // namespace touchstone::norm
