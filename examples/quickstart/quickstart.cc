// Layer norm, forward and backward, on all cores: the example in the README, word for word.
// [snippet]
#include <touchstone/touchstone.h>

#include <algorithm>
#include <iostream>

int main() {
  using touchstone::DType, touchstone::Tensor;
  touchstone::Context ctx;  // the CPU, all cores
  Tensor x = Tensor::empty({1024, 768}, DType::f32), y = Tensor::empty({1024, 768}, DType::f32);
  Tensor mean = Tensor::empty({1024}, DType::f32), rstd = Tensor::empty({1024}, DType::f32);
  std::ranges::generate(x.values<float>(), [n = 0]() mutable { return float(n++ % 768); });

  touchstone::layer_norm(ctx, {.x = x, .y = y, .mean = mean, .rstd = rstd, .eps = 1e-5});
  std::cout << y.values<float>().front() << " to " << y.values<float>().back() << '\n';
}
// [snippet]
