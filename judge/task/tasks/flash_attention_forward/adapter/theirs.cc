#include "theirs.h"

#include <algorithm>
#include <cmath>

int visible(int query, int queries, int keys, bool masked) {
  return masked ? std::max(0, query + keys - queries + 1) : keys;
}

void attend(float* result, float* maximum, float* sum, const float* query, const KeysAndValues& kv,
            int seen, int width, float factor) {
  std::fill(result, result + width, 0.0f);
  *maximum = *sum = 0;
  for (int t = 0; t < seen; ++t) {
    float score = 0;
    for (int d = 0; d < width; ++d) score += query[d] * kv.keys[t * width + d];
    score *= factor;
    if (t == 0 || score > *maximum) {
      const float shrink = t == 0 ? 0 : std::exp(*maximum - score);
      *sum *= shrink;
      for (int d = 0; d < width; ++d) result[d] *= shrink;
      *maximum = score;
    }
    const float weight = std::exp(score - *maximum);
    *sum += weight;
    for (int d = 0; d < width; ++d) result[d] += weight * kv.values[t * width + d];
  }
  for (int d = 0; d<width&& * sum> 0; ++d) result[d] /= *sum;
}
