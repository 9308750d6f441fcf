// Straightforward: P and dS of a whole head as matrices, then the three sums. Right, and what tiles
// are there to avoid.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

extern "C" int flash_attention_backward(int64_t batch, int64_t query_heads, int64_t kv_heads,
                                        int64_t queries, int64_t keys, int64_t dim, int64_t causal,
                                        float scale, const float* dout, const float* q,
                                        const float* k, const float* v, const float* out,
                                        const float* lse, float* dq, float* dk, float* dv) {
  if (kv_heads < 1 || query_heads % kv_heads != 0 || dim < 1) return 1;
  std::fill(dq, dq + batch * query_heads * queries * dim, 0.0f);
  std::fill(dk, dk + batch * kv_heads * keys * dim, 0.0f);
  std::fill(dv, dv + batch * kv_heads * keys * dim, 0.0f);
  std::vector<float> p(static_cast<size_t>(queries * keys)), ds(p.size());
  for (int64_t n = 0; n < batch * query_heads; ++n) {
    const int64_t kv = n / query_heads * kv_heads + n % query_heads / (query_heads / kv_heads);
    const float *key = k + kv * keys * dim, *value = v + kv * keys * dim;
    float *for_k = dk + kv * keys * dim, *for_v = dv + kv * keys * dim;
    const auto seen = [=](int64_t i) { return causal ? i + keys - queries + 1 : keys; };
    for (int64_t i = 0; i < queries; ++i) {
      const int64_t row = (n * queries + i) * dim;
      float delta = 0;
      for (int64_t d = 0; d < dim; ++d) delta += dout[row + d] * out[row + d];
      for (int64_t t = 0; t < seen(i); ++t) {
        float s = 0, dp = 0;
        for (int64_t d = 0; d < dim; ++d) {
          s += q[row + d] * key[t * dim + d];
          dp += dout[row + d] * value[t * dim + d];
        }
        p[i * keys + t] = std::exp(s * scale - lse[n * queries + i]);
        ds[i * keys + t] = p[i * keys + t] * (dp - delta) * scale;
      }
    }
    for (int64_t i = 0; i < queries; ++i) {
      const int64_t row = (n * queries + i) * dim;
      for (int64_t t = 0; t < seen(i); ++t) {
        for (int64_t d = 0; d < dim; ++d) {
          dq[row + d] += ds[i * keys + t] * key[t * dim + d];
          for_k[t * dim + d] += ds[i * keys + t] * q[row + d];
          for_v[t * dim + d] += p[i * keys + t] * dout[row + d];
        }
      }
    }
  }
  return 0;
}
