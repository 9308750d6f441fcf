// Wrong in one famous way: the sum of P * dP that the softmax's derivative takes off is that of the
// tile of 64 keys, not that of the row. Right whenever all keys fit into one tile, and dV is right
// always.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

extern "C" int flash_attention_backward(int64_t batch, int64_t query_heads, int64_t kv_heads,
                                        int64_t queries, int64_t keys, int64_t dim, int64_t causal,
                                        float scale, const float* dout, const float* q,
                                        const float* k, const float* v, const float*,
                                        const float* lse, float* dq, float* dk, float* dv) {
  if (kv_heads < 1 || query_heads % kv_heads != 0 || dim < 1) return 1;
  constexpr int64_t kTile = 64;
  std::fill(dq, dq + batch * query_heads * queries * dim, 0.0f);
  std::fill(dk, dk + batch * kv_heads * keys * dim, 0.0f);
  std::fill(dv, dv + batch * kv_heads * keys * dim, 0.0f);
  std::vector<float> p(kTile), dp(kTile);
  for (int64_t row = 0; row < batch * query_heads * queries; ++row) {
    const int64_t n = row / queries, i = row % queries;
    const int64_t kv = n / query_heads * kv_heads + n % query_heads / (query_heads / kv_heads);
    const int64_t seen = causal ? i + keys - queries + 1 : keys;
    const float *query = q + row * dim, *gradient = dout + row * dim;
    for (int64_t t0 = 0; t0 < seen; t0 += kTile) {
      const int64_t t1 = std::min(t0 + kTile, seen);
      float delta = 0;  // over this tile only
      for (int64_t t = t0; t < t1; ++t) {
        const int64_t at = (kv * keys + t) * dim;
        float s = 0, product = 0;
        for (int64_t d = 0; d < dim; ++d) {
          s += query[d] * k[at + d];
          product += gradient[d] * v[at + d];
        }
        p[t - t0] = std::exp(s * scale - lse[row]);
        dp[t - t0] = product;
        delta += p[t - t0] * product;
      }
      for (int64_t t = t0; t < t1; ++t) {
        const int64_t at = (kv * keys + t) * dim;
        const float ds = p[t - t0] * (dp[t - t0] - delta) * scale;
        for (int64_t d = 0; d < dim; ++d) {
          dq[row * dim + d] += ds * k[at + d];
          dk[at + d] += ds * query[d];
          dv[at + d] += p[t - t0] * gradient[d];
        }
      }
    }
  }
  return 0;
}
