// The five most probable tokens of each row: the example in docs/ops/softmax_topk.md.
// [snippet]
#include <touchstone/touchstone.h>

#include <algorithm>
#include <cstdint>
#include <iostream>

int main() {
  using touchstone::DType, touchstone::Tensor;
  touchstone::Context ctx;  // the CPU, all cores
  Tensor logits = Tensor::empty({4, 50257}, DType::bf16);
  std::ranges::generate(logits.values<touchstone::Bf16>(),
                        [n = 0]() mutable { return touchstone::Bf16(n++ % 101 / 10.0); });
  const float temperature[] = {1.0F, 0.7F, 1.0F, 1.5F};  // one per row

  Tensor probabilities = Tensor::empty({4, 5}, DType::f32);
  Tensor indices = Tensor::empty({4, 5}, DType::i32), status = Tensor::empty({4}, DType::i32);
  touchstone::softmax_topk(ctx, {.logits = logits,
                                 .temperature = touchstone::make_view(temperature, {4}),
                                 .probabilities = probabilities,
                                 .indices = indices,
                                 .status = status});
  std::cout << "token " << indices.values<std::int32_t>()[0] << " has probability "
            << probabilities.values<float>()[0] << '\n';
}
// [snippet]
