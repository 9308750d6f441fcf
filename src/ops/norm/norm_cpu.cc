// The SIMD implementation above its kernels: weights in the type of arithmetic, the constants of a
// row, and the distribution of work to threads, on which the bits do not depend (norm_cpu.h).
#include "ops/norm/norm_cpu.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "core/context_access.h"
#include "core/thread_pool.h"
#include "cpu/cache_size.h"
#include "ops/norm/norm_row.h"
#include "touchstone/core/checked.h"

namespace touchstone::norm {
namespace {

std::int64_t statistic_size(DType dtype) { return dtype == DType::f64 ? 8 : 4; }

std::int64_t useful_threads(Context& context, std::int64_t elements, std::int64_t per_thread) {
  return std::clamp<std::int64_t>(elements / per_thread, 1, context.threads());
}

// What is written is not read back soon if the cache cannot hold it: writing past the cache then
// saves reading every line before it is overwritten.
bool worth_streaming(const Context& context, std::int64_t bytes_written) {
  const std::int64_t share = context.threads() * tuning::kCacheBytesPerThread;
  return bytes_written > std::min(last_level_cache_bytes() / 2, share);
}

// Hands out pieces of one allocation. All but the last must have a size that padded() gave.
class Arena {
 public:
  explicit Arena(void* base) : next_(static_cast<char*>(base)) {}
  void* take(std::int64_t bytes) {
    void* const piece = next_;
    next_ += bytes;
    return piece;
  }
  // Whole cache lines and 17 more: rows of a power of two of columns all start at the same set of
  // L1, and a kernel that reads and writes a dozen arrays side by side must not find all of them
  // there.
  static std::int64_t padded(std::int64_t bytes) { return (ceil_div(bytes, 64) + 17) * 64; }

 private:
  char* next_;
};

// Whether the kernels can read weight or bias in place: the f32 and f64 kernels read the dtype
// of x, without an offset.
bool usable_in_place(const void* weights, DType dtype, DType x_dtype, double offset) {
  return weights != nullptr && dtype == x_dtype && offset == 0 &&
         statistic_size(dtype) == size_of(dtype);
}

void fill(DType x_dtype, double value, void* dst, std::int64_t cols) {
  if (x_dtype == DType::f64) {
    std::fill_n(static_cast<double*>(dst), cols, value);
  } else {
    std::fill_n(static_cast<float*>(dst), cols, static_cast<float>(value));
  }
}

// weight or bias, `absent` where there is none, in the form that the kernels read: converted into
// `dst` where necessary.
const void* prepare_weights(const void* weights, double absent, DType dtype, DType x_dtype,
                            double offset, void* dst, std::int64_t cols) {
  if (usable_in_place(weights, dtype, x_dtype, offset)) return weights;
  if (weights == nullptr) {
    fill(x_dtype, absent, dst, cols);
  } else {
    widen_weights(x_dtype, weights, dtype, offset, dst, cols);
  }
  return dst;
}

}  // namespace

// ---- forward -------------------------------------------------------------------------------

namespace {

// The bits of an element. Signed: without the sign bit they compare alike, and SSE2 compares signed
// integers only.
template <class T>
using Bits = std::conditional_t<sizeof(T) == 8, std::int64_t,
                                std::conditional_t<sizeof(T) == 4, std::int32_t, std::int16_t>>;
template <class T>
constexpr Bits<T> kMagnitude = std::numeric_limits<Bits<T>>::max();

// By member where there is one: compilers do not vectorize casts of structs.
template <class T>
Bits<T> bits_of_value(const T& value) {
  if constexpr (is_half<T>) {
    return static_cast<Bits<T>>(value.bits);
  } else {
    return std::bit_cast<Bits<T>>(value);
  }
}
template <class T>
void set_bits(T& value, Bits<T> bits) {
  if constexpr (is_half<T>) {
    value.bits = static_cast<std::uint16_t>(bits);
  } else {
    value = std::bit_cast<T>(bits);
  }
}

template <class T>
Bits<T> infinity_bits() {
  return bits_of_value(convert<T>(std::numeric_limits<double>::infinity()));
}

// Integer arithmetic, which compilers vectorize whatever the type.
template <class T>
bool all_finite(const T* h, std::int64_t cols) {
  Bits<T> largest = 0;
  for (std::int64_t c = 0; c < cols; ++c) {
    const auto magnitude = static_cast<Bits<T>>(bits_of_value(h[c]) & kMagnitude<T>);
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest < infinity_bits<T>();
}

// y of a row that holds NaN or infinity, to the bit as the arithmetic gives it: an element that is
// NaN stays that NaN, quiet; the others become the default one. y may be h.
template <class T>
void write_nan_row(const T* h, T* y, std::int64_t cols) {
  const Bits<T> nan = bits_of_value(convert<T>(std::numeric_limits<double>::quiet_NaN()));
  const Bits<T> infinity = infinity_bits<T>();
  for (std::int64_t c = 0; c < cols; ++c) {
    const Bits<T> bits = bits_of_value(h[c]);
    const bool is_nan = static_cast<Bits<T>>(bits & kMagnitude<T>) > infinity;
    set_bits<T>(y[c], static_cast<Bits<T>>(is_nan ? bits | nan : nan));
  }
}

template <class T>
void slow_row(const ForwardJob& job, std::int64_t row) {
  using C = Compute<T>;
  const Forward& p = job.p;
  const T* h = static_cast<const T*>(p.x.data) + row * p.x.stride;
  if (p.residual.data != nullptr) {
    const T* const residual = static_cast<const T*>(p.residual.data) + row * p.residual.stride;
    T* const sum = static_cast<T*>(p.sum.data) + row * p.sum.stride;
    for (std::int64_t c = 0; c < p.cols; ++c) {
      sum[c] = convert<T>(convert<C>(h[c]) + convert<C>(residual[c]));
    }
    h = sum;
  }
  T* const y = static_cast<T*>(p.y.data) + row * p.y.stride;
  C* const mean = p.mean == nullptr ? nullptr : static_cast<C*>(p.mean) + row;
  C* const rstd = p.rstd == nullptr ? nullptr : static_cast<C*>(p.rstd) + row;
  if (!all_finite(h, p.cols)) {
    write_nan_row(h, y, p.cols);
    for (C* const statistic : {mean, rstd}) {
      if (statistic != nullptr) *statistic = std::numeric_limits<C>::quiet_NaN();
    }
    return;
  }
  // From the caller's weights: those of the job are in the order of the kernels.
  const auto weight = widened<C>(p.weight, p.weight_dtype, p.cols, p.weight_offset);
  const auto bias = widened<C>(p.bias, p.weight_dtype, p.cols, 0);
  normalize_row(p, h, data_or_null(weight), data_or_null(bias), y, mean, rstd);
}

// Every thread works on every row: statistics of all blocks, then all blocks of y.
void forward_by_columns(Context& context, const ForwardJob& job, std::int64_t block_columns,
                        Moments* moments) {
  const Forward& p = job.p;
  const std::int64_t blocks = ceil_div(p.cols, block_columns);
  detail::ContextAccess::pool(context).run(p.rows * blocks, [&](std::int64_t task) {
    moments[task] = forward_moments(job, task / blocks, task % blocks);
  });
  for (std::int64_t row = 0; row < p.rows; ++row) {
    Moments total;
    for (std::int64_t b = 0; b < blocks; ++b) total = merge(total, moments[row * blocks + b]);
    const RowStatistics statistics = forward_finish(job, row, total);
    if (!statistics.sound) {
      forward_slow_row(job, row);
      continue;
    }
    detail::ContextAccess::pool(context).run(blocks, [&](std::int64_t b) {
      const std::int64_t begin = b * block_columns;
      forward_write(job, row, begin, std::min(p.cols, begin + block_columns), statistics);
    });
  }
}

}  // namespace

void forward_slow_row(const ForwardJob& job, std::int64_t row) {
  visit_float_dtype(job.p.dtype, [&]<class T>() { slow_row<T>(job, row); });
}

void forward_simd(Context& context, const Forward& p) {
  ForwardJob job;
  job.p = p;
  job.inverse_cols = 1 / static_cast<double>(p.cols);
  job.prefetch_rows = std::max<std::int64_t>(1, kPrefetchBytes / size_of(p.dtype) / p.cols);
  job.stream = worth_streaming(context, p.rows * p.cols * size_of(p.dtype));
  const std::int64_t threads =
      useful_threads(context, p.rows * p.cols, tuning::kForwardElementsPerThread);
  const std::int64_t block_columns = forward_block_columns(job);
  const std::int64_t blocks = ceil_div(p.cols, block_columns);
  // Rows that do not share out evenly, and are long enough to be shared themselves.
  const bool by_columns = p.rows < 4 * threads && p.rows % threads != 0 && blocks >= 2 * threads;
  const std::int64_t weight_bytes = Arena::padded(p.cols * statistic_size(p.dtype));
  const std::int64_t moment_bytes =
      by_columns ? p.rows * blocks * static_cast<std::int64_t>(sizeof(Moments)) : 0;
  Arena arena(detail::ContextAccess::workspace(context, 2 * weight_bytes + moment_bytes));
  job.weight = prepare_weights(p.weight, 1, p.weight_dtype, p.dtype, p.weight_offset,
                               arena.take(weight_bytes), p.cols);
  void* const bias = arena.take(weight_bytes);
  if (p.kind == Kind::layer) {
    job.bias = prepare_weights(p.bias, 0, p.weight_dtype, p.dtype, 0, bias, p.cols);
  }

  if (by_columns) {
    forward_by_columns(context, job, block_columns,
                       static_cast<Moments*>(arena.take(moment_bytes)));
    return;
  }
  // A few tasks per thread, so that one that is held up does not hold up the rest.
  const std::int64_t tasks = threads == 1 ? 1 : std::min(p.rows, 4 * threads);
  detail::ContextAccess::pool(context).run(tasks, [&](std::int64_t task) {
    forward_rows(job, task * p.rows / tasks, (task + 1) * p.rows / tasks);
  });
}

// ---- backward ------------------------------------------------------------------------------

namespace {

using tuning::kChunkRowsPerFlush;
using tuning::kMaxChunks;
using tuning::kMinChunkRows;

// Rows are cut into chunks for the weight gradients. Their number depends on the number of rows
// alone.
struct Chunks {
  std::int64_t rows = 0;
  std::int64_t count = 0;

  explicit Chunks(std::int64_t total)
      : rows(total),
        count(std::clamp<std::int64_t>(ceil_div(total, kMinChunkRows), 1, kMaxChunks)) {}
  std::int64_t begin(std::int64_t chunk) const {
    // Without the product chunk * rows, which may not fit.
    return rows / count * chunk + std::min(rows % count, chunk);
  }
  std::int64_t longest() const { return ceil_div(rows, count); }
};

// Column sums of every chunk: f32 (f64 for f64) sums of at most kChunkRowsPerFlush rows, and, where
// a chunk has more rows than that, f64 totals they are added to.
template <class C>
struct ChunkSums {
  C* running = nullptr;     // [chunks][2][padded]
  double* total = nullptr;  // the same shape, or null
  std::int64_t padded = 0;  // columns, up to a whole number of cache lines
  bool bias = false;

  C* running_of(std::int64_t chunk) const { return running + chunk * 2 * padded; }
  double* total_of(std::int64_t chunk) const { return total + chunk * 2 * padded; }
  std::int64_t used() const { return bias ? 2 * padded : padded; }
  Accumulators accumulators(std::int64_t chunk) const {
    return {running_of(chunk), running_of(chunk) + padded};
  }
  void flush(std::int64_t chunk) const {
    C* const from = running_of(chunk);
    double* const to = total_of(chunk);
    for (std::int64_t i = 0; i < used(); ++i) to[i] += static_cast<double>(from[i]);
    std::fill_n(from, used(), C{0});
  }
};

template <class C>
void backward_chunk(const BackwardJob& job, const Chunks& chunks, std::int64_t chunk,
                    const ChunkSums<C>& sums) {
  std::fill_n(sums.running_of(chunk), sums.used(), C{0});
  if (sums.total != nullptr) std::fill_n(sums.total_of(chunk), sums.used(), 0.0);
  const std::int64_t end = chunks.begin(chunk + 1);
  for (std::int64_t row = chunks.begin(chunk); row < end; row += kChunkRowsPerFlush) {
    backward_rows(job, row, std::min(end, row + kChunkRowsPerFlush), sums.accumulators(chunk));
    if (sums.total != nullptr) sums.flush(chunk);
  }
}

// Every thread works on every row: sums of all blocks, then, block by block of columns, dx and the
// column sums of all chunks.
template <class C>
void backward_by_columns(Context& context, const BackwardJob& job, const Chunks& chunks,
                         const ChunkSums<C>& sums, std::int64_t block_columns, RowSums* row_sums,
                         RowCoefficients* coefficients) {
  const Backward& p = job.p;
  const std::int64_t blocks = ceil_div(p.cols, block_columns);
  detail::ContextAccess::pool(context).run(p.rows * blocks, [&](std::int64_t task) {
    row_sums[task] = backward_sums(job, task / blocks, task % blocks);
  });
  for (std::int64_t row = 0; row < p.rows; ++row) {
    RowSums total;
    for (std::int64_t b = 0; b < blocks; ++b) {
      const RowSums& s = row_sums[row * blocks + b];
      total.t += s.t;
      total.g += s.g;
      total.gt += s.gt;
    }
    coefficients[row] = backward_finish(job, total);
  }
  detail::ContextAccess::pool(context).run(chunks.count * blocks, [&](std::int64_t task) {
    const std::int64_t chunk = task / blocks;
    const std::int64_t begin = task % blocks * block_columns;
    const std::int64_t end = std::min(p.cols, begin + block_columns);
    std::fill_n(sums.running_of(chunk) + begin, end - begin, C{0});
    std::fill_n(sums.running_of(chunk) + sums.padded + begin, end - begin, C{0});
    for (std::int64_t row = chunks.begin(chunk); row < chunks.begin(chunk + 1); ++row) {
      backward_write(job, row, begin, end, coefficients[row], sums.accumulators(chunk));
    }
  });
}

// Adds up the chunks: columns [begin, end) of the sums that start at `offset`.
template <class C>
void merge_chunks(const BackwardJob& job, const ChunkSums<C>& sums, std::int64_t count,
                  std::int64_t offset, std::int64_t begin, std::int64_t end, void* out) {
  const bool is_f64 = sizeof(C) == 8 || sums.total != nullptr;
  const void* from = sums.running + offset + begin;
  if (sums.total != nullptr) from = sums.total + offset + begin;
  void* const to = static_cast<char*>(out) + begin * size_of(job.p.weight_grad_dtype);
  backward_merge(job, from, is_f64, 2 * sums.padded, count, end - begin, to);
}

template <class C>
void finish_gradients(Context& context, const BackwardJob& job, const ChunkSums<C>& sums,
                      std::int64_t chunks) {
  const Backward& p = job.p;
  const std::int64_t slices = ceil_div(p.cols, kMergeColumns);
  const std::int64_t threads =
      useful_threads(context, chunks * sums.used(), tuning::kMergeElementsPerThread);
  const std::int64_t tasks = std::min(slices, threads == 1 ? 1 : 4 * threads);
  detail::ContextAccess::pool(context).run(tasks, [&](std::int64_t task) {
    for (std::int64_t slice = task * slices / tasks; slice < (task + 1) * slices / tasks; ++slice) {
      const std::int64_t begin = slice * kMergeColumns;
      const std::int64_t end = std::min(p.cols, begin + kMergeColumns);
      if (p.dweight != nullptr) merge_chunks(job, sums, chunks, 0, begin, end, p.dweight);
      if (p.dbias != nullptr) merge_chunks(job, sums, chunks, sums.padded, begin, end, p.dbias);
    }
  });
}

template <class C>
void backward_typed(Context& context, const Backward& p) {
  constexpr std::int64_t kSize = sizeof(C);
  BackwardJob job;
  job.p = p;
  job.inverse_cols = 1 / static_cast<double>(p.cols);
  job.stream = worth_streaming(context, p.rows * p.cols * size_of(p.dtype));
  const Chunks chunks(p.rows);
  const std::int64_t threads =
      useful_threads(context, p.rows * p.cols, tuning::kBackwardElementsPerThread);
  const std::int64_t block_columns = backward_block_columns(job);
  const std::int64_t blocks = ceil_div(p.cols, block_columns);
  // Fewer chunks than threads, and rows long enough to be shared.
  const bool by_columns =
      chunks.count < std::min(threads, kMaxChunks) && blocks * chunks.count >= 2 * threads;
  const bool flushes = kSize < 8 && chunks.longest() > kChunkRowsPerFlush;

  ChunkSums<C> sums;
  const std::int64_t weight_bytes = Arena::padded(p.cols * kSize);
  sums.padded = weight_bytes / kSize;
  sums.bias = p.kind == Kind::layer;
  const std::int64_t sum_bytes = checked_mul(chunks.count * 2 * kSize, sums.padded);
  const std::int64_t total_bytes = flushes ? checked_mul(chunks.count * 16, sums.padded) : 0;
  const std::int64_t row_count = by_columns ? p.rows : 0;
  const auto row_sum_bytes =
      Arena::padded(row_count * blocks * static_cast<std::int64_t>(sizeof(RowSums)));
  const auto coefficient_bytes = row_count * static_cast<std::int64_t>(sizeof(RowCoefficients));
  Arena arena(detail::ContextAccess::workspace(
      context, weight_bytes + sum_bytes + total_bytes + row_sum_bytes + coefficient_bytes));
  job.weight = prepare_weights(p.weight, 1, p.weight_dtype, p.dtype, p.weight_offset,
                               arena.take(weight_bytes), p.cols);
  sums.running = static_cast<C*>(arena.take(sum_bytes));
  if (flushes) sums.total = static_cast<double*>(arena.take(total_bytes));

  if (by_columns) {
    auto* const row_sums = static_cast<RowSums*>(arena.take(row_sum_bytes));
    backward_by_columns(context, job, chunks, sums, block_columns, row_sums,
                        static_cast<RowCoefficients*>(arena.take(coefficient_bytes)));
  } else {
    const std::int64_t tasks = threads == 1 ? 1 : chunks.count;
    detail::ContextAccess::pool(context).run(tasks, [&](std::int64_t task) {
      const std::int64_t end = (task + 1) * chunks.count / tasks;
      for (std::int64_t chunk = task * chunks.count / tasks; chunk < end; ++chunk) {
        backward_chunk(job, chunks, chunk, sums);
      }
    });
  }
  finish_gradients(context, job, sums, chunks.count);
}

}  // namespace

RowCoefficients backward_finish(const BackwardJob& job, const RowSums& sums) {
  const double mean_t = sums.t * job.inverse_cols;  // 0 but for the rounding of the saved mean
  RowCoefficients c;
  c.shift = -mean_t;
  c.c1 = sums.g * job.inverse_cols;
  c.c2 = sums.gt * job.inverse_cols - mean_t * c.c1;
  if (!std::isfinite(c.c1) || !std::isfinite(c.c2)) {
    c.c1 = c.c2 = std::numeric_limits<double>::quiet_NaN();
  }
  return c;
}

void backward_simd(Context& context, const Backward& p) {
  if (p.dtype == DType::f64) {
    backward_typed<double>(context, p);
  } else {
    backward_typed<float>(context, p);
  }
}

}  // namespace touchstone::norm
