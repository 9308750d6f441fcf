// Contenders that do not do the work. Built and named as mutants.cc is.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#define TRIVIALS(TRIVIAL)                                                          \
  TRIVIAL(zeros, "all outputs are 0")                                              \
  TRIVIAL(ones, "all outputs are 1")                                               \
  TRIVIAL(nans, "all outputs are NaN")                                             \
  TRIVIAL(copy, "y is x, dx is dy: right enough for rows that are normal already") \
  TRIVIAL(input_mean, "all outputs are the mean of the input")                     \
  TRIVIAL(noise, "all outputs are random")                                         \
  TRIVIAL(unwritten, "nothing is written")                                         \
  TRIVIAL(previous, "the answer of the call before")                               \
  TRIVIAL(correct_once, "right the first time, zeros from then on")                \
  TRIVIAL(forward_only, "the backward is zeros")                                   \
  TRIVIAL(refuses, "every call is an error")

namespace {

#define NAME(name, what) name,
enum Kind { TRIVIALS(NAME) };
#undef NAME

void right_forward(int64_t rows, int64_t cols, float eps, const float* x, const float* gamma,
                   const float* beta, float* y) {
  for (int64_t r = 0; r < rows; ++r, x += cols, y += cols) {
    double mean = 0, variance = 0;
    for (int64_t c = 0; c < cols; ++c) mean += x[c] / double(cols);
    for (int64_t c = 0; c < cols; ++c) variance += (x[c] - mean) * (x[c] - mean) / double(cols);
    for (int64_t c = 0; c < cols; ++c) {
      y[c] = float((x[c] - mean) / std::sqrt(variance + eps) * gamma[c] + beta[c]);
    }
  }
}

void right_backward(int64_t rows, int64_t cols, float eps, const float* dy, const float* x,
                    const float* gamma, float* dx, float* dgamma, float* dbeta) {
  std::vector<double> dg(static_cast<size_t>(cols)), db(dg), h(dg);
  for (int64_t r = 0; r < rows; ++r, x += cols, dy += cols, dx += cols) {
    double mean = 0, variance = 0, a = 0, b = 0;
    for (int64_t c = 0; c < cols; ++c) mean += x[c] / double(cols);
    for (int64_t c = 0; c < cols; ++c) variance += (x[c] - mean) * (x[c] - mean) / double(cols);
    const double rstd = 1 / std::sqrt(variance + eps);
    for (int64_t c = 0; c < cols; ++c) {
      h[c] = (x[c] - mean) * rstd;
      dg[c] += dy[c] * h[c], db[c] += dy[c];
      a += double{dy[c]} * gamma[c] / double(cols), b += dy[c] * gamma[c] * h[c] / double(cols);
    }
    for (int64_t c = 0; c < cols; ++c) dx[c] = float(rstd * (dy[c] * gamma[c] - a - h[c] * b));
  }
  for (int64_t c = 0; c < cols; ++c) dgamma[c] = float(dg[c]), dbeta[c] = float(db[c]);
}

// Puts something into n outputs; `right` holds the answer and `before` the answer of the last call.
void fill(Kind kind, int64_t n, const float* like, int64_t like_n, const std::vector<float>& right,
          std::vector<float>& before, bool first, float* out) {
  static std::minstd_rand random(7);
  double mean = 0;
  for (int64_t i = 0; i < like_n; ++i) mean += like[i] / double(like_n);
  for (int64_t i = 0; i < n; ++i) {
    switch (kind) {
      case ones:
        out[i] = 1;
        break;
      case nans:
        out[i] = NAN;
        break;
      case copy:
        out[i] = like_n ? like[i % like_n] : 0;
        break;
      case input_mean:
        out[i] = float(mean);
        break;
      case noise:
        out[i] = float(random() % 2000) / 1000 - 1;
        break;
      case unwritten:
        break;
      case previous:
        out[i] = size_t(i) < before.size() ? before[i] : 0;
        break;
      case correct_once:
        out[i] = first ? right[i] : 0;
        break;
      default:
        out[i] = 0;
    }
  }
  before = right;
}

int forward(Kind kind, int64_t rows, int64_t cols, float eps, const float* x, const float* gamma,
            const float* beta, float* y) {
  if (kind == refuses) return 1;
  static std::vector<float> before;
  static bool first = true;
  std::vector<float> right(static_cast<size_t>(rows * cols));
  right_forward(rows, cols, eps, x, gamma, beta, right.data());
  if (kind == forward_only) {
    std::copy(right.begin(), right.end(), y);
    return 0;
  }
  fill(kind, rows * cols, x, rows * cols, right, before, first, y);
  first = false;
  return 0;
}

int backward(Kind kind, int64_t rows, int64_t cols, float eps, const float* dy, const float* x,
             const float* gamma, float* dx, float* dgamma, float* dbeta) {
  if (kind == refuses) return 1;
  static std::vector<float> before[3];
  static bool first = true;
  std::vector<float> a(static_cast<size_t>(rows * cols)), b(static_cast<size_t>(cols)), c(b);
  right_backward(rows, cols, eps, dy, x, gamma, a.data(), b.data(), c.data());
  fill(kind, rows * cols, dy, rows * cols, a, before[0], first, dx);
  fill(kind, cols, dy, std::min(cols, rows * cols), b, before[1], first, dgamma);
  fill(kind, cols, dy, std::min(cols, rows * cols), c, before[2], first, dbeta);
  first = false;
  return 0;
}

}  // namespace

#define EXPORT(name, what)                                                                         \
  extern "C" int64_t layer_norm_cache_bytes__##name(int64_t, int64_t) { return 0; }                \
  extern "C" int layer_norm_forward__##name(int64_t rows, int64_t cols, float eps, const float* x, \
                                            const float* gamma, const float* beta, float* y,       \
                                            void*) {                                               \
    return forward(name, rows, cols, eps, x, gamma, beta, y);                                      \
  }                                                                                                \
  extern "C" int layer_norm_backward__##name(                                                      \
      int64_t rows, int64_t cols, float eps, const float* dy, const float* x, const float* gamma,  \
      const void*, float* dx, float* dgamma, float* dbeta) {                                       \
    return backward(name, rows, cols, eps, dy, x, gamma, dx, dgamma, dbeta);                       \
  }
TRIVIALS(EXPORT)
