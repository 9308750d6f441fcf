#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "bench/naive/naive.h"
#include "core/context_access.h"
#include "core/thread_pool.h"
#include "touchstone/core/convert.h"

namespace touchstone::bench {
namespace {

// Statistics and sums: float, double for double.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T>
struct Operands {
  std::int64_t rows;
  std::int64_t cols;
  bool layer;
  const T* x;
  const T* dy;
  const T* weight;
  const T* bias;
  T* out;
  Wide<T>* mean;
  Wide<T>* rstd;
  T* dweight;
  T* dbias;
};

template <class T>
Operands<T> operands(const NormOperands& p) {
  return {.rows = p.rows,
          .cols = p.cols,
          .layer = p.layer,
          .x = static_cast<const T*>(p.x),
          .dy = static_cast<const T*>(p.dy),
          .weight = static_cast<const T*>(p.weight),
          .bias = static_cast<const T*>(p.bias),
          .out = static_cast<T*>(p.out),
          .mean = static_cast<Wide<T>*>(p.mean),
          .rstd = static_cast<Wide<T>*>(p.rstd),
          .dweight = static_cast<T*>(p.dweight),
          .dbias = static_cast<T*>(p.dbias)};
}

template <class T>
void forward_row(const Operands<T>& p, std::int64_t row) {
  using W = Wide<T>;
  const T* x = p.x + row * p.cols;
  T* y = p.out + row * p.cols;
  const W count = static_cast<W>(p.cols);
  W mean = 0;
  if (p.layer) {
    for (std::int64_t i = 0; i < p.cols; ++i) mean += static_cast<W>(x[i]);
    mean /= count;
  }
  W variance = 0;
  for (std::int64_t i = 0; i < p.cols; ++i) {
    const W d = static_cast<W>(x[i]) - mean;
    variance += d * d;
  }
  variance /= count;
  const W rstd = 1 / std::sqrt(variance + static_cast<W>(kEpsilon));
  for (std::int64_t i = 0; i < p.cols; ++i) {
    const W shift = p.layer ? static_cast<W>(p.bias[i]) : W{0};
    const W value = (static_cast<W>(x[i]) - mean) * rstd * static_cast<W>(p.weight[i]) + shift;
    y[i] = static_cast<T>(value);
  }
  if (p.layer) p.mean[row] = mean;
  p.rstd[row] = rstd;
}

template <class T>
void backward_row(const Operands<T>& p, std::int64_t row, Wide<T>* dweight, Wide<T>* dbias) {
  using W = Wide<T>;
  const T* x = p.x + row * p.cols;
  const T* dy = p.dy + row * p.cols;
  T* dx = p.out + row * p.cols;
  const W mean = p.layer ? p.mean[row] : W{0};
  const W rstd = p.rstd[row];
  W sum_g = 0;
  W sum_gx = 0;
  for (std::int64_t i = 0; i < p.cols; ++i) {
    const W xhat = (static_cast<W>(x[i]) - mean) * rstd;
    const W g = static_cast<W>(dy[i]) * static_cast<W>(p.weight[i]);
    sum_g += g;
    sum_gx += g * xhat;
  }
  sum_g = p.layer ? sum_g / static_cast<W>(p.cols) : W{0};
  sum_gx /= static_cast<W>(p.cols);
  for (std::int64_t i = 0; i < p.cols; ++i) {
    const W xhat = (static_cast<W>(x[i]) - mean) * rstd;
    const W g = static_cast<W>(dy[i]) * static_cast<W>(p.weight[i]);
    dx[i] = static_cast<T>(rstd * (g - sum_g - xhat * sum_gx));
    dweight[i] += static_cast<W>(dy[i]) * xhat;
    dbias[i] += static_cast<W>(dy[i]);
  }
}

template <class T>
void forward(ThreadPool& pool, const Operands<T>& p) {
  const std::int64_t tasks = std::min<std::int64_t>(pool.threads(), p.rows);
  pool.run(tasks, [&](std::int64_t task) {
    const std::int64_t end = p.rows * (task + 1) / tasks;
    for (std::int64_t row = p.rows * task / tasks; row < end; ++row) forward_row(p, row);
  });
}

// `partials` holds a pair of sums over rows for every thread.
template <class T>
void backward(ThreadPool& pool, const Operands<T>& p, std::vector<Wide<T>>& partials) {
  using W = Wide<T>;
  const std::int64_t tasks = std::min<std::int64_t>(pool.threads(), p.rows);
  partials.resize(static_cast<std::size_t>(tasks * 2 * p.cols));
  pool.run(tasks, [&](std::int64_t task) {
    W* dweight = partials.data() + task * 2 * p.cols;
    std::fill(dweight, dweight + 2 * p.cols, W{0});
    const std::int64_t end = p.rows * (task + 1) / tasks;
    for (std::int64_t row = p.rows * task / tasks; row < end; ++row) {
      backward_row(p, row, dweight, dweight + p.cols);
    }
  });
  for (std::int64_t i = 0; i < p.cols; ++i) {
    W dweight = 0;
    W dbias = 0;
    for (std::int64_t task = 0; task < tasks; ++task) {
      dweight += partials[static_cast<std::size_t>(task * 2 * p.cols + i)];
      dbias += partials[static_cast<std::size_t>((task * 2 + 1) * p.cols + i)];
    }
    p.dweight[i] = static_cast<T>(dweight);
    if (p.layer) p.dbias[i] = static_cast<T>(dbias);
  }
}

}  // namespace

NaiveNorm naive_norm_cpu(Context& context, const NormOperands& like) {
  return visit_float_dtype(like.dtype, [&]<class T>() -> NaiveNorm {
    if (!like.backward) {
      return [&context](const NormOperands& p) {
        forward(detail::ContextAccess::pool(context), operands<T>(p));
      };
    }
    auto partials = std::make_shared<std::vector<Wide<T>>>();
    return [&context, partials](const NormOperands& p) {
      backward(detail::ContextAccess::pool(context), operands<T>(p), *partials);
    };
  });
}

}  // namespace touchstone::bench
