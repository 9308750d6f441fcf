// Reads two rows of a quantized table, one of them twice.
// [snippet]
#include <touchstone/touchstone.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <vector>

int main() {
  using touchstone::DType, touchstone::Tensor;
  constexpr int kTokens = 3, kVocabulary = 1000, kWidth = 256;
  // A table in GGUF's q4_k, as a model file holds it.
  const touchstone::WeightFormat& format = touchstone::weight_format("q4_k");
  const std::int64_t row_bytes = touchstone::weight_bytes(format, kWidth);
  Tensor table = Tensor::zeros({kVocabulary, row_bytes}, DType::u8);
  const std::vector<float> values(kWidth, 0.5F);
  touchstone::encode_weights(
      format, values,
      std::as_writable_bytes(table.values<std::uint8_t>().subspan(
          static_cast<std::size_t>(7 * row_bytes), static_cast<std::size_t>(row_bytes))));

  Tensor tokens = Tensor::empty({kTokens}, DType::i32);
  std::ranges::copy(std::vector<std::int32_t>{7, 0, 7}, tokens.values<std::int32_t>().begin());
  Tensor y = Tensor::empty({kTokens, kWidth}, DType::bf16);
  touchstone::Context ctx;  // the CPU, all cores
  touchstone::embedding(ctx, {.tokens = tokens,
                              .weight = table,
                              .weight_format = "q4_k",
                              .y = y,
                              .scale = 16});  // sqrt(kWidth), as Gemma has it
  std::cout << "y[0][0] = " << float(y.values<touchstone::Bf16>()[0]) << '\n';
}
// [snippet]
