#include "theirs.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace {

// To the nearest half, ties to even, by the spacing of halves at this magnitude.
double nearest_half(double value) {
  if (value == 0) return 0;
  value = std::min(std::max(value, std::ldexp(1.0, -24)), 65504.0);
  int exponent;
  std::frexp(value, &exponent);
  const double step = std::ldexp(1.0, std::max(exponent - 11, -24));
  return std::nearbyint(value / step) * step;
}

}  // namespace

float TernaryMatrix::factor(int row, int col) const {
  const int per_row = (cols + block - 1) / block;
  return factors[static_cast<size_t>(row) * per_row + col / block];
}

TernaryMatrix quantize(const float* weights, int rows, int cols, int block, ScaleKind kind) {
  TernaryMatrix w{rows, cols, block, std::vector<int8_t>(static_cast<size_t>(rows) * cols), {}};
  for (int r = 0; r < rows; ++r) {
    for (int begin = 0; begin < cols; begin += block) {
      const int end = std::min(cols, begin + block);
      const float* row = weights + static_cast<size_t>(r) * cols;
      double sum = 0, most = 0;
      for (int c = begin; c < end; ++c) {
        if (!std::isfinite(row[c])) throw std::domain_error("weights");
        sum += std::fabs(row[c]);
        most = std::max<double>(most, std::fabs(row[c]));
      }
      const double s = kind == ScaleKind::mean ? sum / (end - begin) : most;
      w.factors.push_back(static_cast<float>(nearest_half(s)));
      for (int c = begin; c < end; ++c) {
        const bool zero = std::fabs(row[c]) * 2.0 <= s;
        w.trits[static_cast<size_t>(r) * cols + c] = zero ? 0 : row[c] < 0 ? -1 : 1;
      }
    }
  }
  return w;
}

void forward(const TernaryMatrix& w, const float* x, float* y) {
  for (int r = 0; r < w.rows; ++r) {
    double sum = 0;
    for (int c = 0; c < w.cols; ++c) {
      sum +=
          static_cast<double>(w.factor(r, c)) * w.trits[static_cast<size_t>(r) * w.cols + c] * x[c];
    }
    y[r] = static_cast<float>(sum);
  }
}

void backward(const TernaryMatrix& w, const float* x, const float* dy, float* dx, double* dw) {
  std::vector<double> sums(static_cast<size_t>(w.cols));
  for (int r = 0; r < w.rows; ++r) {
    for (int c = 0; c < w.cols; ++c) {
      const size_t at = static_cast<size_t>(r) * w.cols + c;
      sums[c] += static_cast<double>(dy[r]) * w.factor(r, c) * w.trits[at];
      dw[at] += static_cast<double>(dy[r]) * x[c];
    }
  }
  std::copy(sums.begin(), sums.end(), dx);
}

std::vector<float> to_int8_and_back(const float* x, int n) {
  std::vector<float> out(x, x + n);
  float most = 0;
  for (const float v : out) most = std::max(most, std::fabs(v));
  if (most == 0) return out;
  const double step = static_cast<double>(most) / 127;
  for (float& v : out) v = static_cast<float>(std::nearbyint(v / step) * step);
  return out;
}
