// config.json files as they are published, and as nobody should write them.
#include "plan/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <string_view>

#include "io/model/describe.h"
#include "touchstone/core/error.h"
#include "touchstone/plan/catalog.h"

namespace touchstone::inline v0::plan {
namespace {

using json = Json;
using testing::HasSubstr;

json llama() {
  return {{"model_type", "llama"},       {"hidden_size", 4096},
          {"intermediate_size", 14336},  {"num_attention_heads", 32},
          {"num_hidden_layers", 32},     {"num_key_value_heads", 8},
          {"vocab_size", 128256},        {"max_position_embeddings", 8192},
          {"tie_word_embeddings", false}};
}

ModelSpec read(const json& config) { return parse_model_config("config.json", config.dump()); }

std::string refusal(const std::string& text) {
  try {
    parse_model_config("config.json", text);
  } catch (const CorruptData& error) {
    return error.what();
  }
  return "";
}

// What our table says of the same model.
void expect_like_table(const ModelSpec& read, const char* name) {
  const ModelSpec& known = find_model(name);
  EXPECT_EQ(read.parameters, known.parameters) << name;
  EXPECT_EQ(read.active_parameters, known.active_parameters) << name;
  EXPECT_EQ(read.cached, known.cached) << name;
  EXPECT_EQ(read.hidden, known.hidden) << name;
  EXPECT_EQ(read.vocabulary, known.vocabulary) << name;
  EXPECT_EQ(read.query_heads, known.query_heads) << name;
  EXPECT_EQ(read.native_context, known.native_context) << name;
  EXPECT_EQ(read.parameters_basis, "counted") << name;
}

TEST(ModelConfig, Llama) { expect_like_table(read(llama()), "llama-3-8b"); }

TEST(ModelConfig, WithoutKeyValueHeadsItIsMultiHead) {
  json config = llama();
  config.erase("num_key_value_heads");
  config["vocab_size"] = 32000;
  config["intermediate_size"] = 11008;
  config["max_position_embeddings"] = 4096;
  expect_like_table(read(config), "llama-2-7b");
}

TEST(ModelConfig, Gpt2) {
  expect_like_table(read({{"model_type", "gpt2"},
                          {"n_embd", 768},
                          {"n_head", 12},
                          {"n_layer", 12},
                          {"n_positions", 1024},
                          {"vocab_size", 50257}}),
                    "gpt-2");
}

TEST(ModelConfig, Gemma3WithWindowsInsideATextPart) {
  json text = {{"model_type", "gemma3_text"},
               {"hidden_size", 5376},
               {"intermediate_size", 21504},
               {"num_attention_heads", 32},
               {"num_hidden_layers", 62},
               {"num_key_value_heads", 16},
               {"head_dim", 128},
               {"sliding_window", 1024},
               {"sliding_window_pattern", 6},
               {"vocab_size", 262208},
               {"max_position_embeddings", 131072}};
  expect_like_table(read({{"model_type", "gemma3"}, {"text_config", text}}), "gemma-3-27b");
}

TEST(ModelConfig, DeepSeekWithALatent) {
  expect_like_table(read({{"model_type", "deepseek_v3"},
                          {"hidden_size", 7168},
                          {"intermediate_size", 18432},
                          {"moe_intermediate_size", 2048},
                          {"num_attention_heads", 128},
                          {"num_key_value_heads", 128},
                          {"num_hidden_layers", 61},
                          {"first_k_dense_replace", 3},
                          {"n_routed_experts", 256},
                          {"n_shared_experts", 1},
                          {"num_experts_per_tok", 8},
                          {"kv_lora_rank", 512},
                          {"q_lora_rank", 1536},
                          {"qk_nope_head_dim", 128},
                          {"qk_rope_head_dim", 64},
                          {"v_head_dim", 128},
                          {"vocab_size", 129280},
                          {"max_position_embeddings", 163840},
                          {"tie_word_embeddings", false}}),
                    "deepseek-v3");
}

// As published for Gemma-2-9B and Pythia-1.4B.
TEST(ModelConfig, CountsTheFamiliesThatTheRuntimeRuns) {
  const json gemma2 = {{"model_type", "gemma2"},          {"hidden_size", 3584},
                       {"num_hidden_layers", 42},         {"num_attention_heads", 16},
                       {"num_key_value_heads", 8},        {"head_dim", 256},
                       {"intermediate_size", 14336},      {"vocab_size", 256000},
                       {"max_position_embeddings", 8192}, {"sliding_window", 4096}};
  EXPECT_EQ(read(gemma2).parameters, 9241705984);
  EXPECT_EQ(read(gemma2).parameters_basis, "counted");
  ASSERT_EQ(read(gemma2).cached.size(), 2U);
  EXPECT_EQ(read(gemma2).cached[0].layers, 21);
  EXPECT_EQ(read(gemma2).cached[1].window, 4096);
  const json pythia = {{"model_type", "gpt_neox"},        {"hidden_size", 2048},
                       {"num_hidden_layers", 24},         {"num_attention_heads", 16},
                       {"intermediate_size", 8192},       {"vocab_size", 50304},
                       {"max_position_embeddings", 2048}, {"tie_word_embeddings", false}};
  EXPECT_EQ(read(pythia).parameters, 1414647808);
  EXPECT_EQ(read(pythia).parameters_basis, "counted");
}

TEST(ModelConfig, LayerListsAndLinearLayers) {
  json config = llama();
  config["model_type"] = "qwen3_5_text";
  config["num_hidden_layers"] = 4;
  config["layer_types"] = {"linear_attention", "linear_attention", "linear_attention",
                           "full_attention"};
  config["linear_num_value_heads"] = 48;
  config["linear_num_key_heads"] = 16;
  config["linear_key_head_dim"] = 128;
  config["linear_value_head_dim"] = 128;
  config["linear_conv_kernel_dim"] = 4;
  const ModelSpec model = read(config);
  ASSERT_EQ(model.cached.size(), 1U);
  EXPECT_EQ(model.cached[0].layers, 1);
  EXPECT_EQ(model.other_layers, 3);
  EXPECT_EQ(model.state_bytes, 3 * (48 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 48 * 128) * 2));
  EXPECT_EQ(model.parameters_basis, "estimated");
}

TEST(ModelConfig, WindowsAreOnlyUsedWhereTheyAreOn) {
  json config = llama();
  config["model_type"] = "qwen3";
  config["sliding_window"] = 4096;
  config["use_sliding_window"] = false;
  EXPECT_EQ(read(config).cached.at(0).window, 0);
  config["use_sliding_window"] = true;
  config["max_window_layers"] = 20;
  ASSERT_EQ(read(config).cached.size(), 2U);
  EXPECT_EQ(read(config).cached[0].layers, 20);
  EXPECT_EQ(read(config).cached[1].window, 4096);
  config["sliding_window"] = nullptr;
  EXPECT_EQ(read(config).cached.size(), 1U);
}

TEST(ModelConfig, TruncatedAnywhereIsRefused) {
  const std::string whole = llama().dump();
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_THAT(refusal(whole.substr(0, length)), HasSubstr("config.json: ")) << length;
  }
}

TEST(ModelConfig, EveryKeyIsCheckedForTypeAndRange) {
  const json bad_values = {
      -1, 0, "32", 1.5, true, json::array(), json::object(), 1e300, 1 << 30, 18446744073709551615U};
  for (const char* key : {"hidden_size", "intermediate_size", "num_attention_heads",
                          "num_hidden_layers", "num_key_value_heads", "vocab_size"}) {
    for (const json& value : bad_values) {
      json config = llama();
      config[key] = value;
      const std::string message = refusal(config.dump());
      EXPECT_THAT(message, HasSubstr(key)) << value;
      EXPECT_EQ(message.find('\n'), std::string::npos);
    }
  }
  for (const char* key : {"hidden_size", "intermediate_size", "num_attention_heads",
                          "num_hidden_layers", "vocab_size"}) {
    json config = llama();
    config.erase(key);
    EXPECT_THAT(refusal(config.dump()), HasSubstr(std::string(key) + ": is missing"));
  }
}

TEST(ModelConfig, SumsThatDoNotFitAreRefused) {
  json config = llama();
  config["hidden_size"] = 1 << 20;
  config["head_dim"] = 128;
  config["intermediate_size"] = 1 << 20;
  config["num_hidden_layers"] = 10000;
  config["num_local_experts"] = 1 << 16;
  config["num_experts_per_tok"] = 2;
  EXPECT_THAT(refusal(config.dump()), HasSubstr("64 bits"));
}

TEST(ModelConfig, WhatIsNotUnderstoodIsSaid) {
  const auto with = [](const char* key, const json& value) {
    json config = llama();
    config[key] = value;
    return refusal(config.dump());
  };
  EXPECT_THAT(with("layer_types", "full_attention"), HasSubstr("expected a list"));
  EXPECT_THAT(with("layer_types", {"full_attention"}), HasSubstr("expected 32 entries"));
  EXPECT_THAT(with("layer_types", json(std::vector<std::string>(32, "strange"))),
              HasSubstr("strange"));
  EXPECT_THAT(with("layer_types", json(std::vector<std::string>(32, "linear_attention"))),
              HasSubstr("at least one layer"));
  EXPECT_THAT(with("layer_types", json(std::vector<std::string>(32, "sliding_attention"))),
              HasSubstr("sliding_window"));
  EXPECT_THAT(with("hybrid_override_pattern", "M*M"), HasSubstr("hybrid_override_pattern"));
  EXPECT_THAT(with("num_kv_shared_layers", 3), HasSubstr("num_kv_shared_layers"));
  EXPECT_THAT(with("model_type", 7), HasSubstr("model_type"));
  EXPECT_THAT(with("tie_word_embeddings", "no"), HasSubstr("tie_word_embeddings"));
  EXPECT_THAT(with("num_attention_heads", 31), HasSubstr("head_dim"));
  for (const char* text : {"", "null", "[]", "3", "\"x\"", "{}", "\xff\xfe", "{\"a\":"}) {
    EXPECT_THAT(refusal(text), HasSubstr("config.json: ")) << text;
  }
  EXPECT_THAT(refusal("{\"hidden_size\": 1e999}"), HasSubstr("out of range"));
  EXPECT_THAT(refusal(std::string(100000, '[')), HasSubstr("not valid JSON"));
}

TEST(ModelConfig, HybridsAreRefused) {
  for (const auto& [key, value] : {std::pair<const char*, json>{"attn_layer_period", 8},
                                   {"attn_layer_indices", {3, 7}},
                                   {"layers_block_type", {"mamba", "attention"}},
                                   {"hybrid_layer_ids", {5}},
                                   {"attn_type_list", {0, 1}},
                                   {"block_types", {"recurrent", "attention"}},
                                   {"mamba_d_state", 128},
                                   {"mamba_expand", 2}}) {
    json config = llama();
    config[key] = value;
    EXPECT_THAT(refusal(config.dump()), HasSubstr(key));
    config[key] = nullptr;
    EXPECT_EQ(refusal(config.dump()), "") << key;
  }
  // Which layers have keys and values is written down: the others are counted, not cached.
  json config = llama();
  config["mamba_d_state"] = 128;
  json types = json(std::vector<std::string>(32, "mamba"));
  types[3] = "attention";
  config["layer_types"] = types;
  EXPECT_EQ(read(config).cached.at(0).layers, 1);
  EXPECT_EQ(read(config).other_layers, 31);
}

double gib_of_weights(const json& config) {
  PlanRequest request;
  request.model = read(config);
  request.gpu = find_gpu("b300-sxm");
  request.context = 1024;
  return static_cast<double>(make_plan(request).weight_bytes) / (1 << 30);
}

TEST(ModelConfig, QuantizedWeightsHaveTheirSize) {
  json config = llama();
  EXPECT_NEAR(gib_of_weights(config), 15.0, 0.1);
  config["quantization_config"] = {
      {"quant_method", "awq"}, {"bits", 4}, {"group_size", 128}, {"zero_point", true}};
  EXPECT_NEAR(gib_of_weights(config), 5.3, 0.1);
  config["quantization_config"] = {{"quant_method", "gptq"}, {"bits", 8}, {"group_size", -1}};
  EXPECT_NEAR(gib_of_weights(config), 8.5, 0.1);
  config["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  EXPECT_NEAR(gib_of_weights(config), 8.5, 0.1);
  config["quantization_config"] = {{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}};
  EXPECT_NEAR(gib_of_weights(config), 5.6, 0.15);
  config["quantization_config"] = {
      {"quant_method", "compressed-tensors"},
      {"config_groups", {{"group_0", {{"weights", {{"num_bits", 8}, {"type", "float"}}}}}}}};
  EXPECT_NEAR(gib_of_weights(config), 8.5, 0.1);
  config["quantization_config"] = {{"quant_method", "compressed-tensors"},
                                   {"format", "nvfp4-pack-quantized"}};
  EXPECT_NEAR(gib_of_weights(config), 5.6, 0.1);
  config["quantization_config"] = {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}};
  EXPECT_NEAR(gib_of_weights(config), 5.6, 0.1);
  EXPECT_EQ(weight_format_name(*read(config).weights), "nvfp4");
  config["quantization_config"] = {{"quant_method", "qqq"}};
  EXPECT_THAT(refusal(config.dump()), HasSubstr("quant_method"));
  EXPECT_THAT(refusal(config.dump()), HasSubstr("'qqq'"));
  config["quantization_config"] = {{"quant_method", "awq"}, {"bits", 3}};
  EXPECT_THAT(refusal(config.dump()), HasSubstr("expected 4 or 8, got 3"));
  config["quantization_config"] = "awq";
  EXPECT_THAT(refusal(config.dump()), HasSubstr("expected an object"));
}

TEST(ModelConfig, Mxfp4QuantizesExpertsOnly) {
  const json config = {{"model_type", "gpt_oss"},
                       {"hidden_size", 2880},
                       {"intermediate_size", 2880},
                       {"num_attention_heads", 64},
                       {"num_key_value_heads", 8},
                       {"head_dim", 64},
                       {"num_hidden_layers", 24},
                       {"num_local_experts", 32},
                       {"num_experts_per_tok", 4},
                       {"sliding_window", 128},
                       {"sliding_window_pattern", 2},
                       {"vocab_size", 201088},
                       {"max_position_embeddings", 131072},
                       {"tie_word_embeddings", false},
                       {"quantization_config", {{"quant_method", "mxfp4"}}}};
  EXPECT_NEAR(gib_of_weights(config), 12.8, 0.2);
}

TEST(ModelConfig, GemmaLeavesKeysToItsDefaults) {
  const json text = {{"model_type", "gemma3_text"},
                     {"hidden_size", 2560},
                     {"intermediate_size", 10240},
                     {"num_hidden_layers", 34},
                     {"sliding_window", 1024}};
  expect_like_table(read({{"model_type", "gemma3"}, {"text_config", text}}), "gemma-3-4b");
}

TEST(ModelConfig, CohereTiesItsEmbedding) {
  json config = llama();
  config.erase("tie_word_embeddings");
  const std::int64_t untied = read(config).parameters;
  config["model_type"] = "cohere2";
  config["sliding_window"] = 4096;
  EXPECT_EQ(read(config).parameters, untied - std::int64_t{128256} * 4096);
}

TEST(ModelConfig, UnknownFamiliesAndOddHeadsAreSaid) {
  json config = llama();
  config["model_type"] = "nova9";
  EXPECT_THAT(read(config).note, HasSubstr("model_type 'nova9' is not known"));
  config.erase("model_type");
  EXPECT_THAT(read(config).note, HasSubstr("model_type is missing"));
  EXPECT_EQ(read(llama()).note, "");
  config = llama();
  config["num_key_value_heads"] = 5;
  EXPECT_THAT(refusal(config.dump()), HasSubstr("expected a divisor of num_attention_heads 32"));
}

// The planner reads more than the runtime loads (experts, latents, hybrids); where both read, they must
// mean the same model.
void expect_like_description(const json& config) {
  const std::string text = config.dump();
  SCOPED_TRACE(text);
  const ModelSpec planned = read(config);
  const io::ModelDescription loaded = io::describe_hugging_face(text, "");
  EXPECT_EQ(planned.hidden, loaded.width);
  EXPECT_EQ(planned.query_heads, loaded.heads);
  EXPECT_EQ(planned.vocabulary, loaded.vocabulary);
  EXPECT_EQ(planned.native_context, loaded.context);
  std::map<std::int64_t, std::int64_t> layers;  // by window
  for (const io::LayerDescription& layer : loaded.layers) ++layers[layer.window];
  ASSERT_EQ(planned.cached.size(), layers.size());
  for (const CachedLayers& cached : planned.cached) {
    EXPECT_EQ(cached.layers, layers[cached.window]);
    EXPECT_EQ(cached.kv_heads, loaded.kv_heads);
    EXPECT_EQ(cached.k_dim, loaded.head_size);
    EXPECT_EQ(cached.v_dim, loaded.head_size);
  }
}

TEST(ModelConfig, MeansTheModelThatIsLoaded) {
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3"}) {
    json config = llama();
    config["model_type"] = type;
    config["head_dim"] = 128;
    config["sliding_window"] = nullptr;
    expect_like_description(config);
    config["sliding_window"] = 1024;
    expect_like_description(config);
    config["use_sliding_window"] = true;
    config["max_window_layers"] = 20;
    if (std::string_view(type).starts_with("qwen")) expect_like_description(config);
    config.erase("max_window_layers");
    config["layer_types"] = json(std::vector<std::string>(32, "full_attention"));
    config["layer_types"][5] = "sliding_attention";
    expect_like_description(config);
    config.erase("num_key_value_heads");
    expect_like_description(config);
  }
  const json text = {
      {"model_type", "gemma3_text"}, {"hidden_size", 2560}, {"num_hidden_layers", 34}};
  expect_like_description({{"model_type", "gemma3"}, {"text_config", text}});
  expect_like_description({{"model_type", "gpt2"},
                           {"n_embd", 768},
                           {"n_head", 12},
                           {"n_layer", 12},
                           {"n_positions", 1024},
                           {"vocab_size", 50257}});
}

// Whatever bytes come, the answer is a model that can be planned or one of our errors.
TEST(ModelConfig, RandomDamageIsHarmless) {
  std::mt19937 random(7);  // NOLINT: the same damage in every run
  json config = llama();
  config["sliding_window"] = 512;
  config["layer_types"] = json(std::vector<std::string>(32, "sliding_attention"));
  config["kv_lora_rank"] = nullptr;
  const std::string whole = config.dump();
  int planned = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text = whole;
    const int edits = 1 + static_cast<int>(random() % 4);
    for (int edit = 0; edit < edits; ++edit) {
      const char* alphabet = "0123456789-.eE\"{}[],:x\xff";
      text[random() % text.size()] = alphabet[random() % std::strlen(alphabet)];
    }
    try {
      PlanRequest request;
      request.model = parse_model_config("config.json", text);
      request.gpu = find_gpu("t4");
      make_plan(request);
      ++planned;
    } catch (const Error& error) {
      ASSERT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos);
    }
  }
  EXPECT_GT(planned, 100);
}

TEST(ModelConfig, FilesAndFolders) {
  const std::string path = testing::TempDir() + "config.json";
  std::ofstream(path) << llama().dump();
  EXPECT_EQ(read_model_config(path).hidden, 4096);
  EXPECT_EQ(read_model_config(testing::TempDir()).hidden, 4096);
  EXPECT_THROW(read_model_config(path + ".missing"), CorruptData);
  EXPECT_THROW(read_model_config("/dev/zero"), CorruptData);
  std::remove(path.c_str());
}

}  // namespace
}  // namespace touchstone::inline v0::plan
