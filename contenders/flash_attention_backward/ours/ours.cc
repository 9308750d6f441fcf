// This library as a contender: the task's function in terms of its C API. The task's tensors are
// head-major, [B, H, S, D]; the library reads them as token-major views with other strides.
#include <touchstone/touchstone_c.h>

#include <cstdint>

namespace {

// [batch, tokens, heads, dim] of memory that is [batch, heads, tokens, dim].
ts_tensor tokens_first(const float* data, int64_t batch, int64_t heads, int64_t tokens,
                       int64_t dim) {
  const int64_t shape[] = {batch, tokens, heads, dim};
  ts_tensor tensor = ts_make_tensor(data, TS_F32, TS_CPU, 4, shape);
  tensor.stride[1] = dim;
  tensor.stride[2] = tokens * dim;
  return tensor;
}

// [batch, tokens, heads] of memory that is [batch, heads, tokens].
ts_tensor tokens_first(const float* data, int64_t batch, int64_t heads, int64_t tokens) {
  const int64_t shape[] = {batch, tokens, heads};
  ts_tensor tensor = ts_make_tensor(data, TS_F32, TS_CPU, 3, shape);
  tensor.stride[1] = 1;
  tensor.stride[2] = tokens;
  return tensor;
}

}  // namespace

extern "C" int flash_attention_backward(int64_t batch, int64_t query_heads, int64_t kv_heads,
                                        int64_t queries, int64_t keys, int64_t dim, int64_t causal,
                                        float scale, const float* dout, const float* q,
                                        const float* k, const float* v, const float* out,
                                        const float* lse, float* dq, float* dk, float* dv) {
  static ts_context* context = nullptr;
  if (kv_heads < 1 || query_heads % kv_heads != 0 || dim < 1) return 1;
  if (context == nullptr && ts_context_create(nullptr, &context) != TS_OK) return 1;
  ts_attention_backward_args args = TS_ATTENTION_BACKWARD_ARGS;
  args.doutput = tokens_first(dout, batch, query_heads, queries, dim);
  args.q = tokens_first(q, batch, query_heads, queries, dim);
  args.k = tokens_first(k, batch, kv_heads, keys, dim);
  args.v = tokens_first(v, batch, kv_heads, keys, dim);
  args.output = tokens_first(out, batch, query_heads, queries, dim);
  args.log_sum_exp = tokens_first(lse, batch, query_heads, queries);
  args.dq = tokens_first(dq, batch, query_heads, queries, dim);
  args.dk = tokens_first(dk, batch, kv_heads, keys, dim);
  args.dv = tokens_first(dv, batch, kv_heads, keys, dim);
  // 0 asks the library for its default; this rounds to 0 in f32.
  args.options.scale = scale == 0 ? 1e-300 : static_cast<double>(scale);
  args.options.causal = causal != 0 ? 1 : 0;
  return ts_attention_backward(context, &args) == TS_OK ? 0 : 1;
}
