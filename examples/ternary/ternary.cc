// Projects weights to ternary ones, packs them and multiplies from 2-bit storage: docs/ternary.md.
// [snippet]
#include <touchstone/touchstone.h>

#include <algorithm>
#include <iostream>
#include <vector>

int main() {
  using touchstone::DType, touchstone::Tensor;
  constexpr int kOut = 64, kIn = 256;
  const touchstone::WeightFormat& format = touchstone::weight_format("ternary_g128");
  std::vector<float> latent(kOut * kIn);
  std::ranges::generate(latent, [n = 0]() mutable { return float(n++ * 37 % 101 - 50) / 1000; });

  // The weights as f32 for training, and packed as in a file: 34 bytes for 128 values.
  std::vector<float> projected(latent.size());
  const touchstone::TernarySummary summary =
      touchstone::ternary_project({}, kOut, kIn, latent, {.values = projected});
  Tensor packed = Tensor::empty({kOut, touchstone::weight_bytes(format, kIn)}, DType::u8);
  touchstone::encode_weights(format, projected,
                             std::as_writable_bytes(packed.values<std::uint8_t>()));

  Tensor x = Tensor::empty({1, kIn}, DType::f32);
  std::ranges::generate(x.values<float>(), [n = 0]() mutable { return float(n++ % 13 - 6); });
  Tensor y = Tensor::empty({1, kOut}, DType::f32);
  touchstone::Context ctx;
  touchstone::linear(ctx, {.x = x,
                           .weight = packed,
                           .weight_format = "ternary_g128",
                           .y = y,
                           .int8_activations = true});
  std::cout << summary.groups << " groups, " << summary.zero_codes
            << " zeros, y[0] = " << y.values<float>()[0] << '\n';
}
// [snippet]
