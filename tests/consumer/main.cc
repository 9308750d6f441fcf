// Normalizes one row through the installed headers and library, and checks the result by hand.
#include <touchstone/touchstone.h>

#include <cmath>
#include <cstdio>

int main() {
  using touchstone::DType;
  using touchstone::Tensor;

  touchstone::Context ctx;
  Tensor x = Tensor::empty({1, 4}, DType::f32);
  Tensor y = Tensor::empty({1, 4}, DType::f32);
  for (int i = 0; i < 4; ++i)
    x.values<float>()[static_cast<std::size_t>(i)] = static_cast<float>(i);
  touchstone::layer_norm(ctx, {.x = x, .y = y, .eps = 0.0});

  // 0 1 2 3 has mean 1.5 and variance 1.25.
  const double expected = -1.5 / std::sqrt(1.25);
  const double got = static_cast<double>(y.values<float>()[0]);
  std::printf("touchstone %s: %.7f, expected %.7f\n", touchstone::version(), got, expected);
  return std::abs(got - expected) <= 1e-6 ? 0 : 1;
}
