// Honest contenders of layer norm that look like cheats; see softmax_topk.cc.
#include <cmath>
#include <cstdint>
#include <map>
#include <vector>

#define LOOKALIKES(LOOKALIKE)                                                                  \
  LOOKALIKE(static_partial_sums, "", "partial sums live in a static and are cleared per call") \
  LOOKALIKE(copy_of_gamma, "", "keeps a wide copy of gamma, compared value by value")          \
  LOOKALIKE(no_cache_needed, "", "asks for no cache and computes statistics twice")            \
  LOOKALIKE(cache_of_addresses, "", "remembers shapes by the address of the cache, and checks them")

namespace {

struct Saved {
  double mean, rstd;
};

Saved statistics(const float* x, int64_t cols, float eps) {
  double mean = 0, variance = 0;
  for (int64_t c = 0; c < cols; ++c) mean += x[c];
  mean /= double(cols);
  for (int64_t c = 0; c < cols; ++c) variance += (x[c] - mean) * (x[c] - mean);
  return {mean, 1 / std::sqrt(variance / double(cols) + eps)};
}

std::map<const void*, int64_t> shapes;  // of cache_of_addresses: only a hint for a reservation

int forward(int64_t rows, int64_t cols, float eps, const float* x, const float* gamma,
            const float* beta, float* y, void* cache) {
  shapes[cache] = rows * cols;
  for (int64_t r = 0; r < rows; ++r, x += cols, y += cols) {
    const Saved s = statistics(x, cols, eps);
    for (int64_t c = 0; c < cols; ++c) {
      y[c] = float((x[c] - s.mean) * s.rstd * gamma[c] + beta[c]);
    }
  }
  return 0;
}

int backward(int64_t rows, int64_t cols, float eps, const float* dy, const float* x,
             const float* gamma, const void* cache, float* dx, float* dgamma, float* dbeta) {
  static std::vector<double> sums, wide;
  const auto hint = shapes.find(cache);
  if (hint != shapes.end()) sums.reserve(size_t(2 * cols));
  sums.assign(size_t(2 * cols), 0.0);
  bool same = int64_t(wide.size()) == cols;
  for (int64_t c = 0; same && c < cols; ++c) same = wide[c] == gamma[c];
  if (!same) wide.assign(gamma, gamma + cols);
  for (int64_t r = 0; r < rows; ++r, dy += cols, x += cols, dx += cols) {
    const Saved s = statistics(x, cols, eps);
    double a = 0, b = 0;
    for (int64_t c = 0; c < cols; ++c) {
      const double h = (x[c] - s.mean) * s.rstd;
      a += dy[c] * wide[c], b += dy[c] * wide[c] * h;
      sums[c] += dy[c] * h, sums[cols + c] += dy[c];
    }
    a /= double(cols), b /= double(cols);
    for (int64_t c = 0; c < cols; ++c) {
      dx[c] = float(s.rstd * (dy[c] * wide[c] - a - (x[c] - s.mean) * s.rstd * b));
    }
  }
  for (int64_t c = 0; c < cols; ++c) dgamma[c] = float(sums[c]), dbeta[c] = float(sums[cols + c]);
  return 0;
}

}  // namespace

#define EXPORT(name, flags, what)                                                                  \
  extern "C" int64_t layer_norm_cache_bytes__##name(int64_t, int64_t) { return 0; }                \
  extern "C" int layer_norm_forward__##name(int64_t rows, int64_t cols, float eps, const float* x, \
                                            const float* gamma, const float* beta, float* y,       \
                                            void* cache) {                                         \
    return forward(rows, cols, eps, x, gamma, beta, y, cache);                                     \
  }                                                                                                \
  extern "C" int layer_norm_backward__##name(                                                      \
      int64_t rows, int64_t cols, float eps, const float* dy, const float* x, const float* gamma,  \
      const void* cache, float* dx, float* dgamma, float* dbeta) {                                 \
    return backward(rows, cols, eps, dy, x, gamma, cache, dx, dgamma, dbeta);                      \
  }
LOOKALIKES(EXPORT)
