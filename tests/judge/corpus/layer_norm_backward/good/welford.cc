// Welford's running mean and variance, in double; the columns of dgamma are walked one by one, so
// that no scratch memory is needed.
#include <cmath>
#include <cstdint>

namespace {
struct Running {
  double count = 0, mean = 0, squares = 0;
  void add(double value) {
    count += 1;
    const double delta = value - mean;
    mean += delta / count;
    squares += delta * (value - mean);
  }
};
struct Saved {
  double mean, rstd;
};
}  // namespace

extern "C" int64_t layer_norm_cache_bytes(int64_t rows, int64_t) {
  return rows * static_cast<int64_t>(sizeof(Saved));
}

extern "C" int layer_norm_forward(int64_t rows, int64_t cols, float eps, const float* x,
                                  const float* gamma, const float* beta, float* y, void* cache) {
  auto* saved = static_cast<Saved*>(cache);
  for (int64_t r = 0; r < rows; ++r, x += cols, y += cols) {
    Running running;
    for (int64_t c = 0; c < cols; ++c) running.add(x[c]);
    const double rstd = 1 / std::sqrt(running.squares / running.count + eps);
    saved[r] = {running.mean, rstd};
    for (int64_t c = 0; c < cols; ++c) {
      y[c] = static_cast<float>((x[c] - running.mean) * rstd * gamma[c] + beta[c]);
    }
  }
  return 0;
}

extern "C" int layer_norm_backward(int64_t rows, int64_t cols, float, const float* dy,
                                   const float* x, const float* gamma, const void* cache, float* dx,
                                   float* dgamma, float* dbeta) {
  const auto* saved = static_cast<const Saved*>(cache);
  for (int64_t r = 0; r < rows; ++r) {
    const float* d = dy + r * cols;
    const float* row = x + r * cols;
    double a = 0, b = 0;
    for (int64_t c = cols - 1; c >= 0; --c) {
      const double g = double{d[c]} * gamma[c];
      a += g;
      b += g * ((row[c] - saved[r].mean) * saved[r].rstd);
    }
    a /= static_cast<double>(cols);
    b /= static_cast<double>(cols);
    for (int64_t c = 0; c < cols; ++c) {
      const double xhat = (row[c] - saved[r].mean) * saved[r].rstd;
      dx[r * cols + c] =
          static_cast<float>(saved[r].rstd * (double{d[c]} * gamma[c] - a - xhat * b));
    }
  }
  for (int64_t c = 0; c < cols; ++c) {
    double g = 0, b = 0;
    for (int64_t r = 0; r < rows; ++r) {
      g += dy[r * cols + c] * ((x[r * cols + c] - saved[r].mean) * saved[r].rstd);
      b += dy[r * cols + c];
    }
    dgamma[c] = static_cast<float>(g);
    dbeta[c] = static_cast<float>(b);
  }
  return 0;
}
