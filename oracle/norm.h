// Layer norm and RMS norm in float64: the specification the kernels are held to.
//
//   h    = x + residual                                    (h = x without a residual)
//   mean = sum_j h_j / D        var = sum_j (h_j - mean)^2 / D        rstd = 1 / sqrt(var + eps)
//   xhat = (h - mean) * rstd
//   y    = xhat * (weight_offset + weight) + bias           (1 and 0 where these are absent)
//
// RMS norm has mean = 0 and no bias. weight_offset is 0, or 1 for models that store weight - 1. Where
// a 16-bit implementation rounds (before or after the multiplication with the weight) has no
// counterpart in float64.
// Deliberately naive: one row after another, one quantity per loop, nothing fused. The forward is
// templated on the scalar, so that it runs on double, on dual numbers and on wider types in tests.
// float32 inputs over their whole range, promoted to double, neither overflow nor underflow here.
// With eps = 0 a constant row has rstd = inf and y = NaN, as the formula says.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace touchstone::oracle {

enum class Norm { layer, rms };

// Row statistics. The rounded mean is off by up to half an ulp, which at mean/sigma = 1e6 is no
// longer small beside sigma; `delta` is the mean of what is left after subtracting it, so
// (h - mean) - delta is centered to the last bit. In exact arithmetic delta is zero.
template <class S>
struct RowStats {
  S mean = 0.0;
  S delta = 0.0;
  S rstd = 0.0;

  S centered(const S& h) const { return (h - mean) - delta; }
  S xhat(const S& h) const { return centered(h) * rstd; }
};

template <class S>
RowStats<S> norm_stats(Norm norm, int64_t cols, const S* h, double eps) {
  using std::sqrt;
  const double count = static_cast<double>(cols);
  RowStats<S> stats;
  if (norm == Norm::layer) {
    S sum = 0.0;
    for (int64_t j = 0; j < cols; ++j) sum += h[j];
    stats.mean = sum / count;

    S rest = 0.0;
    for (int64_t j = 0; j < cols; ++j) rest += h[j] - stats.mean;
    stats.delta = rest / count;
  }
  S squares = 0.0;
  for (int64_t j = 0; j < cols; ++j) {
    const S d = stats.centered(h[j]);
    squares += d * d;
  }
  stats.rstd = 1.0 / sqrt(squares / count + eps);
  return stats;
}

template <class S>
struct NormForward {
  Norm norm = Norm::layer;
  int64_t rows = 0;
  int64_t cols = 0;
  double eps = 0.0;
  double weight_offset = 0.0;
  const S* x = nullptr;         // [rows, cols]
  const S* residual = nullptr;  // [rows, cols] or absent
  const S* weight = nullptr;    // [cols] or absent
  const S* bias = nullptr;      // [cols] or absent
  S* y = nullptr;               // [rows, cols]
  S* sum = nullptr;             // [rows, cols] x + residual, optional
  S* mean = nullptr;            // [rows], optional
  S* rstd = nullptr;            // [rows], optional
};

template <class S>
void norm_forward(const NormForward<S>& a) {
  std::vector<S> added(a.residual ? static_cast<size_t>(a.cols) : 0);
  for (int64_t i = 0; i < a.rows; ++i) {
    const int64_t row = i * a.cols;
    const S* h = a.x + row;
    if (a.residual) {
      for (int64_t j = 0; j < a.cols; ++j) {
        added[static_cast<size_t>(j)] = a.x[row + j] + a.residual[row + j];
      }
      h = added.data();
    }
    const RowStats<S> stats = norm_stats(a.norm, a.cols, h, a.eps);
    for (int64_t j = 0; j < a.cols; ++j) {
      S y = stats.xhat(h[j]);
      if (a.weight) y *= a.weight_offset + a.weight[j];
      if (a.bias) y += a.bias[j];
      a.y[row + j] = y;
      if (a.sum) a.sum[row + j] = h[j];
    }
    if (a.mean) a.mean[i] = stats.mean + stats.delta;
    if (a.rstd) a.rstd[i] = stats.rstd;
  }
}

// The gradients of both derivations and their magnitude sums share one argument list. `h` is what
// was normalized (x, or x + residual); statistics are computed again from it. `dsum` is the
// gradient that reaches h past the norm, through the residual stream; the gradient of h is the
// gradient of x and of the residual alike.
struct NormBackward {
  Norm norm = Norm::layer;
  int64_t rows = 0;
  int64_t cols = 0;
  double eps = 0.0;
  double weight_offset = 0.0;
  const double* dy = nullptr;      // [rows, cols]
  const double* h = nullptr;       // [rows, cols]
  const double* weight = nullptr;  // [cols] or absent
  const double* dsum = nullptr;    // [rows, cols] or absent
  double* dx = nullptr;            // [rows, cols], optional
  double* dweight = nullptr;       // [cols], optional
  double* dbias = nullptr;         // [cols], optional

  // g = dy * (weight_offset + weight) of a row, the gradient with respect to xhat.
  std::vector<double> xhat_gradient(int64_t row) const {
    std::vector<double> g(static_cast<size_t>(cols));
    for (int64_t j = 0; j < cols; ++j) {
      g[static_cast<size_t>(j)] = dy[row * cols + j] * (weight ? weight_offset + weight[j] : 1.0);
    }
    return g;
  }
  void clear_column_sums() const {
    for (int64_t j = 0; j < cols; ++j) {
      if (dweight) dweight[j] = 0.0;
      if (dbias) dbias[j] = 0.0;
    }
  }
  double dsum_at(int64_t element) const { return dsum ? dsum[element] : 0.0; }
};

// First derivation: the chain rule step by step, through the variance and then through the mean.
inline void norm_backward(const NormBackward& a) {
  const double count = static_cast<double>(a.cols);
  a.clear_column_sums();
  for (int64_t i = 0; i < a.rows; ++i) {
    const int64_t row = i * a.cols;
    const double* h = a.h + row;
    const double* dy = a.dy + row;
    const RowStats<double> stats = norm_stats(a.norm, a.cols, h, a.eps);
    const std::vector<double> g = a.xhat_gradient(i);

    for (int64_t j = 0; j < a.cols; ++j) {
      if (a.dweight) a.dweight[j] += dy[j] * stats.xhat(h[j]);
      if (a.dbias) a.dbias[j] += dy[j];
    }
    if (!a.dx) continue;

    // xhat_j = (h_j - mean) * rstd, and d rstd / d var = -rstd^3 / 2.
    double dvar = 0.0;
    for (int64_t j = 0; j < a.cols; ++j) {
      dvar += g[static_cast<size_t>(j)] * stats.centered(h[j]);
    }
    dvar *= -0.5 * stats.rstd * stats.rstd * stats.rstd;

    // mean enters every xhat_j directly, and the variance through sum_j (h_j - mean)^2.
    double dmean = 0.0;
    if (a.norm == Norm::layer) {
      double sum_g = 0.0;
      double sum_centered = 0.0;
      for (int64_t j = 0; j < a.cols; ++j) {
        sum_g += g[static_cast<size_t>(j)];
        sum_centered += stats.centered(h[j]);
      }
      dmean = -stats.rstd * sum_g - dvar * 2.0 * sum_centered / count;
    }
    for (int64_t j = 0; j < a.cols; ++j) {
      const double direct = g[static_cast<size_t>(j)] * stats.rstd;
      const double through_var = dvar * 2.0 * stats.centered(h[j]) / count;
      const double through_mean = dmean / count;
      a.dx[row + j] = direct + through_var + through_mean + a.dsum_at(row + j);
    }
  }
}

// Second derivation, independent of the first: the Jacobian of one row written out,
//   d xhat_j / d h_k = rstd * (delta_jk - 1/D - xhat_j xhat_k / D)       (no 1/D in RMS norm),
// and its rows multiplied with g. O(D^2) per row, and nothing shared between the elements of dx.
inline void norm_backward_projection(const NormBackward& a) {
  const double count = static_cast<double>(a.cols);
  const double through_mean = a.norm == Norm::layer ? 1.0 : 0.0;
  std::vector<double> xhat(static_cast<size_t>(a.rows * a.cols));
  for (int64_t i = 0; i < a.rows; ++i) {
    const int64_t row = i * a.cols;
    const RowStats<double> stats = norm_stats(a.norm, a.cols, a.h + row, a.eps);
    double* xhat_row = xhat.data() + row;
    for (int64_t j = 0; j < a.cols; ++j) xhat_row[j] = stats.xhat(a.h[row + j]);
    const std::vector<double> g = a.xhat_gradient(i);
    for (int64_t j = 0; j < a.cols && a.dx; ++j) {
      double projected = 0.0;
      for (int64_t k = 0; k < a.cols; ++k) {
        const double identity = j == k ? 1.0 : 0.0;
        projected += (identity - (through_mean + xhat_row[j] * xhat_row[k]) / count) *
                     g[static_cast<size_t>(k)];
      }
      a.dx[row + j] = stats.rstd * projected + a.dsum_at(row + j);
    }
  }
  // Column by column, where the first derivation goes row by row.
  for (int64_t j = 0; j < a.cols; ++j) {
    double dweight = 0.0;
    double dbias = 0.0;
    for (int64_t i = 0; i < a.rows; ++i) {
      dweight += a.dy[i * a.cols + j] * xhat[static_cast<size_t>(i * a.cols + j)];
      dbias += a.dy[i * a.cols + j];
    }
    if (a.dweight) a.dweight[j] = dweight;
    if (a.dbias) a.dbias[j] = dbias;
  }
}

// Sums of the magnitudes of the terms each gradient is made of: the scale of its rounding error.
// dx: rstd * (|g| + |c1| + |xhat * c2|) + |dsum|, where c1 = mean(g), 0 in RMS norm, and c2 = mean(g *
// xhat); dweight: sum_i |dy * xhat|; dbias: sum_i |dy|. Written to dx, dweight and dbias.
inline void norm_backward_magnitude(const NormBackward& a) {
  const double count = static_cast<double>(a.cols);
  a.clear_column_sums();
  for (int64_t i = 0; i < a.rows; ++i) {
    const int64_t row = i * a.cols;
    const RowStats<double> stats = norm_stats(a.norm, a.cols, a.h + row, a.eps);
    const std::vector<double> g = a.xhat_gradient(i);
    double c1 = 0.0;
    double c2 = 0.0;
    for (int64_t j = 0; j < a.cols; ++j) {
      const double xhat = stats.xhat(a.h[row + j]);
      if (a.norm == Norm::layer) c1 += g[static_cast<size_t>(j)] / count;
      c2 += g[static_cast<size_t>(j)] * xhat / count;
      if (a.dweight) a.dweight[j] += std::fabs(a.dy[row + j] * xhat);
      if (a.dbias) a.dbias[j] += std::fabs(a.dy[row + j]);
    }
    for (int64_t j = 0; j < a.cols && a.dx; ++j) {
      const double xhat = stats.xhat(a.h[row + j]);
      a.dx[row + j] = stats.rstd * (std::fabs(g[static_cast<size_t>(j)]) + std::fabs(c1) +
                                    std::fabs(xhat * c2)) +
                      std::fabs(a.dsum_at(row + j));
    }
  }
}

}  // namespace touchstone::oracle
