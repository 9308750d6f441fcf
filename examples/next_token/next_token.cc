// Draws the next token of three sequences, each with its own settings: the example in
// docs/ops/sample.md, word for word.
// [snippet]
#include <touchstone/touchstone.h>

#include <algorithm>
#include <iostream>

int main() {
  using touchstone::DType, touchstone::Tensor;
  touchstone::Context ctx;  // the CPU, all cores
  Tensor logits = Tensor::empty({3, 1000}, DType::f32);
  std::ranges::generate(logits.values<float>(), [n = 0]() mutable { return float(n++ % 7); });

  const float temperature[] = {0.0F, 0.7F, 1.0F};  // 0 is greedy
  const float top_p[] = {1.0F, 0.9F, 1.0F};
  Tensor seed = Tensor::zeros({3}, DType::i64), position = Tensor::zeros({3}, DType::i64);
  Tensor token = Tensor::empty({3}, DType::i32), log_p = Tensor::empty({3}, DType::f32);

  touchstone::sample(ctx, {.logits = logits,
                           .temperature = touchstone::make_view(temperature, {3}),
                           .top_p = touchstone::make_view(top_p, {3}),
                           .seed = seed,
                           .position = position,
                           .token = token,
                           .log_probability = log_p});
  for (std::size_t row = 0; row < 3; ++row) {
    std::cout << token.values<std::int32_t>()[row] << " " << log_p.values<float>()[row] << '\n';
  }
}
// [snippet]
