// Conversion in both directions against the files that scripts/make_golden_models.py wrote.
#include "touchstone/io/convert.h"

#include <map>

#include "io/model/model_test_support.h"
#include "touchstone/core/error.h"
#include "touchstone/io/chat_template.h"

namespace touchstone::io {
namespace {

using test::folder_of;
using test::gguf_of;
using test::kModels;
using test::read_file;
using test::TemporaryFolder;
using test::text_of;
using test::write_file;

// Names, types, shapes and bytes; not the order. Masks that old files carry are no part of a model.
std::map<std::string, std::string> content(const TensorFile& file) {
  std::map<std::string, std::string> tensors;
  for (const TensorInfo& tensor : file.tensors()) {
    if (tensor.format == nullptr) continue;
    tensors[tensor.name] = tensor.type + shape_string(tensor.shape) + text_of(tensor.data);
  }
  return tensors;
}

void expect_same_tensors(const std::filesystem::path& a, const std::filesystem::path& b) {
  const auto left = content(TensorFile::open(a));
  const auto right = content(TensorFile::open(b));
  ASSERT_EQ(left.size(), right.size()) << a << " " << b;
  for (const auto& [name, bytes] : left) {
    ASSERT_TRUE(right.contains(name)) << name;
    EXPECT_EQ(bytes == right.at(name), true) << a << ": " << name;
  }
}

bool is_gemma(std::string_view name) { return name.starts_with("gemma"); }

TEST(Convert, FoldersToGguf) {
  for (const char* const name : kModels) {
    const TemporaryFolder out;
    convert_model(folder_of(name), out / "m.gguf");
    expect_same_tensors(out / "m.gguf", gguf_of(name));
    EXPECT_TRUE(ModelFile::open(out / "m.gguf").description() ==
                ModelFile::open(gguf_of(name)).description())
        << name;
  }
}

TEST(Convert, GgufToFolders) {
  for (const char* const name : kModels) {
    const TemporaryFolder out;
    convert_model(gguf_of(name), out / "hf");
    EXPECT_TRUE(ModelFile::open(out / "hf").description() ==
                ModelFile::open(folder_of(name)).description())
        << name << read_file(out / "hf/config.json");
    // 1 is taken off Gemma's norms again, which rounds.
    if (!is_gemma(name)) expect_same_tensors(out / "hf", folder_of(name));
  }
}

TEST(Convert, ThereAndBackIsTheSame) {
  for (const char* const name : kModels) {
    const TemporaryFolder out;
    convert_model(folder_of(name), out / "m.gguf");
    convert_model(out / "m.gguf", out / "hf");
    if (!is_gemma(name)) expect_same_tensors(out / "hf", folder_of(name));
    convert_model(gguf_of(name), out / "same.gguf");
    expect_same_tensors(out / "same.gguf", gguf_of(name));
  }
}

TEST(Convert, EveryTypeOfGgufDecodesToTheEncodedValues) {
  // Rows of 256 in a model that is otherwise small.
  const TemporaryFolder out;
  std::vector<float> values(4 * 256);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(static_cast<int>(i * 37 % 201) - 100) / 64.0F;
  }
  const std::vector<OutputTensor> tensors = {{"w", "f32", {4, 256}, [&](std::vector<std::byte>&) {
                                                return std::as_bytes(std::span(values));
                                              }}};
  write_safetensors(out / "t.safetensors", tensors);
  for (const char* const type :
       {"f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k"}) {
    const WeightFormat& format = weight_format(std::string_view(type));
    ConvertOptions options;
    options.format = &format;
    convert_model(out / "t.safetensors", out / "t.gguf", options);
    const TensorFile file = TensorFile::open(out / "t.gguf");
    EXPECT_EQ(file.tensor("w").type, type);
    std::vector<std::byte> encoded(static_cast<std::size_t>(weight_bytes(format, 1024)));
    encode_weights(format, values, encoded);
    EXPECT_EQ(text_of(file.tensor("w").data), text_of(encoded)) << type;
    // Back in f32: what the blocks decode to.
    convert_model(out / "t.gguf", out / "back.safetensors");
    std::vector<float> decoded(values.size());
    decode_weights(format, encoded, decoded);
    const TensorFile back = TensorFile::open(out / "back.safetensors");
    if (format.block_elements > 1) {
      EXPECT_EQ(back.tensor("w").type, "f32");
      EXPECT_EQ(text_of(back.tensor("w").data), text_of(std::as_bytes(std::span(decoded)))) << type;
    } else {
      EXPECT_EQ(back.tensor("w").type, type);
    }
  }
}

TEST(Convert, ShardsAndTheirIndex) {
  const TemporaryFolder out;
  ConvertOptions options;
  options.max_shard_bytes = 3000;
  convert_model(gguf_of("llama"), out / "hf", options);
  const TensorFile file = TensorFile::open(out / "hf");
  EXPECT_GT(file.files().size(), 2U);
  expect_same_tensors(out / "hf", folder_of("llama"));
  EXPECT_EQ(ModelFile::open(out / "hf").weights().size(),
            ModelFile::open(gguf_of("llama")).weights().size());
}

TEST(Convert, CarriesTokenizerAndTemplate) {
  const TemporaryFolder out;
  std::filesystem::copy(folder_of("llama"), out / "hf");
  write_file(out / "hf/tokenizer.json", R"({"model": {}})");
  write_file(out / "hf/tokenizer_config.json", R"({"chat_template": "{{ x }}"})");
  convert_model(out / "hf", out / "m.gguf");
  const TensorFile file = TensorFile::open(out / "m.gguf");
  EXPECT_EQ(file.find_metadata("tokenizer.huggingface.json")->as_string(), R"({"model": {}})");
  EXPECT_EQ(file.find_metadata("tokenizer.chat_template")->as_string(), "{{ x }}");
  convert_model(out / "m.gguf", out / "back");
  EXPECT_EQ(read_file(out / "back/tokenizer.json"), R"({"model": {}})");
  EXPECT_EQ(read_file(out / "back/chat_template.jinja"), "{{ x }}");
}

TEST(Convert, FindsTheTemplateOfAModel) {
  const TemporaryFolder out;
  std::filesystem::copy(folder_of("llama"), out / "hf");
  EXPECT_EQ(read_chat_template(out / "hf"), std::nullopt);
  const auto config = [&](const char* text) { write_file(out / "hf/tokenizer_config.json", text); };
  config(R"({"chat_template": null})");
  EXPECT_EQ(read_chat_template(out / "hf"), std::nullopt);
  config(R"({"chat_template": [{"name": "tool_use", "template": "t"},
                               {"name": "default", "template": "d"}]})");
  EXPECT_EQ(read_chat_template(out / "hf"), "d");
  EXPECT_EQ(read_chat_template(TensorFile::open(out / "hf").files()[0]), "d");
  convert_model(out / "hf", out / "m.gguf");
  EXPECT_EQ(read_chat_template(out / "m.gguf"), "d");
  config(R"({"chat_template": [{"name": "tool_use", "template": "t"}]})");
  EXPECT_THROW(read_chat_template(out / "hf"), Unsupported);
  config(R"({"chat_template": 5})");
  EXPECT_THROW(read_chat_template(out / "hf"), CorruptData);
  write_file(out / "hf/chat_template.jinja", "j");  // goes before
  EXPECT_EQ(read_chat_template(out / "hf"), "j");
  // A template beside a GGUF file may be another model's.
  write_file(out / "chat_template.jinja", "k");
  EXPECT_EQ(read_chat_template(out / "m.gguf"), "d");
  std::filesystem::copy(gguf_of("llama"), out / "n.gguf");
  EXPECT_EQ(read_chat_template(out / "n.gguf"), std::nullopt);
}

TEST(Convert, FallsBackWhereBlocksDoNotDivideRows) {
  const TemporaryFolder out;
  ConvertOptions options;
  options.format = &weight_format("q4_k");
  const ConvertReport report = convert_model(folder_of("llama"), out / "m.gguf", options);
  ASSERT_FALSE(report.notes.empty());
  EXPECT_EQ(report.notes[0],
            "matrices with rows of 16 become f16: blocks of q4_k do not divide them");
  EXPECT_EQ(TensorFile::open(out / "m.gguf").tensor("blk.0.attn_q.weight").type, "f16");
}

TEST(Convert, RefusesWhatItCannotWrite) {
  const TemporaryFolder out;
  ConvertOptions options;
  options.format = &weight_format("q8_0");
  EXPECT_THROW(convert_model(gguf_of("llama"), out / "hf", options), InvalidArgument);
  options.format = &weight_format("fp8_e4m3");
  EXPECT_THROW(convert_model(gguf_of("llama"), out / "m.gguf", options), InvalidArgument);
  write_file(out / "full", "");
  EXPECT_THROW(convert_model(gguf_of("llama"), out / "full"), InvalidArgument);
  EXPECT_THROW(convert_model(out / "nothing.gguf", out / "m.gguf"), FileError);
  EXPECT_FALSE(std::filesystem::exists(out / "m.gguf"));
  EXPECT_FALSE(std::filesystem::exists(out / "hf"));
}

}  // namespace
}  // namespace touchstone::io
