// Sums by halves, in float32, as templates over what is summed; the cache holds x - mean and nothing
// else, and the deviation is summed again in the backward.
#include <cmath>
#include <cstdint>
#include <vector>

namespace {

template <class Term>
float halves(int64_t begin, int64_t end, const Term& term) {
  if (end - begin <= 8) {
    float sum = 0;
    for (int64_t i = begin; i < end; ++i) sum += term(i);
    return sum;
  }
  const int64_t middle = begin + (end - begin) / 2;
  return halves(begin, middle, term) + halves(middle, end, term);
}

template <class Term>
float mean(int64_t count, const Term& term) {
  return halves(0, count, term) / float(count);
}

// The largest magnitude as a power of two: squares stay in range.
float unit_of(const float* d, int64_t cols) {
  float most = 0;
  for (int64_t c = 0; c < cols; ++c) most = std::fmax(most, std::fabs(d[c]));
  return most > 0 && std::isfinite(most) ? std::ldexp(1.0f, std::ilogb(most)) : 1;
}

float rstd_of(const float* d, int64_t cols, float eps) {
  const float unit = unit_of(d, cols);
  const double variance = mean(cols, [&](int64_t c) { return d[c] / unit * (d[c] / unit); });
  return float(1 / std::sqrt(variance * unit * unit + double(eps)));
}

}  // namespace

extern "C" int64_t layer_norm_cache_bytes(int64_t rows, int64_t cols) { return 4 * rows * cols; }

extern "C" int layer_norm_forward(int64_t rows, int64_t cols, float eps, const float* x,
                                  const float* gamma, const float* beta, float* y, void* cache) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* const row = x + r * cols;
    float* const d = static_cast<float*>(cache) + r * cols;
    // Shifted by the first element, the mean of the rest is small.
    const float shift = row[0];
    const float center = mean(cols, [&](int64_t c) { return row[c] - shift; });
    for (int64_t c = 0; c < cols; ++c) d[c] = row[c] - shift - center;
    const float rstd = rstd_of(d, cols, eps);
    for (int64_t c = 0; c < cols; ++c) y[r * cols + c] = d[c] * rstd * gamma[c] + beta[c];
  }
  return 0;
}

extern "C" int layer_norm_backward(int64_t rows, int64_t cols, float eps, const float* dy,
                                   const float* x, const float* gamma, const void* cache, float* dx,
                                   float* dgamma, float* dbeta) {
  const float* const centered = static_cast<const float*>(cache);
  std::vector<float> rstd(static_cast<size_t>(rows));
  for (int64_t r = 0; r < rows; ++r) {
    const float *d = centered + r * cols, *g = dy + r * cols;
    const float scale = rstd[static_cast<size_t>(r)] = rstd_of(d, cols, eps);
    const float c1 = mean(cols, [&](int64_t c) { return g[c] * gamma[c]; });
    const float c2 = mean(cols, [&](int64_t c) { return g[c] * gamma[c] * (d[c] * scale); });
    for (int64_t c = 0; c < cols; ++c) {
      dx[r * cols + c] = scale * (g[c] * gamma[c] - c1 - d[c] * scale * c2);
    }
  }
  for (int64_t c = 0; c < cols; ++c) {
    dbeta[c] = halves(0, rows, [&](int64_t r) { return dy[r * cols + c]; });
    dgamma[c] = halves(0, rows, [&](int64_t r) {
      return dy[r * cols + c] * (centered[r * cols + c] * rstd[static_cast<size_t>(r)]);
    });
  }
  return 0;
}
