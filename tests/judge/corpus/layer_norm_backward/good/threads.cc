// Two threads share the rows; each has its own sums, merged in the order of the threads.
#include <cmath>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

constexpr int kThreads = 2;

template <class Work>
void share(int64_t rows, Work work) {
  std::vector<std::thread> threads;
  for (int t = 1; t < kThreads; ++t) {
    threads.emplace_back([=] { work(t, rows * t / kThreads, rows * (t + 1) / kThreads); });
  }
  work(0, 0, rows / kThreads);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

extern "C" int64_t layer_norm_cache_bytes(int64_t rows, int64_t) { return rows * 16; }

extern "C" int layer_norm_forward(int64_t rows, int64_t cols, float eps, const float* x,
                                  const float* gamma, const float* beta, float* y, void* cache) {
  auto* mean = static_cast<double*>(cache);
  double* rstd = mean + rows;
  share(rows, [=](int, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
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
  });
  return 0;
}

extern "C" int layer_norm_backward(int64_t rows, int64_t cols, float, const float* dy,
                                   const float* x, const float* gamma, const void* cache, float* dx,
                                   float* dgamma, float* dbeta) {
  const auto* mean = static_cast<const double*>(cache);
  const double* rstd = mean + rows;
  std::vector<double> sums(static_cast<size_t>(kThreads * 2 * cols));
  double* all = sums.data();
  share(rows, [=](int thread, int64_t begin, int64_t end) {
    double* dg = all + thread * 2 * cols;
    for (int64_t r = begin; r < end; ++r) {
      double a = 0, b = 0;
      for (int64_t c = 0; c < cols; ++c) {
        const double xhat = (x[r * cols + c] - mean[r]) * rstd[r];
        const double g = double{dy[r * cols + c]} * gamma[c];
        a += g, b += g * xhat;
        dg[c] += dy[r * cols + c] * xhat, dg[cols + c] += dy[r * cols + c];
      }
      a /= static_cast<double>(cols), b /= static_cast<double>(cols);
      for (int64_t c = 0; c < cols; ++c) {
        const double xhat = (x[r * cols + c] - mean[r]) * rstd[r];
        const double g = double{dy[r * cols + c]} * gamma[c];
        dx[r * cols + c] = static_cast<float>(rstd[r] * (g - a - xhat * b));
      }
    }
  });
  for (int64_t c = 0; c < cols; ++c) {
    double g = 0, b = 0;
    for (int t = 0; t < kThreads; ++t) g += all[t * 2 * cols + c], b += all[(t * 2 + 1) * cols + c];
    dgamma[c] = static_cast<float>(g), dbeta[c] = static_cast<float>(b);
  }
  return 0;
}
