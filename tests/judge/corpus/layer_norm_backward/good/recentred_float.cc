// Float arithmetic throughout, made safe: the row is scaled by a power of two so that squares
// neither overflow nor vanish, sums are pairwise, and what rounding took from the mean is found by
// summing the differences a second time.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace {

struct Saved {
  float mean, residual, rstd;  // (x - mean) - residual is the centred value
};

template <class Term>
float pairwise(int64_t begin, int64_t end, const Term& term) {
  if (end - begin <= 16) {
    float sum = 0;
    for (int64_t i = begin; i < end; ++i) sum += term(i);
    return sum;
  }
  const int64_t middle = begin + (end - begin) / 2;
  return pairwise(begin, middle, term) + pairwise(middle, end, term);
}

Saved statistics_of(const float* x, int64_t cols, float eps) {
  const float n = static_cast<float>(cols);
  float top = 0;
  for (int64_t c = 0; c < cols; ++c) top = std::max(top, std::fabs(x[c]));
  const int sum_exponent = top > 0 && std::isfinite(top) ? std::ilogb(top) : 0;
  const float shrink = std::ldexp(1.0f, std::clamp(-sum_exponent, -126, 126));
  float mean = pairwise(0, cols, [&](int64_t c) { return x[c] * shrink; }) / n / shrink;
  if (!(std::fabs(mean) <= top)) mean = std::isnan(mean) ? mean : std::copysign(top, mean);
  const float residual =
      pairwise(0, cols, [&](int64_t c) { return (x[c] - mean) * shrink; }) / n / shrink;
  float spread = 0;
  for (int64_t c = 0; c < cols; ++c) spread = std::max(spread, std::fabs(x[c] - mean - residual));
  const int exponent = spread > 0 && std::isfinite(spread) ? std::ilogb(spread) : 0;
  const float scale = std::ldexp(1.0f, std::clamp(-exponent, -120, 120));
  const float squares = pairwise(0, cols, [&](int64_t c) {
    const float d = (x[c] - mean - residual) * scale;
    return d * d;
  });
  const double variance = double{squares / n} / scale / scale;
  return {mean, residual, static_cast<float>(1 / std::sqrt(variance + eps))};
}

}  // namespace

extern "C" int64_t layer_norm_cache_bytes(int64_t rows, int64_t) {
  return rows * static_cast<int64_t>(sizeof(Saved));
}

extern "C" int layer_norm_forward(int64_t rows, int64_t cols, float eps, const float* x,
                                  const float* gamma, const float* beta, float* y, void* cache) {
  auto* saved = static_cast<Saved*>(cache);
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = x + r * cols;
    const Saved s = saved[r] = statistics_of(row, cols, eps);
    for (int64_t c = 0; c < cols; ++c) {
      y[r * cols + c] = (row[c] - s.mean - s.residual) * s.rstd * gamma[c] + beta[c];
    }
  }
  return 0;
}

extern "C" int layer_norm_backward(int64_t rows, int64_t cols, float, const float* dy,
                                   const float* x, const float* gamma, const void* cache, float* dx,
                                   float* dgamma, float* dbeta) {
  const auto* saved = static_cast<const Saved*>(cache);
  const auto xhat = [&](int64_t r, int64_t c) {
    return (x[r * cols + c] - saved[r].mean - saved[r].residual) * saved[r].rstd;
  };
  for (int64_t r = 0; r < rows; ++r) {
    const float* d = dy + r * cols;
    const float n = static_cast<float>(cols);
    const float a = pairwise(0, cols, [&](int64_t c) { return d[c] * gamma[c]; }) / n;
    const float b = pairwise(0, cols, [&](int64_t c) { return d[c] * gamma[c] * xhat(r, c); }) / n;
    for (int64_t c = 0; c < cols; ++c) {
      dx[r * cols + c] = saved[r].rstd * (d[c] * gamma[c] - a - xhat(r, c) * b);
    }
  }
  for (int64_t c = 0; c < cols; ++c) {
    dgamma[c] = pairwise(0, rows, [&](int64_t r) { return dy[r * cols + c] * xhat(r, c); });
    dbeta[c] = pairwise(0, rows, [&](int64_t r) { return dy[r * cols + c]; });
  }
  return 0;
}
