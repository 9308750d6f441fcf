// Wrong in one famous way: an online softmax over tiles of 64 keys whose sum of weights is not
// rescaled when the maximum grows, though the output is. Right for every row whose largest score
// lies in its first tile, so short sequences look fine.
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
  constexpr int64_t kTile = 64;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> s(kTile);
  for (int64_t row = 0; row < batch * query_heads * queries; ++row) {
    const int64_t n = row / queries, i = row % queries;
    const int64_t kv = n / query_heads * kv_heads + n % query_heads / (query_heads / kv_heads);
    const int64_t seen = causal ? i + keys - queries + 1 : keys;
    float m = -kInfinity, l = 0;
    float* o = out + row * dim;
    std::fill(o, o + dim, 0.0f);
    for (int64_t t0 = 0; t0 < seen; t0 += kTile) {
      const int64_t t1 = std::min(t0 + kTile, seen);
      float top = m;
      for (int64_t t = t0; t < t1; ++t) {
        float sum = 0;
        for (int64_t d = 0; d < dim; ++d) sum += q[row * dim + d] * k[(kv * keys + t) * dim + d];
        s[t - t0] = sum * scale;
        top = std::max(top, s[t - t0]);
      }
      const float correction = m == -kInfinity ? 0 : std::exp(m - top);
      for (int64_t d = 0; d < dim; ++d) o[d] *= correction;
      // l *= correction is missing here.
      for (int64_t t = t0; t < t1; ++t) {
        const float w = std::exp(s[t - t0] - top);
        l += w;
        for (int64_t d = 0; d < dim; ++d) o[d] += w * v[(kv * keys + t) * dim + d];
      }
      m = top;
    }
    for (int64_t d = 0; d < dim && l > 0; ++d) o[d] /= l;
    lse[row] = l > 0 ? m + std::log(l) : -kInfinity;
  }
  return 0;
}
