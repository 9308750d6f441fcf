// This library as a contender: the task's functions in terms of its C API.
#include <touchstone/touchstone_c.h>

#include <cstdint>

namespace {

// Makes threads once; calls come from one thread.
ts_context* context() {
  static ts_context* const instance = [] {
    ts_context* made = nullptr;
    ts_context_create(nullptr, &made);
    return made;
  }();
  return instance;
}

ts_tensor matrix(const float* data, int64_t rows, int64_t cols) {
  const int64_t shape[] = {rows, cols};
  return ts_make_tensor(data, TS_F32, TS_CPU, 2, shape);
}

ts_tensor vector(const float* data, int64_t size) {
  return ts_make_tensor(data, TS_F32, TS_CPU, 1, &size);
}

}  // namespace

extern "C" int64_t layer_norm_cache_bytes(int64_t rows, int64_t /*cols*/) {
  return rows * 2 * static_cast<int64_t>(sizeof(float));  // mean, rstd
}

extern "C" int layer_norm_forward(int64_t rows, int64_t cols, float eps, const float* x,
                                  const float* gamma, const float* beta, float* y, void* cache) {
  const auto* statistics = static_cast<const float*>(cache);
  ts_layer_norm_args args = TS_LAYER_NORM_ARGS;
  args.x = matrix(x, rows, cols);
  args.weight = vector(gamma, cols);
  args.bias = vector(beta, cols);
  args.y = matrix(y, rows, cols);
  args.mean = vector(statistics, rows);
  args.rstd = vector(statistics + rows, rows);
  args.eps = static_cast<double>(eps);
  return ts_layer_norm(context(), &args) == TS_OK ? 0 : 1;
}

extern "C" int layer_norm_backward(int64_t rows, int64_t cols, float /*eps*/, const float* dy,
                                   const float* x, const float* gamma, const void* cache, float* dx,
                                   float* dgamma, float* dbeta) {
  const auto* statistics = static_cast<const float*>(cache);
  ts_layer_norm_backward_args args = TS_LAYER_NORM_BACKWARD_ARGS;
  args.dy = matrix(dy, rows, cols);
  args.x = matrix(x, rows, cols);
  args.mean = vector(statistics, rows);
  args.rstd = vector(statistics + rows, rows);
  args.weight = vector(gamma, cols);
  args.dx = matrix(dx, rows, cols);
  args.dweight = vector(dgamma, cols);
  args.dbias = vector(dbeta, cols);
  return ts_layer_norm_backward(context(), &args) == TS_OK ? 0 : 1;
}
