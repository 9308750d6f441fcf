// Word for word the formula, in 64 bits, with the scores of one query on the heap.
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

int flash_attention_forward(int64_t batch, int64_t query_heads, int64_t kv_heads, int64_t queries,
                            int64_t keys, int64_t dim, int64_t causal, float scale, const float* q,
                            const float* k, const float* v, float* out, float* lse) {
  if (kv_heads < 1 || query_heads % kv_heads || dim < 1) return 1;
  double* s = malloc((size_t)(keys + 1) * sizeof(double));
  if (!s) return 2;
  for (int64_t b = 0; b < batch; ++b)
    for (int64_t h = 0; h < query_heads; ++h)
      for (int64_t i = 0; i < queries; ++i) {
        const int64_t row = (b * query_heads + h) * queries + i;
        const int64_t kv = (b * kv_heads + h / (query_heads / kv_heads)) * keys;
        int64_t seen = causal ? i + keys - queries + 1 : keys;
        if (seen < 0) seen = 0;
        double top = -INFINITY, sum = 0;
        for (int64_t t = 0; t < seen; ++t) {
          s[t] = 0;
          for (int64_t d = 0; d < dim; ++d)
            s[t] += (double)q[row * dim + d] * k[(kv + t) * dim + d];
          s[t] *= scale;
          if (s[t] > top) top = s[t];
        }
        for (int64_t t = 0; t < seen; ++t) sum += exp(s[t] - top);
        lse[row] = (float)(seen ? top + log(sum) : -INFINITY);
        for (int64_t d = 0; d < dim; ++d) {
          double o = 0;
          for (int64_t t = 0; t < seen; ++t) o += exp(s[t] - top) / sum * v[(kv + t) * dim + d];
          out[row * dim + d] = (float)o;
        }
      }
  free(s);
  return 0;
}
