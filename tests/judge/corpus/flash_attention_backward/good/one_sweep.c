// One sweep, queries outside: each query adds to dQ, dK and dV as it goes. Float, with delta from
// the output that the forward left.
#include <math.h>
#include <stdint.h>
#include <string.h>

static float dot(const float* a, const float* b, int64_t n) {
  float sum = 0;
  for (int64_t d = 0; d < n; ++d) sum += a[d] * b[d];
  return sum;
}

int flash_attention_backward(int64_t batch, int64_t query_heads, int64_t kv_heads, int64_t queries,
                             int64_t keys, int64_t dim, int64_t causal, float scale,
                             const float* dout, const float* q, const float* k, const float* v,
                             const float* out, const float* lse, float* dq, float* dk, float* dv) {
  if (kv_heads < 1 || query_heads % kv_heads || dim < 1) return 1;
  const int64_t rows = batch * query_heads * queries;
  const size_t key_bytes = (size_t)(batch * kv_heads * keys * dim) * sizeof(float);
  if (rows > 0) memset(dq, 0, (size_t)(rows * dim) * sizeof(float));
  if (key_bytes > 0) {
    memset(dk, 0, key_bytes);
    memset(dv, 0, key_bytes);
  }
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t n = row / queries, i = row % queries;
    const int64_t kv = n / query_heads * kv_heads + n % query_heads / (query_heads / kv_heads);
    const int64_t seen = causal ? i + keys - queries + 1 : keys;
    const float* query = q + row * dim;
    const float* gradient = dout + row * dim;
    const float delta = dot(gradient, out + row * dim, dim);
    for (int64_t t = 0; t < seen; ++t) {
      const int64_t at = (kv * keys + t) * dim;
      const float p = expf(dot(query, k + at, dim) * scale - lse[row]);
      const float ds = p * (dot(gradient, v + at, dim) - delta) * scale;
      for (int64_t d = 0; d < dim; ++d) {
        dq[row * dim + d] += ds * k[at + d];
        dk[at + d] += ds * query[d];
        dv[at + d] += p * gradient[d];
      }
    }
  }
  return 0;
}
