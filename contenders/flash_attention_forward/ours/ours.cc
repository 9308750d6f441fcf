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
    // Head-major memory: views with heads and tokens swapped.
    const auto by_token = [](auto view) { return touchstone::transposed(view, 1, 2); };
    using touchstone::make_view;
    touchstone::attention(
        context, {.q = by_token(make_view(q, {batch, query_heads, queries, dim})),
                  .k = by_token(make_view(k, {batch, kv_heads, keys, dim})),
                  .v = by_token(make_view(v, {batch, kv_heads, keys, dim})),
                  .output = by_token(make_view(out, {batch, query_heads, queries, dim})),
                  .log_sum_exp = by_token(make_view(lse, {batch, query_heads, queries})),
                  .options = {.scale = static_cast<double>(scale), .causal = causal != 0}});
  } catch (const std::exception&) {
    return 1;
  }
  return 0;
}
