// This library as a contender.
#include <touchstone/touchstone.h>

#include <cstdint>
#include <exception>

extern "C" int flash_attention_forward(int64_t batch, int64_t query_heads, int64_t kv_heads,
                                       int64_t queries, int64_t keys, int64_t dim, int64_t causal,
                                       float scale, const float* q, const float* k, const float* v,
                                       float* out, float* lse) {
  static touchstone::Context context;
  if (kv_heads < 1 || query_heads % kv_heads != 0 || dim < 1) return 1;
  try {
    touchstone::attention(
        context, {.q = touchstone::make_view(q, {batch, query_heads, queries, dim}),
                  .k = touchstone::make_view(k, {batch, kv_heads, keys, dim}),
                  .v = touchstone::make_view(v, {batch, kv_heads, keys, dim}),
                  .output = touchstone::make_view(out, {batch, query_heads, queries, dim}),
                  .log_sum_exp = touchstone::make_view(lse, {batch, query_heads, queries}),
                  .options = {.scale = static_cast<double>(scale), .causal = causal != 0}});
  } catch (const std::exception&) {
    return 1;
  }
  return 0;
}
