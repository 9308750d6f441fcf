// Tiles of keys outside, queries inside: maximum, sum and output of every row live in the output
// arrays and in two arrays beside them. Keys from the last to the first.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

extern "C" int flash_attention_forward(int64_t batch, int64_t query_heads, int64_t kv_heads,
                                       int64_t queries, int64_t keys, int64_t dim, int64_t causal,
                                       float scale, const float* q, const float* k, const float* v,
                                       float* out, float* lse) {
  if (kv_heads < 1 || query_heads % kv_heads != 0 || dim < 1) return 1;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr int64_t kTile = 40;
  std::vector<float> m(static_cast<size_t>(queries)), l(m);
  for (int64_t n = 0; n < batch * query_heads; ++n) {
    const int64_t kv = n / query_heads * kv_heads + n % query_heads / (query_heads / kv_heads);
    const float* key = k + kv * keys * dim;
    const float* value = v + kv * keys * dim;
    float* o = out + n * queries * dim;
    std::fill(m.begin(), m.end(), -kInfinity);
    std::fill(l.begin(), l.end(), 0.0f);
    std::fill(o, o + queries * dim, 0.0f);
    for (int64_t end = keys; end > 0; end -= std::min(end, kTile)) {
      const int64_t begin = std::max<int64_t>(0, end - kTile);
      for (int64_t i = 0; i < queries; ++i) {
        const float* query = q + (n * queries + i) * dim;
        const int64_t last = causal ? std::min(end, i + keys - queries + 1) : end;
        for (int64_t t = last - 1; t >= begin; --t) {
          float s = 0;
          for (int64_t d = 0; d < dim; ++d) s = std::fma(query[d], key[t * dim + d], s);
          s *= scale;
          float weight = 1;
          if (s > m[i]) {
            const float correction = m[i] == -kInfinity ? 0 : std::exp(m[i] - s);
            l[i] *= correction;
            for (int64_t d = 0; d < dim; ++d) o[i * dim + d] *= correction;
            m[i] = s;
          } else {
            weight = std::exp(s - m[i]);
          }
          l[i] += weight;
          for (int64_t d = 0; d < dim; ++d) o[i * dim + d] += weight * value[t * dim + d];
        }
      }
    }
    for (int64_t i = 0; i < queries; ++i) {
      for (int64_t d = 0; d < dim && l[i] > 0; ++d) o[i * dim + d] /= l[i];
      lse[n * queries + i] = l[i] > 0 ? m[i] + std::log(l[i]) : -kInfinity;
    }
  }
  return 0;
}
