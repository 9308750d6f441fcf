// Tensors to safetensors, to GGUF in blocks, and back as floats.
// [snippet]
#include <touchstone/io/convert.h>
#include <touchstone/io/tensor_file.h>
#include <touchstone/io/write_tensors.h>

#include <filesystem>
#include <iostream>
#include <vector>

int main() {
  using namespace touchstone;
  const auto folder = std::filesystem::temp_directory_path();
  const auto in = folder / "touchstone_example.safetensors";
  const auto out = folder / "touchstone_example.gguf";

  std::vector<float> weights(4 * 256);
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(i % 9) - 4;
  const std::vector<io::OutputTensor> tensors = {
      {"w", "f32", {4, 256}, [&](auto&) { return std::as_bytes(std::span(weights)); }}};
  io::write_safetensors(in, tensors);
  io::convert_model(in, out, {.format = &weight_format("q4_k")});

  const io::TensorFile file = io::TensorFile::open(out);  // mapped: nothing is read yet
  for (const io::TensorInfo& tensor : file.tensors()) {
    std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
    decode_weights(*tensor.format, tensor.data, values);
    std::cout << tensor.name << ": " << tensor.type << ", " << tensor.data.size() << " bytes, "
              << values[8] << " was " << weights[8] << '\n';
  }
  std::filesystem::remove(in);
  std::filesystem::remove(out);
}
// [snippet]
