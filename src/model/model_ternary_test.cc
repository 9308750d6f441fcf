// A ternary model from every format that can hold it: the same greedy tokens for 1000 steps.
#include <gtest/gtest.h>

#include <algorithm>

#include "model/model_test_support.h"
#include "touchstone/core/weight_format.h"
#include "touchstone/io/convert.h"
#include "touchstone/io/ternary_file.h"

namespace touchstone::model {
namespace {

constexpr std::int64_t kSteps = 1000;

// A llama of one layer whose rows are whole groups of 256.
void write_llama(const std::filesystem::path& path) {
  const Json config = {{"architectures", {"LlamaForCausalLM"}},
                       {"model_type", "llama"},
                       {"hidden_size", 256},
                       {"intermediate_size", 256},
                       {"num_hidden_layers", 1},
                       {"num_attention_heads", 4},
                       {"num_key_value_heads", 2},
                       {"max_position_embeddings", 2048},
                       {"vocab_size", 300},
                       {"rms_norm_eps", 1e-5},
                       {"rope_theta", 10000.0},
                       {"tie_word_embeddings", false},
                       {"hidden_act", "silu"}};
  Json tensors = Json::array();
  const auto add = [&](const std::string& name, std::vector<std::int64_t> shape, double scale,
                       double shift) {
    tensors.push_back({{"name", name}, {"shape", shape}, {"scale", scale}, {"shift", shift}});
  };
  const std::string layer = "model.layers.0.";
  add("model.embed_tokens.weight", {300, 256}, 1, 0);
  add(layer + "input_layernorm.weight", {256}, 0, 1);
  add(layer + "self_attn.q_proj.weight", {256, 256}, 0.3, 0);
  add(layer + "self_attn.k_proj.weight", {128, 256}, 0.3, 0);
  add(layer + "self_attn.v_proj.weight", {128, 256}, 0.3, 0);
  add(layer + "self_attn.o_proj.weight", {256, 256}, 0.3, 0);
  add(layer + "post_attention_layernorm.weight", {256}, 0, 1);
  add(layer + "mlp.gate_proj.weight", {256, 256}, 0.3, 0);
  add(layer + "mlp.up_proj.weight", {256, 256}, 0.3, 0);
  add(layer + "mlp.down_proj.weight", {256, 256}, 0.3, 0);
  add("model.norm.weight", {256}, 0, 1);
  add("lm_head.weight", {300, 256}, 0.3, 0);
  test::write_model(path, config, tensors);
}

std::vector<std::int32_t> greedy(const std::filesystem::path& path) {
  Context context = test::device_context(1);
  Model model(context, io::ModelFile::open(path), {.max_length = kSteps + 8, .sequences = 1});
  const decode::ScorerSequence sequence = model.create();
  std::vector<std::int32_t> tokens = {17};
  while (std::ssize(tokens) <= kSteps) {
    const std::int32_t last[] = {tokens.back()};
    const std::vector<float> logits = test::last_logits(context, model, sequence, last, 1);
    const auto most = std::max_element(logits.begin(), logits.end());
    tokens.push_back(static_cast<std::int32_t>(most - logits.begin()));
  }
  return tokens;
}

void convert(const std::filesystem::path& from, const std::filesystem::path& to,
             std::string_view type, std::optional<TernaryScaleRule> project = {}) {
  io::ConvertOptions options;
  if (!type.empty()) options.format = &weight_format(type);
  options.project = project;
  io::convert_model(from, to, options);
}

TEST(ModelTernary, EveryFormatGivesTheSameGreedyTokens) {
  const test::ModelFolder folder("ternary");
  write_llama(folder.path());
  const auto at = [&](const std::string& name) { return folder.path() / name; };
  convert(folder.path(), at("tq2_0.gguf"), "tq2_0", TernaryScaleRule::mean);
  const std::vector<std::int32_t> expected = greedy(at("tq2_0.gguf"));
  const auto [least, most] = std::minmax_element(expected.begin() + 1, expected.end());
  EXPECT_LT(*least, *most) << "one token over and over would prove nothing";
  for (const WeightFormat& format : weight_formats()) {
    if (!format.ternary || format.name == "sherry_g128" || format.name == "tq2_0") continue;
    const std::string name = std::string(format.name) + ".gguf";
    convert(at("tq2_0.gguf"), at(name), format.name);
    EXPECT_TRUE(io::inspect_ternary(io::TensorFile::open(at(name))).passed()) << name;
    EXPECT_EQ(greedy(at(name)), expected) << name;
  }
  convert(at("tq2_0.gguf"), at("f32"), "");
  EXPECT_EQ(greedy(at("f32")), expected);
}

TEST(ModelTernary, SparseFormGivesTheTokensOfItsValues) {
  const test::ModelFolder folder("sherry");
  write_llama(folder.path());
  const std::filesystem::path packed = folder.path() / "sherry.gguf";
  convert(folder.path(), packed, "sherry_g128", TernaryScaleRule::mean);
  EXPECT_TRUE(io::inspect_ternary(io::TensorFile::open(packed)).passed());
  convert(packed, folder.path() / "f32", "");
  // Three of four weights are not zero: the other formats hold such a model too.
  convert(packed, folder.path() / "pq2_0.gguf", "pq2_0");
  const std::vector<std::int32_t> expected = greedy(packed);
  EXPECT_EQ(greedy(folder.path() / "f32"), expected);
  EXPECT_EQ(greedy(folder.path() / "pq2_0.gguf"), expected);
}

}  // namespace
}  // namespace touchstone::model
