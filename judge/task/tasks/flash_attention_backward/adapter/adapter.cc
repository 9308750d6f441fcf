// From the contract of the task to the function that was found. An adapter passes things on; it
// computes nothing.
#include <algorithm>
#include <cstdint>

#include "theirs.h"

extern "C" int flash_attention_backward(int64_t batch, int64_t query_heads, int64_t kv_heads,
                                        int64_t queries, int64_t keys, int64_t dim, int64_t causal,
                                        float scale, const float* dout, const float* q,
                                        const float* k, const float* v, const float* out,
                                        const float* lse, float* dq, float* dk, float* dv) {
  if (kv_heads < 1 || query_heads % kv_heads != 0 || dim < 1) return 1;
  std::fill(dq, dq + batch * query_heads * queries * dim, 0.0f);
  std::fill(dk, dk + batch * kv_heads * keys * dim, 0.0f);
  std::fill(dv, dv + batch * kv_heads * keys * dim, 0.0f);
  for (int64_t row = 0; row < batch * query_heads * queries; ++row) {
    const int64_t n = row / queries;
    const int64_t kv = n / query_heads * kv_heads + n % query_heads / (query_heads / kv_heads);
    const int64_t at = kv * keys * dim;
    const int64_t seen = causal ? row % queries + keys - queries + 1 : keys;
    attend_backward({dq + row * dim, dk + at, dv + at}, dout + row * dim, q + row * dim, k + at,
                    v + at, out + row * dim, lse[row], static_cast<int>(seen),
                    static_cast<int>(dim), scale);
  }
  return 0;
}
