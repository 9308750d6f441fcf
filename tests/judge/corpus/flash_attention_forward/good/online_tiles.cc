// Tiles of 32 queries by 48 keys, all in float: an online softmax with one rescaling per tile.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace {

constexpr int64_t kQueries = 32, kKeys = 48;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Head {
  int64_t queries, keys, dim;
  bool causal;
  float scale;
  const float *q, *k, *v;
  float *out, *lse;
};

void one_tile(const Head& h, int64_t first, int64_t last) {
  const int64_t rows = last - first;
  std::vector<float> m(rows, -kInfinity), l(rows), acc(rows * h.dim), s(kKeys);
  for (int64_t t0 = 0; t0 < h.keys; t0 += kKeys) {
    // The last row of the tile sees the most.
    if (h.causal && t0 > last - 1 + h.keys - h.queries) break;
    const int64_t t1 = std::min(t0 + kKeys, h.keys);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t i = first + r;
      const int64_t end = h.causal ? std::min(t1, i + h.keys - h.queries + 1) : t1;
      if (end <= t0) continue;
      float top = m[r];
      for (int64_t t = t0; t < end; ++t) {
        float sum = 0;
        for (int64_t d = 0; d < h.dim; ++d) sum += h.q[i * h.dim + d] * h.k[t * h.dim + d];
        s[t - t0] = sum * h.scale;
        top = std::max(top, s[t - t0]);
      }
      const float correction = m[r] == -kInfinity ? 0 : std::exp(m[r] - top);
      l[r] *= correction;
      for (int64_t d = 0; d < h.dim; ++d) acc[r * h.dim + d] *= correction;
      for (int64_t t = t0; t < end; ++t) {
        const float w = std::exp(s[t - t0] - top);
        l[r] += w;
        for (int64_t d = 0; d < h.dim; ++d) acc[r * h.dim + d] += w * h.v[t * h.dim + d];
      }
      m[r] = top;
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    const float by = l[r] > 0 ? 1 / l[r] : 0;
    for (int64_t d = 0; d < h.dim; ++d) h.out[(first + r) * h.dim + d] = acc[r * h.dim + d] * by;
    h.lse[first + r] = l[r] > 0 ? m[r] + std::log(l[r]) : -kInfinity;
  }
}

}  // namespace

extern "C" int flash_attention_forward(int64_t batch, int64_t query_heads, int64_t kv_heads,
                                       int64_t queries, int64_t keys, int64_t dim, int64_t causal,
                                       float scale, const float* q, const float* k, const float* v,
                                       float* out, float* lse) {
  if (kv_heads < 1 || query_heads % kv_heads != 0 || dim < 1) return 1;
  for (int64_t n = 0; n < batch * query_heads; ++n) {
    const int64_t kv = n / query_heads * kv_heads + n % query_heads / (query_heads / kv_heads);
    const Head head{queries,
                    keys,
                    dim,
                    causal != 0,
                    scale,
                    q + n * queries * dim,
                    k + kv * keys * dim,
                    v + kv * keys * dim,
                    out + n * queries * dim,
                    lse + n * queries};
    for (int64_t i = 0; i < queries; i += kQueries)
      one_tile(head, i, std::min(i + kQueries, queries));
  }
  return 0;
}
