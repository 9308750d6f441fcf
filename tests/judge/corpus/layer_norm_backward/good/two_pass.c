// The textbook in C: two passes in double, one row after the other.
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

int64_t layer_norm_cache_bytes(int64_t rows, int64_t cols) {
  (void)cols;
  return rows * 2 * (int64_t)sizeof(double);
}

int layer_norm_forward(int64_t rows, int64_t cols, float eps, const float* x, const float* gamma,
                       const float* beta, float* y, void* cache) {
  double* statistics = cache;
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = x + r * cols;
    double sum = 0, squares = 0;
    for (int64_t c = 0; c < cols; ++c) sum += row[c];
    const double mean = sum / (double)cols;
    for (int64_t c = 0; c < cols; ++c) squares += (row[c] - mean) * (row[c] - mean);
    const double rstd = 1 / sqrt(squares / (double)cols + eps);
    for (int64_t c = 0; c < cols; ++c) {
      y[r * cols + c] = (float)((row[c] - mean) * rstd * gamma[c] + beta[c]);
    }
    statistics[2 * r] = mean;
    statistics[2 * r + 1] = rstd;
  }
  return 0;
}

int layer_norm_backward(int64_t rows, int64_t cols, float eps, const float* dy, const float* x,
                        const float* gamma, const void* cache, float* dx, float* dgamma,
                        float* dbeta) {
  (void)eps;
  const double* statistics = cache;
  double* sums = calloc((size_t)(2 * cols) + 1, sizeof(double));
  if (!sums) return 1;
  for (int64_t r = 0; r < rows; ++r) {
    const double mean = statistics[2 * r], rstd = statistics[2 * r + 1];
    double mean_g = 0, mean_gx = 0;
    for (int64_t c = 0; c < cols; ++c) {
      const int64_t i = r * cols + c;
      const double g = (double)dy[i] * gamma[c], xhat = (x[i] - mean) * rstd;
      mean_g += g / (double)cols;
      mean_gx += g * xhat / (double)cols;
      sums[c] += dy[i] * xhat;
      sums[cols + c] += dy[i];
    }
    for (int64_t c = 0; c < cols; ++c) {
      const int64_t i = r * cols + c;
      const double g = (double)dy[i] * gamma[c], xhat = (x[i] - mean) * rstd;
      dx[i] = (float)(rstd * (g - mean_g - xhat * mean_gx));
    }
  }
  for (int64_t c = 0; c < cols; ++c) {
    dgamma[c] = (float)sums[c];
    dbeta[c] = (float)sums[cols + c];
  }
  free(sums);
  return 0;
}
