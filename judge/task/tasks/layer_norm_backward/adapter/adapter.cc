// From the contract of the task to the functions that were found. An adapter passes things on; it
// computes nothing.
#include <cstdint>
#include <cstring>

#include "theirs.h"

extern "C" int64_t layer_norm_cache_bytes(int64_t rows, int64_t) {
  return rows * 2 * static_cast<int64_t>(sizeof(float));
}

extern "C" int layer_norm_forward(int64_t rows, int64_t cols, float eps, const float* x,
                                  const float* gamma, const float* beta, float* y, void* cache) {
  RowStats stats;
  ln_fwd(y, stats, x, gamma, beta, rows, cols, eps);
  if (rows == 0) return 0;
  auto* kept = static_cast<float*>(cache);
  std::memcpy(kept, stats.mean.data(), rows * sizeof(float));
  std::memcpy(kept + rows, stats.rstd.data(), rows * sizeof(float));
  return 0;
}

extern "C" int layer_norm_backward(int64_t rows, int64_t cols, float, const float* dy,
                                   const float* x, const float* gamma, const void* cache, float* dx,
                                   float* dgamma, float* dbeta) {
  const auto* kept = static_cast<const float*>(cache);
  RowStats stats;
  stats.mean.assign(kept, kept + rows);
  stats.rstd.assign(kept + rows, kept + 2 * rows);
  ln_bwd(dx, dgamma, dbeta, dy, x, gamma, stats, rows, cols);
  return 0;
}
