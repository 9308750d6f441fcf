// Two threads, one for each half of the key-value heads of all items: sums of a group stay within
// one thread. Rows of P and dS on the heap, products as three loops. Float.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <thread>
#include <vector>

extern "C" int flash_attention_backward(int64_t batch, int64_t query_heads, int64_t kv_heads,
                                        int64_t queries, int64_t keys, int64_t dim, int64_t causal,
                                        float scale, const float* dout, const float* q,
                                        const float* k, const float* v, const float* out,
                                        const float* lse, float* dq, float* dk, float* dv) {
  if (kv_heads < 1 || query_heads % kv_heads != 0 || dim < 1) return 1;
  const int64_t group = query_heads / kv_heads;
  const auto work = [=](int64_t from, int64_t to) {
    std::vector<float> p(static_cast<size_t>(keys)), ds(p);
    for (int64_t n = from; n < to; ++n) {
      const float *key = k + n * keys * dim, *value = v + n * keys * dim;
      float *for_k = dk + n * keys * dim, *for_v = dv + n * keys * dim;
      std::fill(for_k, for_k + keys * dim, 0.0f);
      std::fill(for_v, for_v + keys * dim, 0.0f);
      const int64_t head = n / kv_heads * query_heads + n % kv_heads * group;
      for (int64_t row = head * queries; row < (head + group) * queries; ++row) {
        const float *query = q + row * dim, *gradient = dout + row * dim;
        const int64_t seen =
            causal ? std::max<int64_t>(0, row % queries + keys - queries + 1) : keys;
        double delta = 0;
        for (int64_t d = 0; d < dim; ++d) delta += double{gradient[d]} * out[row * dim + d];
        for (int64_t t = 0; t < seen; ++t) {
          float s = 0, dp = 0;
          for (int64_t d = 0; d < dim; ++d) {
            s += query[d] * scale * key[t * dim + d];
            dp += gradient[d] * value[t * dim + d];
          }
          p[t] = std::exp(s - lse[row]);
          ds[t] = p[t] * (dp - static_cast<float>(delta)) * scale;
        }
        for (int64_t d = 0; d < dim; ++d) {
          float sum = 0;
          for (int64_t t = 0; t < seen; ++t) {
            sum += ds[t] * key[t * dim + d];
            for_k[t * dim + d] += ds[t] * query[d];
            for_v[t * dim + d] += p[t] * gradient[d];
          }
          dq[row * dim + d] = sum;
        }
      }
    }
  };
  const int64_t heads = batch * kv_heads;
  std::thread other(work, heads / 2, heads);
  work(0, heads / 2);
  other.join();
  return 0;
}
