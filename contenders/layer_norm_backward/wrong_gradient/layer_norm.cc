// Wrong in one famous way: dx leaves out how the variance depends on x, the term
// xhat * mean(g * xhat). The sign and the size look plausible, training even makes progress; only a
// comparison with the true gradient shows it. Forward, dgamma and dbeta are right.
#include <cmath>
#include <cstdint>
#include <vector>

extern "C" int64_t layer_norm_cache_bytes(int64_t rows, int64_t /*cols*/) {
  return rows * 2 * static_cast<int64_t>(sizeof(double));
}

extern "C" int layer_norm_forward(int64_t rows, int64_t cols, float eps, const float* x,
                                  const float* gamma, const float* beta, float* y, void* cache) {
  auto* mean = static_cast<double*>(cache);
  double* rstd = mean + rows;
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = x + r * cols;
    double sum = 0, squares = 0;
    for (int64_t c = 0; c < cols; ++c) sum += row[c];
    mean[r] = sum / static_cast<double>(cols);
    for (int64_t c = 0; c < cols; ++c) squares += (row[c] - mean[r]) * (row[c] - mean[r]);
    rstd[r] = 1 / std::sqrt(squares / static_cast<double>(cols) + eps);
    for (int64_t c = 0; c < cols; ++c) {
      y[r * cols + c] = static_cast<float>((row[c] - mean[r]) * rstd[r] * gamma[c] + beta[c]);
    }
  }
  return 0;
}

extern "C" int layer_norm_backward(int64_t rows, int64_t cols, float /*eps*/, const float* dy,
                                   const float* x, const float* gamma, const void* cache, float* dx,
                                   float* dgamma, float* dbeta) {
  const auto* mean = static_cast<const double*>(cache);
  const double* rstd = mean + rows;
  std::vector<double> gamma_sum(static_cast<size_t>(cols)), beta_sum(gamma_sum);
  for (int64_t r = 0; r < rows; ++r) {
    double mean_g = 0;
    for (int64_t c = 0; c < cols; ++c) {
      const int64_t i = r * cols + c;
      const double xhat = (x[i] - mean[r]) * rstd[r], g = static_cast<double>(dy[i]) * gamma[c];
      mean_g += g / static_cast<double>(cols);
      gamma_sum[static_cast<size_t>(c)] += dy[i] * xhat;
      beta_sum[static_cast<size_t>(c)] += dy[i];
    }
    for (int64_t c = 0; c < cols; ++c) {
      const int64_t i = r * cols + c;
      const double g = static_cast<double>(dy[i]) * gamma[c];
      dx[i] = static_cast<float>(rstd[r] * (g - mean_g));
    }
  }
  for (int64_t c = 0; c < cols; ++c) {
    dgamma[c] = static_cast<float>(gamma_sum[static_cast<size_t>(c)]);
    dbeta[c] = static_cast<float>(beta_sum[static_cast<size_t>(c)]);
  }
  return 0;
}
