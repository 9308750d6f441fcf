// What most people write: float throughout, running sums, two passes, mean and 1 / sigma kept as
// floats. Within the error of 32-bit arithmetic, if not the best it can do.
#include <math.h>
#include <stdint.h>
#include <string.h>

int64_t layer_norm_cache_bytes(int64_t rows, int64_t cols) {
  (void)cols;
  return rows * 2 * (int64_t)sizeof(float);
}

int layer_norm_forward(int64_t rows, int64_t cols, float eps, const float* x, const float* gamma,
                       const float* beta, float* y, void* cache) {
  float *mean = cache, *rstd = mean + rows;
  const float n = (float)cols;
  for (int64_t r = 0; r < rows; ++r, x += cols, y += cols) {
    float sum = 0, squares = 0;
    for (int64_t c = 0; c < cols; ++c) sum += x[c];
    mean[r] = sum / n;
    for (int64_t c = 0; c < cols; ++c) squares += (x[c] - mean[r]) * (x[c] - mean[r]);
    rstd[r] = 1 / sqrtf(squares / n + eps);
    for (int64_t c = 0; c < cols; ++c) y[c] = (x[c] - mean[r]) * rstd[r] * gamma[c] + beta[c];
  }
  return 0;
}

int layer_norm_backward(int64_t rows, int64_t cols, float eps, const float* dy, const float* x,
                        const float* gamma, const void* cache, float* dx, float* dgamma,
                        float* dbeta) {
  const float *mean = cache, *rstd = mean + rows;
  const float n = (float)cols;
  (void)eps;
  memset(dgamma, 0, (size_t)cols * sizeof(float));
  memset(dbeta, 0, (size_t)cols * sizeof(float));
  for (int64_t r = 0; r < rows; ++r, x += cols, dy += cols, dx += cols) {
    float a = 0, b = 0;
    for (int64_t c = 0; c < cols; ++c) {
      const float xhat = (x[c] - mean[r]) * rstd[r], g = dy[c] * gamma[c];
      a += g;
      b += g * xhat;
      dgamma[c] += dy[c] * xhat;
      dbeta[c] += dy[c];
    }
    for (int64_t c = 0; c < cols; ++c) {
      const float xhat = (x[c] - mean[r]) * rstd[r];
      dx[c] = rstd[r] * (dy[c] * gamma[c] - a / n - xhat * (b / n));
    }
  }
  return 0;
}
