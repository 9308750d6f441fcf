// From the contract of the task to the function that was found. An adapter passes things on; all it
// computes here is the one number that the two describe differently.
#include <cmath>
#include <cstdint>

#include "theirs.h"

extern "C" int flash_attention_forward(int64_t batch, int64_t query_heads, int64_t kv_heads,
                                       int64_t queries, int64_t keys, int64_t dim, int64_t causal,
                                       float scale, const float* q, const float* k, const float* v,
                                       float* out, float* lse) {
  if (kv_heads < 1 || query_heads % kv_heads != 0 || dim < 1) return 1;
  for (int64_t n = 0; n < batch * query_heads; ++n) {
    const int64_t kv = n / query_heads * kv_heads + n % query_heads / (query_heads / kv_heads);
    const KeysAndValues both{k + kv * keys * dim, v + kv * keys * dim, static_cast<int>(keys)};
    for (int64_t i = 0; i < queries; ++i) {
      const int64_t row = n * queries + i;
      const int seen =
          visible(static_cast<int>(i), static_cast<int>(queries), both.count, causal != 0);
      float maximum, sum;
      attend(out + row * dim, &maximum, &sum, q + row * dim, both, seen, static_cast<int>(dim),
             scale);
      lse[row] = maximum + std::log(sum);
    }
  }
  return 0;
}
