// Powers of two instead of e, the scale folded into the query, sums in eight lanes, and the output
// rescaled only when the maximum has grown by more than eight.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

namespace {

constexpr float kLog2e = 1.44269504f, kLn2 = 0.69314718f;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

float dot(const float* a, const float* b, int64_t n) {
  std::array<float, 8> lanes{};
  for (int64_t d = 0; d < n; ++d) lanes[d % 8] += a[d] * b[d];
  return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) +
         ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

}  // namespace

extern "C" int flash_attention_forward(int64_t batch, int64_t query_heads, int64_t kv_heads,
                                       int64_t queries, int64_t keys, int64_t dim, int64_t causal,
                                       float scale, const float* q, const float* k, const float* v,
                                       float* out, float* lse) {
  if (kv_heads < 1 || query_heads % kv_heads != 0 || dim < 1) return 1;
  std::vector<float> scaled(static_cast<size_t>(dim)), acc(scaled);
  for (int64_t row = 0; row < batch * query_heads * queries; ++row) {
    const int64_t n = row / queries, i = row % queries;
    const int64_t kv = n / query_heads * kv_heads + n % query_heads / (query_heads / kv_heads);
    const int64_t seen = causal ? i + keys - queries + 1 : keys;
    for (int64_t d = 0; d < dim; ++d) scaled[d] = q[row * dim + d] * (scale * kLog2e);
    std::fill(acc.begin(), acc.end(), 0.0f);
    std::array<float, 8> sums{};
    float m = -kInfinity;
    for (int64_t t = 0; t < seen; ++t) {
      const float s = dot(scaled.data(), k + (kv * keys + t) * dim, dim);
      if (s > m + 8) {
        const float correction = m == -kInfinity ? 0 : std::exp2(m - s);
        for (float& sum : sums) sum *= correction;
        for (float& a : acc) a *= correction;
        m = s;
      }
      const float w = std::exp2(s - m);
      sums[t % 8] += w;
      for (int64_t d = 0; d < dim; ++d) acc[d] += w * v[(kv * keys + t) * dim + d];
    }
    const float sum = std::accumulate(sums.begin(), sums.end(), 0.0f);
    for (int64_t d = 0; d < dim; ++d) out[row * dim + d] = sum > 0 ? acc[d] / sum : 0;
    lse[row] = sum > 0 ? m * kLn2 + std::log(sum) : -kInfinity;
  }
  return 0;
}
