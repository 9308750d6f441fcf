// Attention of a layer in training, forward and backward: the example in docs/ops/attention.md,
// word for word.
// [snippet]
#include <touchstone/touchstone.h>

#include <cstdint>
#include <iostream>

int main() {
  using namespace touchstone;
  // 2 sequences of 300 tokens, 8 query heads on 2 KV heads of 64: [B, S, H, D].
  const auto tensor = [](std::int64_t heads, DType dtype = DType::bf16) {
    return Tensor::zeros({2, 300, heads, 64}, dtype);
  };
  Tensor q = tensor(8), k = tensor(2), v = tensor(2), output = tensor(8);
  Tensor dq = tensor(8), dk = tensor(2), dv = tensor(2), doutput = tensor(8);
  Tensor log_sum_exp = Tensor::empty({2, 300, 8}, DType::f32);
  for (Tensor* x : {&q, &k, &v, &doutput}) {  // what the layer's projections would give
    int n = 0;
    for (Bf16& value : x->values<Bf16>()) value = Bf16(n++ % 7 - 3.0);
  }

  Context ctx;  // the CPU, all cores
  const AttentionOptions causal{.causal = true};
  attention(
      ctx,
      {.q = q, .k = k, .v = v, .output = output, .log_sum_exp = log_sum_exp, .options = causal});
  attention_backward(ctx, {.doutput = doutput,
                           .q = q,
                           .k = k,
                           .v = v,
                           .output = output,
                           .log_sum_exp = log_sum_exp,
                           .dq = dq,
                           .dk = dk,
                           .dv = dv,
                           .options = causal});
  std::cout << log_sum_exp.values<float>().back() << '\n';
}
// [snippet]
