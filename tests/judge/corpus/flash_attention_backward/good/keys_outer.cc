// Tiles of keys outside: K, V, dK and dV of a tile stay, queries pass by in tiles and collect dQ.
// Powers of two instead of e. Float.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace {
constexpr int64_t kKeys = 32, kQueries = 16;
constexpr float kLog2e = 1.44269504f;

float dot(const float* a, const float* b, int64_t n) {
  float even = 0, odd = 0;
  for (int64_t d = 0; d + 1 < n; d += 2) {
    even += a[d] * b[d];
    odd += a[d + 1] * b[d + 1];
  }
  return n % 2 ? even + odd + a[n - 1] * b[n - 1] : even + odd;
}
}  // namespace

extern "C" int flash_attention_backward(int64_t batch, int64_t query_heads, int64_t kv_heads,
                                        int64_t queries, int64_t keys, int64_t dim, int64_t causal,
                                        float scale, const float* dout, const float* q,
                                        const float* k, const float* v, const float* out,
                                        const float* lse, float* dq, float* dk, float* dv) {
  if (kv_heads < 1 || query_heads % kv_heads != 0 || dim < 1) return 1;
  const int64_t group = query_heads / kv_heads;
  std::fill(dq, dq + batch * query_heads * queries * dim, 0.0f);
  std::fill(dk, dk + batch * kv_heads * keys * dim, 0.0f);
  std::fill(dv, dv + batch * kv_heads * keys * dim, 0.0f);
  std::vector<float> delta(static_cast<size_t>(queries));
  for (int64_t n = 0; n < batch * query_heads; ++n) {
    const int64_t kv = n / query_heads * kv_heads + n % query_heads / group;
    for (int64_t i = 0; i < queries; ++i) {
      const int64_t row = n * queries + i;
      delta[i] = dot(dout + row * dim, out + row * dim, dim);
    }
    for (int64_t t0 = 0; t0 < keys; t0 += kKeys) {
      const int64_t t1 = std::min(t0 + kKeys, keys);
      // The first query that sees the first key of the tile.
      const int64_t begin = causal ? std::max<int64_t>(0, t0 - (keys - queries)) : 0;
      for (int64_t i0 = begin; i0 < queries; i0 += kQueries) {
        for (int64_t i = i0; i < std::min(i0 + kQueries, queries); ++i) {
          const int64_t row = n * queries + i;
          const int64_t end = causal ? std::min(t1, i + keys - queries + 1) : t1;
          for (int64_t t = t0; t < end; ++t) {
            const int64_t at = (kv * keys + t) * dim;
            const float s = dot(q + row * dim, k + at, dim) * scale;
            const float p = std::exp2((s - lse[row]) * kLog2e);
            const float ds = p * (dot(dout + row * dim, v + at, dim) - delta[i]) * scale;
            for (int64_t d = 0; d < dim; ++d) {
              dv[at + d] += p * dout[row * dim + d];
              dk[at + d] += ds * q[row * dim + d];
              dq[row * dim + d] += ds * k[at + d];
            }
          }
        }
      }
    }
  }
  return 0;
}
