// This library as a contender: the task's functions in terms of touchstone::layer_norm.
#include <touchstone/touchstone.h>

#include <cstdint>
#include <exception>

namespace {

// Makes threads once; calls come from one thread.
touchstone::Context& context() {
  static touchstone::Context instance;
  return instance;
}

}  // namespace

extern "C" int64_t layer_norm_cache_bytes(int64_t rows, int64_t /*cols*/) {
  return rows * 2 * static_cast<int64_t>(sizeof(float));  // mean, rstd
}

extern "C" int layer_norm_forward(int64_t rows, int64_t cols, float eps, const float* x,
                                  const float* gamma, const float* beta, float* y,
                                  void* cache) try {
  using touchstone::make_view;
  auto* statistics = static_cast<float*>(cache);
  touchstone::layer_norm(context(), {.x = make_view(x, {rows, cols}),
                                     .weight = make_view(gamma, {cols}),
                                     .bias = make_view(beta, {cols}),
                                     .y = make_view(y, {rows, cols}),
                                     .mean = make_view(statistics, {rows}),
                                     .rstd = make_view(statistics + rows, {rows}),
                                     .eps = static_cast<double>(eps)});
  return 0;
} catch (const std::exception&) {
  return 1;
}

extern "C" int layer_norm_backward(int64_t rows, int64_t cols, float /*eps*/, const float* dy,
                                   const float* x, const float* gamma, const void* cache, float* dx,
                                   float* dgamma, float* dbeta) try {
  using touchstone::make_view;
  const auto* statistics = static_cast<const float*>(cache);
  touchstone::layer_norm_backward(context(), {.dy = make_view(dy, {rows, cols}),
                                              .x = make_view(x, {rows, cols}),
                                              .mean = make_view(statistics, {rows}),
                                              .rstd = make_view(statistics + rows, {rows}),
                                              .weight = make_view(gamma, {cols}),
                                              .dx = make_view(dx, {rows, cols}),
                                              .dweight = make_view(dgamma, {cols}),
                                              .dbias = make_view(dbeta, {cols})});
  return 0;
} catch (const std::exception&) {
  return 1;
}
