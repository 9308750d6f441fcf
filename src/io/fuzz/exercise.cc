#include "io/fuzz/exercise.h"

#include <algorithm>
#include <array>
#include <string>

#include "io/model/describe.h"
#include "touchstone/core/error.h"
#include "touchstone/io/model_file.h"
#include "touchstone/io/tensor_file.h"

namespace touchstone::inline v0::io {
namespace {

// What is passed here is computed, whatever the compiler thinks of it.
void use(auto value) { asm volatile("" : : "m"(value)); }

void read_value(const MetadataValue& value) {
  // Every accessor: of the wrong type it must refuse.
  const auto attempt = [](auto call) {
    try {
      call();
    } catch (const CorruptData&) {
    }
  };
  attempt([&] { use(value.as_bool()); });
  attempt([&] { use(value.as_int()); });
  attempt([&] { use(value.as_float()); });
  attempt([&] { use(value.as_string().size()); });
  attempt([&] {
    for (const std::string_view text : value.strings()) {
      for (const char c : text) use(c);
    }
  });
  attempt([&] {
    for (const std::int64_t number : value.integers()) use(number);
  });
  attempt([&] {
    for (const float number : value.floats()) use(number);
  });
}

void read_tensor(const TensorInfo& tensor) {
  for (const std::byte byte : tensor.data.first(std::min<std::size_t>(tensor.data.size(), 64))) {
    use(static_cast<int>(byte));
  }
  if (!tensor.data.empty()) use(static_cast<int>(tensor.data.back()));
  if (tensor.format == nullptr) return;
  const auto block = static_cast<std::size_t>(tensor.format->block_bytes);
  std::array<float, 256> values{};
  if (tensor.data.size() >= block) {
    tensor.format->decode(tensor.data.data() + (tensor.data.size() / block - 1) * block, 1,
                          values.data());
    use(values[0]);
  }
}

}  // namespace

bool exercise_tensor_file(std::span<const std::byte> bytes) {
  try {
    TensorFile file = TensorFile::from_bytes("fuzz", bytes);
    for (const MetadataValue& value : file.metadata()) read_value(value);
    for (const TensorInfo& tensor : file.tensors()) read_tensor(tensor);
    if (file.container() == Container::gguf) {
      const ModelFile model = ModelFile::from_gguf(std::move(file));
      for (const WeightInfo& weight : model.weights()) {
        use(model.load(weight.name).data.size());
      }
      describe(model.description());
    }
    return true;
  } catch (const Error&) {
    return false;
  }
}

bool exercise_config(std::span<const std::byte> bytes) {
  try {
    describe(
        describe_hugging_face({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, ""));
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace touchstone::inline v0::io
