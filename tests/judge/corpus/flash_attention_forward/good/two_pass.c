// One query at a time in two passes over its keys: the maximum first, then weights and sums; the
// scores are computed twice and never stored. Float.
#include <math.h>
#include <stdint.h>

static float score(int64_t dim, float scale, const float* q, const float* k) {
  float sum = 0;
  for (int64_t d = 0; d < dim; ++d) sum += scale * q[d] * k[d];
  return sum;
}

int flash_attention_forward(int64_t batch, int64_t query_heads, int64_t kv_heads, int64_t queries,
                            int64_t keys, int64_t dim, int64_t causal, float scale, const float* q,
                            const float* k, const float* v, float* out, float* lse) {
  if (kv_heads < 1 || query_heads % kv_heads || dim < 1) return 1;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < query_heads; ++h) {
      const int64_t kv = b * kv_heads + h / (query_heads / kv_heads);
      const float* key = k + kv * keys * dim;
      const float* value = v + kv * keys * dim;
      for (int64_t i = 0; i < queries; ++i, q += dim, out += dim, ++lse) {
        const int64_t seen = causal ? i + keys - queries + 1 : keys;
        float top = -INFINITY, sum = 0;
        for (int64_t t = 0; t < seen; ++t) top = fmaxf(top, score(dim, scale, q, key + t * dim));
        for (int64_t d = 0; d < dim; ++d) out[d] = 0;
        for (int64_t t = 0; t < seen; ++t) {
          const float w = expf(score(dim, scale, q, key + t * dim) - top);
          sum += w;
          for (int64_t d = 0; d < dim; ++d) out[d] += w * value[t * dim + d];
        }
        if (sum > 0)
          for (int64_t d = 0; d < dim; ++d) out[d] /= sum;
        *lse = sum > 0 ? top + logf(sum) : -INFINITY;
      }
    }
  }
  return 0;
}
