// Token embedding in float64: the specification the kernels are held to.
//
//   y[n] = scale * W[tokens[n]];   dweight[v] = scale * sum of the dy[n] with tokens[n] = v
//
// Deliberately naive and templated on the scalar; see norm.h.
#pragma once

#include <cstdint>

namespace touchstone::oracle {

template <class S>
struct Embedding {
  int64_t count = 0;
  int64_t dim = 0;
  double scale = 1;
  const int64_t* tokens = nullptr;  // [count]
  const S* weight = nullptr;        // [vocabulary, dim]
  S* y = nullptr;                   // [count, dim]
};

template <class S>
void embedding_forward(const Embedding<S>& a) {
  for (int64_t n = 0; n < a.count; ++n) {
    for (int64_t d = 0; d < a.dim; ++d) {
      a.y[n * a.dim + d] = a.scale * a.weight[a.tokens[n] * a.dim + d];
    }
  }
}

}  // namespace touchstone::oracle
