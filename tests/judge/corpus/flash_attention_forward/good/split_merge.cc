// Two threads over the rows; every row's keys in four parts, each with a softmax of its own, merged
// by their log-sum-exp.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

namespace {

constexpr int64_t kParts = 4;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Attention over keys [begin, end): the output into `out`, the log-sum-exp returned.
float part(int64_t begin, int64_t end, int64_t dim, float scale, const float* q, const float* k,
           const float* v, float* out, std::vector<float>& s) {
  std::fill(out, out + dim, 0.0f);
  if (begin >= end) return -kInfinity;
  float top = -kInfinity, sum = 0;
  for (int64_t t = begin; t < end; ++t) {
    float even = 0, odd = 0;
    for (int64_t d = 0; d + 1 < dim; d += 2) {
      even += q[d] * k[t * dim + d];
      odd += q[d + 1] * k[t * dim + d + 1];
    }
    if (dim % 2) even += q[dim - 1] * k[t * dim + dim - 1];
    s[t - begin] = (even + odd) * scale;
    top = std::max(top, s[t - begin]);
  }
  for (int64_t t = begin; t < end; ++t) {
    const float w = std::exp(s[t - begin] - top);
    sum += w;
    for (int64_t d = 0; d < dim; ++d) out[d] += w * v[t * dim + d];
  }
  for (int64_t d = 0; d < dim; ++d) out[d] /= sum;
  return top + std::log(sum);
}

}  // namespace

extern "C" int flash_attention_forward(int64_t batch, int64_t query_heads, int64_t kv_heads,
                                       int64_t queries, int64_t keys, int64_t dim, int64_t causal,
                                       float scale, const float* q, const float* k, const float* v,
                                       float* out, float* lse) {
  if (kv_heads < 1 || query_heads % kv_heads != 0 || dim < 1) return 1;
  const int64_t rows = batch * query_heads * queries;
  const auto work = [=](int64_t from, int64_t to) {
    std::vector<float> parts(kParts * dim), scores(static_cast<size_t>(keys / kParts + 1));
    for (int64_t row = from; row < to; ++row) {
      const int64_t n = row / queries, i = row % queries;
      const int64_t kv = n / query_heads * kv_heads + n % query_heads / (query_heads / kv_heads);
      const int64_t seen = causal ? std::clamp<int64_t>(i + keys - queries + 1, 0, keys) : keys;
      float of_part[kParts], top = -kInfinity;
      for (int64_t p = 0; p < kParts; ++p) {
        of_part[p] = part(seen * p / kParts, seen * (p + 1) / kParts, dim, scale, q + row * dim,
                          k + kv * keys * dim, v + kv * keys * dim, parts.data() + p * dim, scores);
        top = std::max(top, of_part[p]);
      }
      float* o = out + row * dim;
      std::fill(o, o + dim, 0.0f);
      lse[row] = -kInfinity;
      if (top == -kInfinity) continue;
      float sum = 0;
      for (int64_t p = 0; p < kParts; ++p) {
        const float w = of_part[p] == -kInfinity ? 0 : std::exp(of_part[p] - top);
        sum += w;
        for (int64_t d = 0; d < dim; ++d) o[d] += w * parts[p * dim + d];
      }
      for (int64_t d = 0; d < dim; ++d) o[d] /= sum;
      lse[row] = top + std::log(sum);
    }
  };
  std::thread other(work, rows / 2, rows);
  work(0, rows / 2);
  other.join();
  return 0;
}
