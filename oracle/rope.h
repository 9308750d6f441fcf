// Rotary position embedding in float64: the specification the kernels are held to.
//
//   a = position * frequency;  (x, x') -> scale * (x cos a - x' sin a, x' cos a + x sin a)
//
// Deliberately naive and templated on the scalar; see norm.h.
#pragma once

#include <cmath>
#include <cstdint>

namespace touchstone::oracle {

template <class S>
struct Rope {
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t dim = 0;
  int64_t pairs = 0;
  bool adjacent = false;
  double scale = 1;
  const int64_t* positions = nullptr;   // [tokens]
  const double* frequencies = nullptr;  // [pairs]
  const S* x = nullptr;                 // [tokens, heads, dim]
  S* y = nullptr;                       // [tokens, heads, dim]
};

template <class S>
void rope_forward(const Rope<S>& a) {
  for (int64_t row = 0; row < a.tokens * a.heads; ++row) {
    const S* x = a.x + row * a.dim;
    S* y = a.y + row * a.dim;
    for (int64_t i = 0; i < a.pairs; ++i) {
      const double angle = static_cast<double>(a.positions[row / a.heads]) * a.frequencies[i];
      const int64_t first = a.adjacent ? 2 * i : i;
      const int64_t second = a.adjacent ? 2 * i + 1 : i + a.pairs;
      y[first] = a.scale * (x[first] * std::cos(angle) - x[second] * std::sin(angle));
      y[second] = a.scale * (x[second] * std::cos(angle) + x[first] * std::sin(angle));
    }
    for (int64_t d = 2 * a.pairs; d < a.dim; ++d) y[d] = x[d];
  }
}

}  // namespace touchstone::oracle
