// Layer norm with a fused residual add, forward and backward: the example in
// docs/ops/layer_norm.md.
// [snippet]
#include <touchstone/touchstone.h>

#include <algorithm>
#include <iostream>

int main() {
  using touchstone::DType, touchstone::Tensor;
  constexpr int kRows = 512, kCols = 768;
  const auto matrix = [] { return Tensor::empty({kRows, kCols}, DType::f32); };
  const auto ramp = [](Tensor& x) {
    std::ranges::generate(x.values<float>(), [n = 0]() mutable { return float(n++ % 13); });
  };
  Tensor x = matrix(), residual = matrix(), sum = matrix(), y = matrix();
  Tensor weight = Tensor::empty({kCols}, DType::f32), bias = Tensor::zeros({kCols}, DType::f32);
  Tensor mean = Tensor::empty({kRows}, DType::f32), rstd = Tensor::empty({kRows}, DType::f32);
  for (Tensor* t : {&x, &residual, &weight}) ramp(*t);

  touchstone::Context ctx;  // the CPU, all cores
  touchstone::layer_norm(ctx, {.x = x,
                               .residual = residual,
                               .weight = weight,
                               .bias = bias,
                               .y = y,
                               .sum = sum,  // x + residual, the input of the next residual add
                               .mean = mean,
                               .rstd = rstd});

  Tensor dy = matrix(), dx = matrix();
  Tensor dweight = Tensor::empty({kCols}, DType::f32), dbias = Tensor::empty({kCols}, DType::f32);
  ramp(dy);
  touchstone::layer_norm_backward(ctx, {.dy = dy,
                                        .x = sum,
                                        .mean = mean,
                                        .rstd = rstd,
                                        .weight = weight,
                                        .dx = dx,
                                        .dweight = dweight,
                                        .dbias = dbias});
  std::cout << y.values<float>().front() << ' ' << dbias.values<float>().front() << '\n';
}
// [snippet]
