// Conversion in both directions against the files that scripts/make_golden_models.py wrote.
#include "touchstone/io/convert.h"

#include <sys/resource.h>

#include <algorithm>
#include <csignal>
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

// A weight that f16 would turn into infinity makes NaN of all logits.
TEST(Convert, RefusesNumbersThatBecomeInfinity) {
  const TemporaryFolder out;
  std::vector<float> values(1024, 1.0F);
  values[300] = 1e6F;
  const std::vector<OutputTensor> tensors = {{"w", "f32", {4, 256}, [&](std::vector<std::byte>&) {
                                                return std::as_bytes(std::span(values));
                                              }}};
  write_safetensors(out / "t.safetensors", tensors);
  ConvertOptions options;
  options.format = &weight_format("f16");
  try {
    convert_model(out / "t.safetensors", out / "t.gguf", options);
    FAIL() << "converted";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(
        error.what(),
        "convert: tensor 'w': rows from 0 on: value 300 is 1000000.000000, which f16 cannot hold");
  }
  EXPECT_FALSE(std::filesystem::exists(out / "t.gguf"));
  options.format = &weight_format("bf16");
  convert_model(out / "t.safetensors", out / "t.gguf", options);
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

// A copy of a model's folder with a member added to its config.json, which has none of that name.
std::filesystem::path with_member(const TemporaryFolder& out, const char* model,
                                  const std::string& member) {
  const std::filesystem::path folder = out / (std::string(model) + std::to_string(member.size()));
  std::filesystem::remove_all(folder);
  std::filesystem::copy(folder_of(model), folder);
  std::string config = read_file(folder / "config.json");
  const std::string key = member.substr(0, member.find(':'));
  if (const std::size_t at = config.find(key); at != std::string::npos) {
    config.erase(at, config.find('\n', at) - at);
  }
  write_file(folder / "config.json", config.insert(1, member + ","));
  return folder;
}

std::string refusal_of(const std::filesystem::path& in, const std::filesystem::path& out) {
  try {
    convert_model(in, out);
  } catch (const Unsupported& error) {
    EXPECT_FALSE(std::filesystem::exists(out)) << out;
    return error.what();
  }
  return "converted";
}

TEST(Convert, RefusesWhatWouldReadAsAnotherModel) {
  const TemporaryFolder out;
  const auto to_gguf = [&](const char* model, const char* member) {
    return refusal_of(with_member(out, model, member), out / "m.gguf");
  };
  EXPECT_EQ(to_gguf("gpt_neox", R"("hidden_act": "gelu_fast")"),
            "convert: GGUF has no key for: activation gelu_tanh (it would be read as gelu)");
  EXPECT_EQ(to_gguf("gpt2", R"("activation_function": "relu")"),
            "convert: GGUF has no key for: activation relu (it would be read as gelu_tanh)");
  EXPECT_EQ(to_gguf("llama", R"("hidden_act": "gelu")"),
            "convert: GGUF has no key for: activation gelu (it would be read as silu)");
  EXPECT_EQ(to_gguf("gpt2", R"("scale_attn_weights": false)"),
            "convert: GGUF has no key for: attention scale 1 (it would be read as 0.5)");
  EXPECT_EQ(to_gguf("llama", R"("partial_rotary_factor": 0.5)"),
            "convert: GGUF: partial rotation in the llama architecture");
  // A folder says all of it.
  const std::pair<const char*, const char*> kept[] = {{"gpt_neox", R"("hidden_act": "gelu_fast")"},
                                                      {"gpt2", R"("activation_function": "relu")"},
                                                      {"gpt2", R"("scale_attn_weights": false)"},
                                                      {"llama", R"("partial_rotary_factor": 0.5)"}};
  for (const auto& [model, member] : kept) {
    const std::filesystem::path folder = with_member(out, model, member);
    std::filesystem::remove_all(out / "hf");
    convert_model(folder, out / "hf");
    EXPECT_TRUE(ModelFile::open(out / "hf").description() == ModelFile::open(folder).description())
        << member;
  }
}

// A copy of a GGUF file with other values of some keys.
void write_with(const std::filesystem::path& in, const std::filesystem::path& out,
                const GgufMetadata& keys) {
  const TensorFile file = TensorFile::open(in);
  GgufMetadata metadata = keys;
  for (const MetadataValue& value : file.metadata()) {
    const auto is_set = [&](const GgufMetadata::Entry& entry) { return entry.key == value.key(); };
    if (std::ranges::none_of(keys.entries(), is_set)) metadata.set(value);
  }
  std::vector<OutputTensor> tensors;
  for (const TensorInfo& tensor : file.tensors()) {
    tensors.push_back({tensor.name, tensor.type, tensor.shape,
                       [&tensor](std::vector<std::byte>&) { return tensor.data; }});
  }
  write_gguf(out, metadata, tensors);
}

TEST(Convert, RefusesAConfigThatWouldReadAsAnotherModel) {
  const TemporaryFolder out;
  GgufMetadata keys;
  keys.set("qwen2.attention.sliding_window", std::uint32_t{16});
  keys.set("qwen2.rope.scaling.type", "linear");
  keys.set("qwen2.rope.scaling.factor", 2.0F);
  write_with(gguf_of("qwen2"), out / "kept.gguf", keys);
  convert_model(out / "kept.gguf", out / "kept");
  EXPECT_EQ(ModelFile::open(out / "kept").description().rope,
            ModelFile::open(out / "kept.gguf").description().rope);
  // GPT-2 has no windows there.
  GgufMetadata window;
  window.set("gpt2.attention.sliding_window", std::uint32_t{16});
  write_with(gguf_of("gpt2"), out / "window.gguf", window);
  EXPECT_EQ(refusal_of(out / "window.gguf", out / "window"),
            "convert: config.json has no key for: windows and sinks");
}

TEST(Convert, KeepsTheOrderOfEndTokens) {
  const TemporaryFolder out;
  convert_model(with_member(out, "llama", R"("eos_token_id": [7, 3, 7])"), out / "m.gguf");
  EXPECT_EQ(TensorFile::open(out / "m.gguf").find_metadata("tokenizer.ggml.eos_token_id")->as_int(),
            7);
  EXPECT_EQ(ModelFile::open(out / "m.gguf").description().eos_tokens,
            (std::vector<std::int64_t>{7, 3}));
  // Ends of a turn and of a message stop a chat model, too.
  GgufMetadata keys;
  keys.set("tokenizer.ggml.eot_token_id", std::uint32_t{9});
  keys.set("tokenizer.ggml.eom_token_id", std::uint32_t{1});
  write_with(out / "m.gguf", out / "turns.gguf", keys);
  EXPECT_EQ(ModelFile::open(out / "turns.gguf").description().eos_tokens,
            (std::vector<std::int64_t>{7, 3, 9, 1}));
  convert_model(out / "turns.gguf", out / "hf");
  EXPECT_EQ(ModelFile::open(out / "hf").description().eos_tokens,
            (std::vector<std::int64_t>{7, 3, 9, 1}));
}

TEST(Convert, RefusesBadKeysOfGguf) {
  const TemporaryFolder out;
  const auto error_with = [&](const char* key, const auto& value) -> std::string {
    GgufMetadata keys;
    keys.set(key, value);
    write_with(gguf_of("phi3"), out / "m.gguf", keys);
    try {
      ModelFile::open(out / "m.gguf");
    } catch (const Error& error) {
      return error.what();
    }
    return "opened";
  };
  const std::string file = (out / "m.gguf").string();
  EXPECT_EQ(error_with("tokenizer.ggml.bos_token_id", std::uint32_t{77777}),
            file + ": begin token 77777 is not in the vocabulary");
  EXPECT_EQ(error_with("tokenizer.ggml.bos_token_id", std::uint32_t{0xffffffffU}), "opened");
  EXPECT_EQ(error_with("tokenizer.ggml.eot_token_id", std::int32_t{-1}), "opened");
  EXPECT_EQ(error_with("phi3.rope.scaling.type", "longrope"),
            file + ": rope scaling 'longrope' without its tensors of factors");
}

// Tensors without elements: nothing to convert, and no division by their extents.
TEST(Convert, TensorsOfNoElements) {
  const TemporaryFolder out;
  const auto nothing = [](std::vector<std::byte>&) { return std::span<const std::byte>(); };
  write_safetensors(out / "t.safetensors",
                    std::vector<OutputTensor>{{"no_columns", "f32", {4, 0}, nothing},
                                              {"no_rows", "f32", {0, 256}, nothing}});
  for (const char* const type : {"f16", "q4_k"}) {
    ConvertOptions options;
    options.format = &weight_format(std::string_view(type));
    EXPECT_EQ(convert_model(out / "t.safetensors", out / "t.gguf", options).bytes, 0U);
    const TensorFile file = TensorFile::open(out / "t.gguf");
    EXPECT_EQ(file.tensor("no_columns").type, type);
    EXPECT_EQ(file.tensor("no_columns").shape, (std::vector<std::int64_t>{4, 0}));
    EXPECT_EQ(file.tensor("no_rows").shape, (std::vector<std::int64_t>{0, 256}));
  }
}

TEST(Convert, TensorsOfNoModelAreOneFile) {
  const TemporaryFolder out;
  const std::vector<float> values(4 * 256, 1.0F);
  write_safetensors(out / "t.safetensors",
                    std::vector<OutputTensor>{{"w", "f32", {4, 256}, [&](std::vector<std::byte>&) {
                                                 return std::as_bytes(std::span(values));
                                               }}});
  ConvertOptions options;
  options.max_shard_bytes = 100;
  EXPECT_THROW(convert_model(out / "t.safetensors", out / "u.safetensors", options),
               InvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(out / "u.safetensors"));
  options = {};
  options.format = &weight_format("q8_0");
  // Of what is written, not of what was read.
  EXPECT_EQ(convert_model(out / "t.safetensors", out / "t.gguf", options).bytes, 4U * 8 * 34);
}

// Files of at most this many bytes, as on a disk that is full.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit now = {.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &now);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    (void)std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  void (*handler_)(int);
  rlimit before_{};
};

// What a failed conversion wrote and made is gone, what was there is not.
TEST(Convert, FailuresLeaveNothingBehind) {
  const TemporaryFolder out;
  std::filesystem::create_directories(out / "empty");
  std::filesystem::create_symlink(out / "nowhere", out / "link");
  EXPECT_THROW(convert_model(folder_of("llama"), out / "link"), FileError);
  EXPECT_TRUE(std::filesystem::is_symlink(out / "link"));
  std::string long_template(20000, 'x');
  std::filesystem::copy(folder_of("llama"), out / "in");
  write_file(out / "in/chat_template.jinja", long_template);
  for (const std::uint64_t shard : {0, 600}) {
    ConvertOptions options;
    options.max_shard_bytes = shard;
    // The weights do not fit; or they do, and the template that comes last does not.
    for (const rlim_t bytes : {rlim_t{500}, rlim_t{16384}}) {
      const FileSizeLimit limit(bytes);
      EXPECT_THROW(convert_model(out / "in", out / "new/deep/hf/", options), FileError);
      EXPECT_FALSE(std::filesystem::exists(out / "new")) << bytes << " " << shard;
      EXPECT_THROW(convert_model(out / "in", out / "empty", options), FileError);
      EXPECT_TRUE(std::filesystem::is_empty(out / "empty")) << bytes << " " << shard;
    }
    convert_model(out / "in", out / "empty", options);
    EXPECT_TRUE(std::filesystem::exists(out / "empty/config.json"));
    for (const auto& entry : std::filesystem::directory_iterator(out / "empty")) {
      std::filesystem::remove(entry.path());
    }
  }
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
