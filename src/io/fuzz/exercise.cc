#include "io/fuzz/exercise.h"

#include <algorithm>
#include <array>

#include "io/container/tensor_file_state.h"
#include "io/model/describe.h"
#include "io/model/model_source.h"
#include "touchstone/core/error.h"
#include "touchstone/io/model_file.h"
#include "touchstone/io/tensor_file.h"
#include "touchstone/io/tokenizer.h"

namespace touchstone::inline v0::io {
namespace {

// What is passed here is computed, whatever the compiler thinks of it.
void use(auto value) { asm volatile("" : : "m"(value)); }

// Reads by accessor `number`.
void read_value_as(const MetadataValue& value, std::size_t number) {
  switch (number) {
    case 0:
      return use(value.as_bool());
    case 1:
      return use(value.as_int());
    case 2:
      return use(value.as_float());
    case 3:
      return use(value.as_string().size());
    case 4:
      for (const std::string_view text : value.strings()) {
        for (const char c : text) use(c);
      }
      return;
    case 5:
      for (const std::int64_t x : value.integers()) use(x);
      return;
    default:
      for (const float x : value.floats()) use(x);
  }
}

// The accessor that fits the type, and another one in turn, which must refuse: an exception each
// would be most of the time.
void read_value(const MetadataValue& value, std::size_t index) {
  using Type = MetadataValue::Type;
  const Type type = value.element_type();
  std::size_t fitting = type == Type::boolean ? 0 : type == Type::string ? 3 : 1;
  if (type == Type::f32 || type == Type::f64) fitting = 2;
  if (value.is_array()) fitting = type == Type::string ? 4 : fitting == 2 ? 6 : 5;
  for (const std::size_t number : {fitting, index % 7}) {
    try {
      read_value_as(value, number);
    } catch (const CorruptData&) {
    }
    if (index > 8) return;
  }
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
    std::size_t index = 0;
    for (const MetadataValue& value : file.metadata()) read_value(value, index++);
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

bool exercise_vocabulary(std::span<const std::byte> bytes) {
  try {
    const TensorFile file = TensorFile::from_bytes("fuzz", bytes);
    const Tokenizer tokenizer = Tokenizer::from_vocabulary(read_tokenizer_vocabulary(file));
    for (const std::string_view text :
         {"", "aab ab  <s> uA\n", "\xc3\xa9 12\xf0\x9f\x98\x80 [MASK]"}) {
      const std::vector<Token> ids = tokenizer.encode(text);
      use(tokenizer.decode(ids).size());
    }
    tokenizer.describe();
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

bool exercise_side_text(std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  constexpr std::string_view kModel =
      R"({"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "vocab_size": 512})";
  const auto accepted = [](const auto& read) {
    try {
      read();
      return true;
    } catch (const Error&) {
      return false;
    }
  };
  const bool generation = accepted([&] { describe(describe_hugging_face(kModel, text)); });
  const bool index = accepted([&] { use(read_safetensors_index("fuzz", text).size()); });
  const bool tokenizer =
      accepted([&] { use(chat_template_of_config("fuzz", text).value_or("").size()); });
  return generation || index || tokenizer;
}

}  // namespace touchstone::inline v0::io
