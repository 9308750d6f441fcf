// Checks a backward written by hand: y = softmax(x * w) along each row.
//
// The check needs the forward as a template on the scalar, and the gradients that the backward
// computed for one cotangent. Here the second backward has a classic bug, found and located.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "touchstone/gradcheck.h"

namespace gc = touchstone::gradcheck;
using Array = std::vector<double>;

template <class S>
void forward(int64_t rows, int64_t cols, const S* x, const S* w, S* y) {
  using std::exp;
  using std::max;
  for (int64_t i = 0; i < rows; ++i, x += cols, y += cols) {
    S top = x[0] * w[0];
    for (int64_t j = 1; j < cols; ++j) top = max(top, S(x[j] * w[j]));
    S sum = 0.0;
    for (int64_t j = 0; j < cols; ++j) sum += y[j] = exp(x[j] * w[j] - top);
    for (int64_t j = 0; j < cols; ++j) y[j] /= sum;
  }
}

// The code under test. With `forget` the last row is dropped from the sum over rows in dw, as a
// kernel does whose row count is not a multiple of its block.
void backward(int64_t rows, int64_t cols, const Array& dy, const Array& x, const Array& w,
              Array& dx, Array& dw, bool forget) {
  Array y(x.size());
  forward(rows, cols, x.data(), w.data(), y.data());
  std::fill(dw.begin(), dw.end(), 0.0);
  for (int64_t i = 0; i < rows; ++i) {
    const size_t row = static_cast<size_t>(i * cols);
    const size_t width = static_cast<size_t>(cols);
    double dot = 0.0;
    for (size_t j = 0; j < width; ++j) dot += dy[row + j] * y[row + j];
    for (size_t j = 0; j < width; ++j) {
      const double dz = y[row + j] * (dy[row + j] - dot);
      dx[row + j] = dz * w[j];
      if (!forget || i + 1 < rows) dw[j] += dz * x[row + j];
    }
  }
}

gc::Report check(int64_t rows, int64_t cols, bool forget) {
  const Array x = gc::random_values(rows * cols, 1);
  const Array w = gc::random_values(cols, 2);
  const Array dy = gc::random_values(rows * cols, 3);
  Array dx(x.size());
  Array dw(w.size());
  backward(rows, cols, dy, x, w, dx, dw, forget);

  return gc::check(
      {.inputs = {{.name = "x", .shape = {rows, cols}, .value = x, .grad = dx, .per_row = true},
                  {.name = "w", .shape = {cols}, .value = w, .grad = dw}},
       .outputs = {{.name = "y", .shape = {rows, cols}, .cotangent = dy}},
       .independent_rows = rows},
      [&](const gc::DualSlice& s) {
        forward(s.rows, cols, s.in[0].data(), s.in[1].data(), s.out[0].data());
      });
}

int main() {
  const gc::Report right = check(1000, 257, false);
  const gc::Report wrong = check(1000, 257, true);
  std::printf("softmax backward, 1000 x 257:\n  as written:           %s\n",
              right.summary().c_str());
  std::printf("  without the last row: %s\n", wrong.summary().c_str());
  return right.ok && !wrong.ok ? 0 : 1;
}
