// This library as a contender.
#include <touchstone/touchstone.h>

#include <cstdint>
#include <exception>

extern "C" int flash_attention_backward(int64_t batch, int64_t query_heads, int64_t kv_heads,
                                        int64_t queries, int64_t keys, int64_t dim, int64_t causal,
                                        float scale, const float* dout, const float* q,
                                        const float* k, const float* v, const float* out,
                                        const float* lse, float* dq, float* dk, float* dv) {
  using touchstone::make_view;
  static touchstone::Context context;
  if (kv_heads < 1 || query_heads % kv_heads != 0 || dim < 1) return 1;
  try {
    touchstone::attention_backward(
        context, {.doutput = make_view(dout, {batch, query_heads, queries, dim}),
                  .q = make_view(q, {batch, query_heads, queries, dim}),
                  .k = make_view(k, {batch, kv_heads, keys, dim}),
                  .v = make_view(v, {batch, kv_heads, keys, dim}),
                  .output = make_view(out, {batch, query_heads, queries, dim}),
                  .log_sum_exp = make_view(lse, {batch, query_heads, queries}),
                  .dq = make_view(dq, {batch, query_heads, queries, dim}),
                  .dk = make_view(dk, {batch, kv_heads, keys, dim}),
                  .dv = make_view(dv, {batch, kv_heads, keys, dim}),
                  .options = {.scale = static_cast<double>(scale), .causal = causal != 0}});
  } catch (const std::exception&) {
    return 1;
  }
  return 0;
}
