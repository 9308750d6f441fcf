// The gate of a packed gate/up pair, as a projection leaves it: the example in
// docs/ops/activation.md.
// [snippet]
#include <touchstone/touchstone.h>

#include <algorithm>
#include <iostream>

int main() {
  using touchstone::DType, touchstone::Tensor;
  constexpr int kTokens = 4, kInner = 6;
  Tensor packed = Tensor::empty({kTokens, 2 * kInner}, DType::f32);  // gate, then up, in each row
  std::ranges::generate(packed.values<float>(), [n = 0]() mutable { return float(n++ % 7 - 3); });
  Tensor y = Tensor::empty({kTokens, kInner}, DType::f32);

  // Two views of one tensor: rows of kInner numbers, 2 * kInner apart.
  float* const row = packed.values<float>().data();
  const auto gate =
      touchstone::with_stride(touchstone::make_view(row, {kTokens, kInner}), 0, 2 * kInner);
  const auto up = touchstone::with_stride(touchstone::make_view(row + kInner, {kTokens, kInner}), 0,
                                          2 * kInner);

  touchstone::Context ctx;  // the CPU, all cores
  touchstone::gate(ctx, {.gate = gate, .up = up, .y = y, .kind = touchstone::Activation::silu});
  std::cout << "y[0][0] = " << y.values<float>()[0] << '\n';
}
// [snippet]
