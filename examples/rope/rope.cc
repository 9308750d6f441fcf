// Rotates the queries of three tokens by their positions, with the frequencies of Llama 3.1.
// [snippet]
#include <touchstone/touchstone.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <numeric>

int main() {
  using touchstone::DType, touchstone::Tensor;
  constexpr int kTokens = 3, kHeads = 32, kDim = 128;
  const touchstone::RopeFrequencies llama = touchstone::rope_frequencies(
      kDim, 500000,
      {.kind = touchstone::RopeScaling::Kind::llama3, .factor = 8, .original_length = 8192});
  Tensor frequencies = Tensor::empty({kDim / 2}, DType::f64);
  std::ranges::copy(llama.values, frequencies.values<double>().begin());
  Tensor positions = Tensor::empty({kTokens}, DType::i64);
  std::iota(positions.values<std::int64_t>().begin(), positions.values<std::int64_t>().end(),
            131069);

  Tensor q = Tensor::zeros({kTokens, kHeads, kDim}, DType::bf16);
  std::ranges::fill(q.values<touchstone::Bf16>(), touchstone::Bf16(1.0F));
  touchstone::Context ctx;  // the CPU, all cores
  touchstone::rope(ctx, {.x = q,
                         .positions = positions,
                         .frequencies = frequencies,
                         .y = q,  // in place
                         .scale = llama.attention_factor});
  std::cout << "q[2][0][0] = " << float(q.values<touchstone::Bf16>()[2 * kHeads * kDim]) << '\n';
}
// [snippet]
