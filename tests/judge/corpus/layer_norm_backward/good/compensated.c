// Neumaier's compensated sums and long double: slow, exact to the last bit or nearly so. The cache
// is not used for anything but a mark: the backward computes the statistics again.
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct {
  long double sum, lost;
} Sum;

static void add(Sum* s, long double value) {
  const long double t = s->sum + value;
  s->lost += fabsl(s->sum) >= fabsl(value) ? (s->sum - t) + value : (value - t) + s->sum;
  s->sum = t;
}

// With NaN or infinity the correction is NaN and says nothing.
static long double total(const Sum* s) { return isfinite(s->lost) ? s->sum + s->lost : s->sum; }

static void statistics(const float* x, int64_t cols, float eps, long double* mean,
                       long double* rstd) {
  Sum sum = {0, 0}, squares = {0, 0};
  for (int64_t c = 0; c < cols; ++c) add(&sum, x[c]);
  *mean = total(&sum) / cols;
  for (int64_t c = 0; c < cols; ++c) add(&squares, (x[c] - *mean) * (x[c] - *mean));
  *rstd = 1 / sqrtl(total(&squares) / cols + eps);
}

int64_t layer_norm_cache_bytes(int64_t rows, int64_t cols) {
  (void)cols;
  return rows;
}

int layer_norm_forward(int64_t rows, int64_t cols, float eps, const float* x, const float* gamma,
                       const float* beta, float* y, void* cache) {
  for (int64_t r = 0; r < rows; ++r) {
    long double mean, rstd;
    statistics(x + r * cols, cols, eps, &mean, &rstd);
    ((unsigned char*)cache)[r] = 1;
    for (int64_t c = 0; c < cols; ++c) {
      y[r * cols + c] = (float)((x[r * cols + c] - mean) * rstd * gamma[c] + beta[c]);
    }
  }
  return 0;
}

int layer_norm_backward(int64_t rows, int64_t cols, float eps, const float* dy, const float* x,
                        const float* gamma, const void* cache, float* dx, float* dgamma,
                        float* dbeta) {
  for (int64_t r = 0; r < rows; ++r) {
    if (((const unsigned char*)cache)[r] != 1) return 1;
  }
  Sum* dg = calloc(2 * (size_t)cols, sizeof(Sum));
  if (!dg) return 2;
  Sum* db = dg + cols;
  for (int64_t r = 0; r < rows; ++r) {
    const float *d = dy + r * cols, *row = x + r * cols;
    long double mean, rstd;
    Sum a = {0, 0}, b = {0, 0};
    statistics(row, cols, eps, &mean, &rstd);
    for (int64_t c = 0; c < cols; ++c) {
      const long double g = (long double)d[c] * gamma[c];
      add(&a, g);
      add(&b, g * (row[c] - mean) * rstd);
    }
    for (int64_t c = 0; c < cols; ++c) {
      const long double xhat = (row[c] - mean) * rstd, g = (long double)d[c] * gamma[c];
      dx[r * cols + c] = (float)(rstd * (g - total(&a) / cols - xhat * (total(&b) / cols)));
      add(&dg[c], d[c] * xhat);
      add(&db[c], d[c]);
    }
  }
  for (int64_t c = 0; c < cols; ++c) {
    dgamma[c] = (float)total(&dg[c]);
    dbeta[c] = (float)total(&db[c]);
  }
  free(dg);
  return 0;
}
