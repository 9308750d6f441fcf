// A gated feed-forward layer from quantized weights: the example in docs/ops/linear.md.
// [snippet]
#include <touchstone/touchstone.h>

#include <algorithm>
#include <cstring>
#include <iostream>
#include <vector>

int main() {
  using touchstone::DType, touchstone::Tensor;
  constexpr int kRows = 3, kWidth = 256, kInner = 512;
  const touchstone::WeightFormat& q4 = touchstone::weight_format("q4_0");
  const auto bytes = touchstone::weight_bytes(q4, kWidth);

  // Gate rows, then up rows, as blocks of 4 bits; a file of the model would hold them so.
  std::vector<float> values(2 * kInner * kWidth);
  std::ranges::generate(values, [n = 0]() mutable { return float(n++ % 29 - 14) / 64; });
  Tensor gate_up = Tensor::empty({2 * kInner, bytes}, DType::u8);
  touchstone::encode_weights(q4, values, std::as_writable_bytes(gate_up.values<std::uint8_t>()));

  Tensor x = Tensor::empty({kRows, kWidth}, DType::f32);
  std::ranges::generate(x.values<float>(), [n = 0]() mutable { return float(n++ % 13 - 6); });
  Tensor y = Tensor::empty({kRows, kInner}, DType::f32);
  Tensor alone = Tensor::empty({1, kInner}, DType::f32);

  touchstone::Context ctx;  // the CPU, all cores
  touchstone::linear(ctx, {.x = x,
                           .weight = gate_up,
                           .weight_format = "q4_0",
                           .y = y,
                           .gate = touchstone::LinearGate::silu});
  // One row by itself: the same bits as in the batch.
  touchstone::linear(ctx, {.x = touchstone::make_view(x.values<float>().data(), {1, kWidth}),
                           .weight = gate_up,
                           .weight_format = "q4_0",
                           .y = alone,
                           .gate = touchstone::LinearGate::silu});
  const bool same = std::memcmp(alone.data(), y.data(), kInner * sizeof(float)) == 0;
  std::cout << (same ? "the same bits" : "other bits") << '\n';
  return same ? 0 : 1;
}
// [snippet]
