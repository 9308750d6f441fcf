// RMS norm in float64: the specification the kernels are held to.
//
//   h    = x + residual                       (h = x without a residual)
//   rstd = 1 / sqrt(sum_j h_j^2 / D + eps)
//   y    = h * rstd * (weight_offset + weight)          (weight_offset + weight = 1 without weight)
//
// weight_offset is 0, or 1 for models that store weight - 1. Where a 16-bit implementation rounds
// (before or after the multiplication with the weight) has no counterpart in float64.
// Deliberately naive and templated on the scalar; see layer_norm.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace touchstone::oracle {

template <class S>
S rms_norm_rstd(int64_t cols, const S* h, double eps) {
  using std::sqrt;
  S squares = 0.0;
  for (int64_t j = 0; j < cols; ++j) squares += h[j] * h[j];
  return 1.0 / sqrt(squares / static_cast<double>(cols) + eps);
}

template <class S>
struct RmsNormForward {
  int64_t rows = 0;
  int64_t cols = 0;
  double eps = 0.0;
  double weight_offset = 0.0;
  const S* x = nullptr;         // [rows, cols]
  const S* residual = nullptr;  // [rows, cols] or absent
  const S* weight = nullptr;    // [cols] or absent
  S* y = nullptr;               // [rows, cols]
  S* sum = nullptr;             // [rows, cols] x + residual, if wanted
  S* rstd = nullptr;            // [rows], if wanted
};

template <class S>
void rms_norm_forward(const RmsNormForward<S>& a) {
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
    const S rstd = rms_norm_rstd(a.cols, h, a.eps);
    for (int64_t j = 0; j < a.cols; ++j) {
      S y = h[j] * rstd;
      if (a.weight) y *= a.weight_offset + a.weight[j];
      a.y[row + j] = y;
      if (a.sum) a.sum[row + j] = h[j];
    }
    if (a.rstd) a.rstd[i] = rstd;
  }
}

// `h` is what was normalized (x, or x + residual); `dsum` is the gradient that reaches h past the
// norm, through the residual stream. dx is the gradient of x and of the residual alike.
struct RmsNormBackward {
  int64_t rows = 0;
  int64_t cols = 0;
  double eps = 0.0;
  double weight_offset = 0.0;
  const double* dy = nullptr;      // [rows, cols]
  const double* h = nullptr;       // [rows, cols]
  const double* weight = nullptr;  // [cols] or absent
  const double* dsum = nullptr;    // [rows, cols] or absent
  double* dx = nullptr;            // [rows, cols], if wanted
  double* dweight = nullptr;       // [cols], if wanted
};

namespace rms_norm_detail {

// g = dy * (weight_offset + weight), the gradient with respect to h * rstd.
inline std::vector<double> normalized_gradient(const RmsNormBackward& a, int64_t row) {
  std::vector<double> g(static_cast<size_t>(a.cols));
  for (int64_t j = 0; j < a.cols; ++j) {
    g[static_cast<size_t>(j)] = a.dy[row + j] * (a.weight ? a.weight_offset + a.weight[j] : 1.0);
  }
  return g;
}

}  // namespace rms_norm_detail

// First derivation: the chain rule step by step, through the mean square.
inline void rms_norm_backward(const RmsNormBackward& a) {
  const double count = static_cast<double>(a.cols);
  for (int64_t j = 0; j < a.cols && a.dweight; ++j) a.dweight[j] = 0.0;
  for (int64_t i = 0; i < a.rows; ++i) {
    const int64_t row = i * a.cols;
    const double* h = a.h + row;
    const double rstd = rms_norm_rstd(a.cols, h, a.eps);
    const std::vector<double> g = rms_norm_detail::normalized_gradient(a, row);

    for (int64_t j = 0; j < a.cols && a.dweight; ++j) {
      a.dweight[j] += a.dy[row + j] * (h[j] * rstd);
    }
    if (!a.dx) continue;

    // y_j = h_j * rstd, and d rstd / d (mean square) = -rstd^3 / 2.
    double dmean_square = 0.0;
    for (int64_t j = 0; j < a.cols; ++j) dmean_square += g[static_cast<size_t>(j)] * h[j];
    dmean_square *= -0.5 * rstd * rstd * rstd;

    for (int64_t j = 0; j < a.cols; ++j) {
      const double direct = g[static_cast<size_t>(j)] * rstd;
      const double through_mean_square = dmean_square * 2.0 * h[j] / count;
      a.dx[row + j] = direct + through_mean_square + (a.dsum ? a.dsum[row + j] : 0.0);
    }
  }
}

// Second derivation, independent of the first: the Jacobian of one row written out,
//   d xhat_j / d h_k = rstd * (delta_jk - xhat_j xhat_k / D)   with   xhat = h * rstd,
// and its rows multiplied with g. O(D^2) per row.
inline void rms_norm_backward_projection(const RmsNormBackward& a) {
  const double count = static_cast<double>(a.cols);
  std::vector<double> xhat(static_cast<size_t>(a.rows * a.cols));
  for (int64_t i = 0; i < a.rows; ++i) {
    const int64_t row = i * a.cols;
    const double rstd = rms_norm_rstd(a.cols, a.h + row, a.eps);
    double* xhat_row = xhat.data() + row;
    for (int64_t j = 0; j < a.cols; ++j) xhat_row[j] = a.h[row + j] * rstd;
    const std::vector<double> g = rms_norm_detail::normalized_gradient(a, row);
    for (int64_t j = 0; j < a.cols && a.dx; ++j) {
      double projected = 0.0;
      for (int64_t k = 0; k < a.cols; ++k) {
        const double identity = j == k ? 1.0 : 0.0;
        projected += (identity - xhat_row[j] * xhat_row[k] / count) * g[static_cast<size_t>(k)];
      }
      a.dx[row + j] = rstd * projected + (a.dsum ? a.dsum[row + j] : 0.0);
    }
  }
  for (int64_t j = 0; j < a.cols && a.dweight; ++j) {
    double dweight = 0.0;
    for (int64_t i = 0; i < a.rows; ++i) {
      dweight += a.dy[i * a.cols + j] * xhat[static_cast<size_t>(i * a.cols + j)];
    }
    a.dweight[j] = dweight;
  }
}

// Sums of the magnitudes of the terms each output is made of: the scale of its rounding error.
// y: |h * rstd| * (|weight_offset| + |weight|).
inline void rms_norm_forward_magnitude(const RmsNormForward<double>& a) {
  RmsNormForward<double> without_weight = a;
  without_weight.weight = nullptr;
  rms_norm_forward(without_weight);
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < a.cols; ++j) {
      double& y = a.y[i * a.cols + j];
      y = std::fabs(y) * (a.weight ? std::fabs(a.weight_offset) + std::fabs(a.weight[j]) : 1.0);
    }
  }
}

// dx: rstd * (|g| + |xhat * c2|) + |dsum| with c2 = mean(g * xhat); dweight: sum_i |dy * xhat|.
inline void rms_norm_backward_magnitude(const RmsNormBackward& a) {
  const double count = static_cast<double>(a.cols);
  for (int64_t j = 0; j < a.cols && a.dweight; ++j) a.dweight[j] = 0.0;
  for (int64_t i = 0; i < a.rows; ++i) {
    const int64_t row = i * a.cols;
    const double rstd = rms_norm_rstd(a.cols, a.h + row, a.eps);
    const std::vector<double> g = rms_norm_detail::normalized_gradient(a, row);
    double c2 = 0.0;
    for (int64_t j = 0; j < a.cols; ++j) {
      const double xhat = a.h[row + j] * rstd;
      c2 += g[static_cast<size_t>(j)] * xhat / count;
      if (a.dweight) a.dweight[j] += std::fabs(a.dy[row + j] * xhat);
    }
    for (int64_t j = 0; j < a.cols && a.dx; ++j) {
      const double xhat = a.h[row + j] * rstd;
      a.dx[row + j] = rstd * (std::fabs(g[static_cast<size_t>(j)]) + std::fabs(xhat * c2)) +
                      (a.dsum ? std::fabs(a.dsum[row + j]) : 0.0);
    }
  }
}

}  // namespace touchstone::oracle
