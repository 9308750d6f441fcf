// Neither the output nor lse of the forward is used: the softmax is made again in two passes, and
// delta is the sum of P * dP over the row. Sums in 64 bits.
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

int flash_attention_backward(int64_t batch, int64_t query_heads, int64_t kv_heads, int64_t queries,
                             int64_t keys, int64_t dim, int64_t causal, float scale,
                             const float* dout, const float* q, const float* k, const float* v,
                             const float* out, const float* lse, float* dq, float* dk, float* dv) {
  (void)out;
  (void)lse;
  if (kv_heads < 1 || query_heads % kv_heads || dim < 1) return 1;
  const int64_t group = query_heads / kv_heads;
  double* p = malloc((size_t)(2 * keys + 1) * sizeof(double));
  double* sums = malloc((size_t)(2 * keys * dim + 1) * sizeof(double));
  if (!p || !sums) {
    free(p);
    free(sums);
    return 2;
  }
  double *dp = p + keys, *for_k = sums, *for_v = sums + keys * dim;
  for (int64_t n = 0; n < batch * kv_heads; ++n) {
    const float *key = k + n * keys * dim, *value = v + n * keys * dim;
    for (int64_t e = 0; e < 2 * keys * dim; ++e) sums[e] = 0;
    for (int64_t g = 0; g < group; ++g) {
      for (int64_t i = 0; i < queries; ++i) {
        const int64_t row = (n / kv_heads * query_heads + n % kv_heads * group + g) * queries + i;
        const int64_t seen = causal ? i + keys - queries + 1 : keys;
        double top = -INFINITY, sum = 0, delta = 0;
        for (int64_t t = 0; t < seen; ++t) {
          p[t] = dp[t] = 0;
          for (int64_t d = 0; d < dim; ++d) {
            p[t] += (double)q[row * dim + d] * key[t * dim + d];
            dp[t] += (double)dout[row * dim + d] * value[t * dim + d];
          }
          p[t] *= scale;
          if (p[t] > top) top = p[t];
        }
        for (int64_t t = 0; t < seen; ++t) sum += p[t] = exp(p[t] - top);
        for (int64_t t = 0; t < seen; ++t) {
          p[t] /= sum;
          delta += p[t] * dp[t];
        }
        for (int64_t d = 0; d < dim; ++d) {
          double for_q = 0;
          for (int64_t t = 0; t < seen; ++t) {
            const double ds = p[t] * (dp[t] - delta) * scale;
            for_q += ds * key[t * dim + d];
            for_k[t * dim + d] += ds * q[row * dim + d];
            for_v[t * dim + d] += p[t] * dout[row * dim + d];
          }
          dq[row * dim + d] = (float)for_q;
        }
      }
    }
    for (int64_t e = 0; e < keys * dim; ++e) {
      dk[n * keys * dim + e] = (float)for_k[e];
      dv[n * keys * dim + e] = (float)for_v[e];
    }
  }
  free(p);
  free(sums);
  return 0;
}
