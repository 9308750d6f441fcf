// Straightforward: the matrix of all scores of a head, a softmax over its rows, a product with the
// values. Right, and what tiles are there to avoid.
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
  std::vector<float> scores(static_cast<size_t>(queries * keys));
  for (int64_t n = 0; n < batch * query_heads; ++n) {
    const int64_t kv = n / query_heads * kv_heads + n % query_heads / (query_heads / kv_heads);
    for (int64_t i = 0; i < queries; ++i) {
      const int64_t row = n * queries + i;
      const int64_t seen = causal ? std::max<int64_t>(0, i + keys - queries + 1) : keys;
      float* s = scores.data() + i * keys;
      float top = -std::numeric_limits<float>::infinity();
      for (int64_t t = 0; t < seen; ++t) {
        float sum = 0;
        for (int64_t d = 0; d < dim; ++d) sum += q[row * dim + d] * k[(kv * keys + t) * dim + d];
        s[t] = sum * scale;
        top = std::max(top, s[t]);
      }
      float total = 0;
      for (int64_t t = 0; t < seen; ++t) total += s[t] = std::exp(s[t] - top);
      lse[row] = seen > 0 ? top + std::log(total) : top;
      for (int64_t d = 0; d < dim; ++d) out[row * dim + d] = 0;
      for (int64_t t = 0; t < seen; ++t) {
        for (int64_t d = 0; d < dim; ++d) {
          out[row * dim + d] += s[t] / total * v[(kv * keys + t) * dim + d];
        }
      }
    }
  }
  return 0;
}
