// Latent weights to ternary ones, as a training step does: the example in
// docs/ops/ternary_project.md.
// [snippet]
#include <touchstone/touchstone.h>

#include <algorithm>
#include <cstdint>
#include <iostream>

int main() {
  using touchstone::DType, touchstone::Tensor;
  constexpr int kOut = 64, kIn = 256;
  Tensor latent = Tensor::empty({kOut, kIn}, DType::f32);
  std::ranges::generate(latent.values<float>(),
                        [n = 0]() mutable { return float(n++ * 37 % 101 - 50) / 1000; });
  const touchstone::TernaryRule rule{.scale = touchstone::TernaryScaleRule::least_squares};
  const std::int64_t groups = touchstone::ternary_groups(rule.geometry, kOut, kIn);
  Tensor values = Tensor::empty({kOut, kIn}, DType::bf16);
  Tensor codes = Tensor::empty({kOut, kIn}, DType::i8);
  Tensor scales = Tensor::empty({groups}, DType::f32);
  touchstone::Context ctx;  // the CPU, all cores
  touchstone::ternary_project(
      ctx, {.weight = latent, .rule = rule, .values = values, .codes = codes, .scales = scales});
  const auto zeros = std::ranges::count(codes.values<std::int8_t>(), std::int8_t{0});
  std::cout << groups << " groups, " << zeros << " zeros, first scale " << scales.values<float>()[0]
            << '\n';
}
// [snippet]
