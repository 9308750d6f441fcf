#include "theirs.h"

#include <cmath>

namespace {

float product(const float* a, const float* b, int width) {
  float sum = 0;
  for (int d = 0; d < width; ++d) sum += a[d] * b[d];
  return sum;
}

}  // namespace

void attend_backward(const Gradients& to, const float* gradient, const float* query,
                     const float* keys, const float* values, const float* answer, float log_sum,
                     int seen, int width, float factor) {
  const float own = product(gradient, answer, width);
  for (int t = 0; t < seen; ++t) {
    const float* key = keys + t * width;
    const float weight = std::exp(product(query, key, width) * factor - log_sum);
    const float change = weight * (product(gradient, values + t * width, width) - own) * factor;
    for (int d = 0; d < width; ++d) {
      to.query[d] += change * key[d];
      to.keys[t * width + d] += change * query[d];
      to.values[t * width + d] += weight * gradient[d];
    }
  }
}
