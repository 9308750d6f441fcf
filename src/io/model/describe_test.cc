// config.json of real models, shortened to the keys that matter, and what is refused.
#include "io/model/describe.h"

#include <gtest/gtest.h>

#include <cmath>

#include "touchstone/core/error.h"

namespace touchstone::io {
namespace {

constexpr const char* kLlama31 = R"({"model_type": "llama", "hidden_size": 4096,
  "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
  "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
  "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "hidden_act": "silu",
  "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "bos_token_id": 128000, "eos_token_id": [128009, 128001, 128008]})";

TEST(Describe, Llama31) {
  const ModelDescription d = describe_hugging_face(
      kLlama31,
      R"({"temperature": 0.6, "top_p": 0.9, "do_sample": true, "eos_token_id": [128001, 128009]})");
  EXPECT_EQ(d.family, ModelFamily::llama);
  EXPECT_EQ(d.head_size, 128);
  EXPECT_EQ(d.layers.size(), 32U);
  EXPECT_EQ(d.rope.dims, 128);
  EXPECT_EQ(d.rope.scaling, RopeScaling::llama3);
  // Of generation_config.json, which has the last word.
  EXPECT_EQ(d.eos_tokens, (std::vector<std::int64_t>{128001, 128009}));
  EXPECT_EQ(d.generation.temperature, 0.6);
  EXPECT_EQ(d.generation.sample, true);
  // Short waves keep their frequency, long ones have it divided by the factor, those between neither.
  ASSERT_EQ(d.rope.factors.size(), 64U);
  EXPECT_EQ(d.rope.factors.front(), 1.0F);
  EXPECT_EQ(d.rope.factors.back(), 8.0F);
  EXPECT_EQ(d.rope.factors[28], 1.0F);  // 2 pi 500000^(56/128) = 1960 < 8192 / 4
  EXPECT_GT(d.rope.factors[29], 1.0F);  // 2406
  EXPECT_LT(d.rope.factors[34], 8.0F);  // 6711 < 8192
  EXPECT_EQ(d.rope.factors[35], 8.0F);  // 8238
}

TEST(Describe, Gemma3HasTwoRotationsAndAWindowInFiveOfSixLayers) {
  const ModelDescription d = describe_hugging_face(
      R"({"model_type": "gemma3", "text_config": {"hidden_size": 2560, "intermediate_size": 10240,
          "num_hidden_layers": 34, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
          "vocab_size": 262208, "sliding_window": 1024, "query_pre_attn_scalar": 256,
          "max_position_embeddings": 131072, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}},
          "eos_token_id": [1, 106]})",
      "");
  EXPECT_EQ(d.family, ModelFamily::gemma3);
  EXPECT_EQ(d.layers[0].window, 1024);
  EXPECT_TRUE(d.layers[0].local_rope);
  EXPECT_EQ(d.layers[5].window, 0);
  EXPECT_FALSE(d.layers[5].local_rope);
  EXPECT_EQ(d.rope.theta, 1e6);
  EXPECT_EQ(d.rope.scaling, RopeScaling::linear);
  EXPECT_EQ(d.local_rope->theta, 1e4);
  EXPECT_EQ(d.local_rope->scaling, RopeScaling::none);
  EXPECT_EQ(d.attention_scale, 0.0625);
  EXPECT_EQ(d.attention_soft_cap, 0);
  EXPECT_EQ(d.embedding_scale, std::sqrt(2560.0));
  EXPECT_TRUE(d.qk_norm && d.post_norms && d.tied_head);
}

TEST(Describe, NewerFilesHoldRopeParameters) {
  const ModelDescription d = describe_hugging_face(
      R"({"model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 2,
          "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 151936,
          "rope_parameters": {"rope_type": "yarn", "rope_theta": 1000000, "factor": 4.0,
                              "original_max_position_embeddings": 32768}})",
      "");
  EXPECT_EQ(d.rope.theta, 1e6);
  EXPECT_EQ(d.head_size, 128);
  EXPECT_EQ(d.rope.scaling, RopeScaling::yarn);
  EXPECT_EQ(d.rope.original_context, 32768);
  EXPECT_DOUBLE_EQ(d.rope.attention_factor, 0.1 * std::log(4.0) + 1);
}

TEST(Describe, WindowsOfMistralAndQwen) {
  const auto window = [](const std::string& more) {
    const ModelDescription d = describe_hugging_face(
        R"({"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 4,
            "num_attention_heads": 4, "vocab_size": 64, )" +
            more + "}",
        "");
    std::string text;
    for (const LayerDescription& layer : d.layers) text += std::to_string(layer.window) + " ";
    return text;
  };
  EXPECT_EQ(window(R"("model_type": "mistral")"), "4096 4096 4096 4096 ");
  EXPECT_EQ(window(R"("model_type": "mistral", "sliding_window": null)"), "0 0 0 0 ");
  EXPECT_EQ(window(R"("model_type": "llama")"), "0 0 0 0 ");
  EXPECT_EQ(window(R"("model_type": "qwen2", "sliding_window": 32)"), "0 0 0 0 ");
  EXPECT_EQ(window(R"("model_type": "qwen2", "use_sliding_window": true, "sliding_window": 32,
                      "max_window_layers": 2)"),
            "0 0 32 32 ");
  EXPECT_EQ(window(R"("model_type": "gemma2", "head_dim": 16, "sliding_window": 8)"), "8 0 8 0 ");
  EXPECT_EQ(window(R"("model_type": "gemma2", "sliding_window": 8, "layer_types":
      ["full_attention", "sliding_attention", "sliding_attention", "full_attention"])"),
            "0 8 8 0 ");
}

std::string refusal_of(const std::string& config) {
  try {
    describe_hugging_face(config, "");
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

std::string changed(const std::string& from, const std::string& to) {
  std::string text = kLlama31;
  return text.replace(text.find(from), from.size(), to);
}

TEST(Describe, RefusesByName) {
  EXPECT_EQ(
      refusal_of(R"({"model_type": "mixtral", "num_local_experts": 8})"),
      "config.json: model_type 'mixtral' (a mixture of experts) is not supported; expected llama, "
      "mistral, qwen2, qwen3, gemma2, gemma3, phi3, gpt2 or gpt_neox");
  EXPECT_NE(refusal_of(R"({"model_type": "falcon_mamba"})").find("'falcon_mamba' (recurrent)"),
            std::string::npos);
  EXPECT_NE(refusal_of("{}").find("model_type ''"), std::string::npos);
  EXPECT_EQ(refusal_of(changed(R"("rope_type": "llama3")", R"("rope_type": "spiral")")),
            "config.json: rope_type 'spiral' is not supported");
  EXPECT_EQ(refusal_of(changed(R"("hidden_act": "silu")", R"("hidden_act": "mish")")),
            "config.json: activation 'mish' is not supported");
  EXPECT_EQ(refusal_of(changed(R"("hidden_act": "silu")",
                               R"("quantization_config": {"quant_method": "gptq"})")),
            "config.json: quantization_config 'gptq' is not supported");
}

TEST(Describe, RefusesWhatIsOutOfRange) {
  EXPECT_EQ(refusal_of(changed("\"num_hidden_layers\": 32", "\"num_hidden_layers\": 100000")),
            "config.json: num_hidden_layers: expected 1 to 4096, got 100000");
  EXPECT_EQ(refusal_of(changed("\"num_key_value_heads\": 8", "\"num_key_value_heads\": 7")),
            "config.json: 7 kv heads do not divide 32 heads");
  EXPECT_EQ(refusal_of(changed("\"hidden_size\": 4096,", "")),
            "config.json: missing key \"hidden_size\"");
  EXPECT_EQ(refusal_of(changed("\"hidden_size\": 4096", "\"hidden_size\": \"4096\"")),
            "config.json: hidden_size: expected a number, got a string");
  EXPECT_EQ(refusal_of(changed("500000.0", "-1")),
            "config.json: rope: expected positive finite theta and factors");
  EXPECT_EQ(refusal_of(changed("128008", "128256")),
            "config.json: end token 128256 is not in the vocabulary");
}

}  // namespace
}  // namespace touchstone::io
