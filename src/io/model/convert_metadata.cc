#include "io/model/convert_metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "io/json_document.h"
#include "io/model/describe.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::io {
namespace {

bool is_gemma(const ModelDescription& d) {
  return d.family == ModelFamily::gemma2 || d.family == ModelFamily::gemma3;
}

std::int64_t window_of(const ModelDescription& d) {
  std::int64_t window = 0;
  for (const LayerDescription& layer : d.layers) window = std::max(window, layer.window);
  return window;
}

std::uint32_t u32(std::int64_t value) { return static_cast<std::uint32_t>(value); }

void set_rope(const ModelDescription& d, const auto& key, GgufMetadata& out) {
  const RopeDescription& rope = d.rope;
  out.set(key("rope.dimension_count"), u32(rope.dims));
  out.set(key("rope.freq_base"), static_cast<float>(rope.theta));
  if (d.local_rope) out.set(key("rope.freq_base_swa"), static_cast<float>(d.local_rope->theta));
  switch (rope.scaling) {
    case RopeScaling::none:
      return;
    case RopeScaling::dynamic:
      throw Unsupported("convert: GGUF has no key for dynamic rope scaling");
    case RopeScaling::linear:
    case RopeScaling::yarn:
      out.set(key("rope.scaling.type"), name_of(rope.scaling));
      out.set(key("rope.scaling.factor"), static_cast<float>(rope.factor));
      break;
    case RopeScaling::llama3:  // its divisors are a tensor
    case RopeScaling::longrope:
      break;
  }
  if (rope.original_context > 0) {
    out.set(key("rope.scaling.original_context_length"), u32(rope.original_context));
  }
  if (rope.scaling == RopeScaling::longrope) {
    out.set(key("rope.scaling.attn_factor"), static_cast<float>(rope.attention_factor));
  }
  if (rope.scaling != RopeScaling::yarn) return;
  // Readers of GGUF multiply the key by what YaRN takes by itself.
  const double usual = rope.factor > 1 ? 0.1 * std::log(rope.factor) + 1 : 1;
  if (rope.attention_factor != usual) {
    out.set(key("rope.scaling.attn_factor"), static_cast<float>(rope.attention_factor / usual));
  }
  if (rope.beta_fast != 32)
    out.set(key("rope.scaling.yarn_beta_fast"), static_cast<float>(rope.beta_fast));
  if (rope.beta_slow != 1)
    out.set(key("rope.scaling.yarn_beta_slow"), static_cast<float>(rope.beta_slow));
}

// Whether the layers with a window are those that readers of GGUF take by the family alone.
void check_windows(const ModelDescription& d) {
  const std::int64_t window = window_of(d);
  const std::int64_t period = d.family == ModelFamily::gemma2   ? 2
                              : d.family == ModelFamily::gemma3 ? 6
                                                                : 0;
  std::int64_t index = 0;
  for (const LayerDescription& layer : d.layers) {
    ++index;
    const std::int64_t expected = period == 0 || index % period != 0 ? window : 0;
    if (layer.window != expected) {
      throw Unsupported("convert: GGUF has no key for windows in these layers");
    }
  }
}

}  // namespace

GgufMetadata gguf_metadata(const ModelDescription& d) {
  check_windows(d);
  const std::string architecture =
      d.family == ModelFamily::gpt_neox ? "gptneox" : std::string(name_of(d.family));
  const auto key = [&](const char* name) { return architecture + "." + name; };
  GgufMetadata out;
  out.set("general.architecture", std::string_view(architecture));
  if (!d.name.empty()) out.set("general.name", std::string_view(d.name));
  out.set(key("context_length"), u32(d.context));
  out.set(key("embedding_length"), u32(d.width));
  out.set(key("block_count"), u32(static_cast<std::int64_t>(d.layers.size())));
  out.set(key("feed_forward_length"), u32(d.ffn_width));
  out.set(key("attention.head_count"), u32(d.heads));
  out.set(key("attention.head_count_kv"), u32(d.kv_heads));
  out.set(key("attention.key_length"), u32(d.head_size));
  out.set(key("attention.value_length"), u32(d.head_size));
  out.set(key(d.norm == NormKind::rms ? "attention.layer_norm_rms_epsilon"
                                      : "attention.layer_norm_epsilon"),
          static_cast<float>(d.norm_epsilon));
  if (!d.learned_positions) set_rope(d, key, out);
  if (window_of(d) > 0) out.set(key("attention.sliding_window"), u32(window_of(d)));
  if (d.attention_soft_cap > 0) {
    out.set(key("attn_logit_softcapping"), static_cast<float>(d.attention_soft_cap));
  }
  if (d.final_soft_cap > 0)
    out.set(key("final_logit_softcapping"), static_cast<float>(d.final_soft_cap));
  const double usual = decimal_of_f32(1 / std::sqrt(static_cast<double>(d.head_size)));
  if (is_gemma(d) && d.attention_scale != usual) {
    out.set(key("attention.scale"), static_cast<float>(d.attention_scale));
  }
  if (d.family == ModelFamily::gpt_neox) out.set(key("use_parallel_residual"), d.parallel_blocks);
  if (d.bos_token) out.set("tokenizer.ggml.bos_token_id", u32(*d.bos_token));
  if (d.pad_token) out.set("tokenizer.ggml.padding_token_id", u32(*d.pad_token));
  if (!d.eos_tokens.empty()) out.set("tokenizer.ggml.eos_token_id", u32(d.eos_tokens.front()));
  if (d.eos_tokens.size() > 1) {
    std::vector<std::int32_t> tokens;
    for (const std::int64_t token : d.eos_tokens)
      tokens.push_back(static_cast<std::int32_t>(token));
    out.set("tokenizer.ggml.eos_token_ids", std::span<const std::int32_t>(tokens));
  }
  return out;
}

namespace {

// Lines of an object.
class ObjectWriter {
 public:
  void raw(std::string_view key, std::string_view value) {
    text_ += fmt::format("{}\n  {}: {}", text_.empty() ? "" : ",", json_quote(key), value);
  }
  void text(std::string_view key, std::string_view value) { raw(key, json_quote(value)); }
  void integer(std::string_view key, std::int64_t value) { raw(key, std::to_string(value)); }
  void boolean(std::string_view key, bool value) { raw(key, value ? "true" : "false"); }
  // The shortest text that reads back as the same number.
  void number(std::string_view key, double value) { raw(key, fmt::format("{}", value)); }
  std::string finish() const { return "{" + text_ + "\n}\n"; }

 private:
  std::string text_;
};

std::string joined(const std::vector<float>& values) {
  return fmt::format("[{}]", fmt::join(values, ", "));
}

// The parameters of Llama 3, of which GGUF keeps only the divisors.
std::string llama3_json(const RopeDescription& rope) {
  RopeDescription trial = rope;
  for (const std::int64_t original : {rope.original_context, std::int64_t{8192}}) {
    trial.original_context = original;
    const std::vector<float> factors = llama3_factors(trial, 1, 4);
    bool same = factors.size() == rope.factors.size();
    for (std::size_t i = 0; same && i < factors.size(); ++i) {
      same = std::abs(factors[i] - rope.factors[i]) <= 1e-5F * rope.factors[i];
    }
    if (same) {
      return fmt::format(
          R"({{"rope_type": "llama3", "factor": {}, "low_freq_factor": 1.0, "high_freq_factor": 4.0, )"
          R"("original_max_position_embeddings": {}}})",
          rope.factor, original);
    }
  }
  throw Unsupported("convert: config.json has no key for these divisors of rope frequencies");
}

void write_rope(const ModelDescription& d, ObjectWriter& out) {
  const RopeDescription& rope = d.rope;
  if (d.family != ModelFamily::gpt_neox) out.number("rope_theta", rope.theta);
  if (d.local_rope) out.number("rope_local_base_freq", d.local_rope->theta);
  switch (rope.scaling) {
    case RopeScaling::none:
      return;
    case RopeScaling::linear:
      out.raw("rope_scaling",
              fmt::format(R"({{"rope_type": "linear", "factor": {}}})", rope.factor));
      return;
    case RopeScaling::dynamic:
      out.raw("rope_scaling",
              fmt::format(R"({{"rope_type": "dynamic", "factor": {}}})", rope.factor));
      return;
    case RopeScaling::yarn:
      out.raw("rope_scaling",
              fmt::format(
                  R"({{"rope_type": "yarn", "factor": {}, "original_max_position_embeddings": {}, )"
                  R"("attention_factor": {}, "beta_fast": {}, "beta_slow": {}}})",
                  rope.factor, rope.original_context, rope.attention_factor, rope.beta_fast,
                  rope.beta_slow));
      return;
    case RopeScaling::llama3:
      out.raw("rope_scaling", llama3_json(rope));
      return;
    case RopeScaling::longrope:
      out.integer("original_max_position_embeddings", rope.original_context);
      out.raw("rope_scaling",
              fmt::format(R"({{"type": "longrope", "short_factor": {}, "long_factor": {}}})",
                          joined(rope.factors), joined(rope.long_factors)));
      return;
  }
}

void write_tokens(const ModelDescription& d, ObjectWriter& out) {
  if (d.bos_token) out.integer("bos_token_id", *d.bos_token);
  if (d.pad_token) out.integer("pad_token_id", *d.pad_token);
  if (d.eos_tokens.size() == 1) out.integer("eos_token_id", d.eos_tokens.front());
  if (d.eos_tokens.size() > 1) {
    out.raw("eos_token_id", fmt::format("[{}]", fmt::join(d.eos_tokens, ", ")));
  }
}

std::string_view hugging_face_activation(ActivationKind kind) {
  switch (kind) {
    case ActivationKind::silu:
      return "silu";
    case ActivationKind::gelu:
      return "gelu";
    case ActivationKind::gelu_tanh:
      return "gelu_pytorch_tanh";
    case ActivationKind::relu:
      return "relu";
  }
  return "silu";
}

void write_gpt2(const ModelDescription& d, ObjectWriter& out) {
  out.integer("n_embd", d.width);
  out.integer("n_head", d.heads);
  out.integer("n_layer", static_cast<std::int64_t>(d.layers.size()));
  out.integer("n_positions", d.context);
  out.integer("n_ctx", d.context);
  out.integer("n_inner", d.ffn_width);
  out.number("layer_norm_epsilon", d.norm_epsilon);
  out.text("activation_function", d.activation == ActivationKind::gelu_tanh
                                      ? "gelu_new"
                                      : hugging_face_activation(d.activation));
  if (d.attention_scale == 1 && d.head_size != 1) out.boolean("scale_attn_weights", false);
}

void write_windows(const ModelDescription& d, std::string_view model_type, ObjectWriter& out) {
  const std::int64_t window = window_of(d);
  if (window == 0) {
    if (model_type == "mistral" || is_gemma(d)) out.raw("sliding_window", "null");
    return;
  }
  out.integer("sliding_window", window);
  if (d.family == ModelFamily::qwen2 || d.family == ModelFamily::qwen3) {
    out.boolean("use_sliding_window", true);
  }
  std::string types;
  for (const LayerDescription& layer : d.layers) {
    types += fmt::format("{}\"{}\"", types.empty() ? "" : ", ",
                         layer.window > 0 ? "sliding_attention" : "full_attention");
  }
  out.raw("layer_types", "[" + types + "]");
}

void write_llama_like(const ModelDescription& d, std::string_view model_type, ObjectWriter& out) {
  out.integer("hidden_size", d.width);
  out.integer("intermediate_size", d.ffn_width);
  out.integer("num_hidden_layers", static_cast<std::int64_t>(d.layers.size()));
  out.integer("num_attention_heads", d.heads);
  if (d.family != ModelFamily::gpt_neox) {
    out.integer("num_key_value_heads", d.kv_heads);
    out.integer("head_dim", d.head_size);
  }
  out.integer("max_position_embeddings", d.context);
  out.text(is_gemma(d) ? "hidden_activation" : "hidden_act", hugging_face_activation(d.activation));
  write_rope(d, out);
  const double share = static_cast<double>(d.rope.dims) / static_cast<double>(d.head_size);
  if (d.family == ModelFamily::gpt_neox) {
    out.number("layer_norm_eps", d.norm_epsilon);
    out.number("rotary_pct", share);
    out.number("rotary_emb_base", d.rope.theta);
    out.boolean("use_parallel_residual", d.parallel_blocks);
    out.boolean("attention_bias", d.qkv_bias);
    return;
  }
  out.number("rms_norm_eps", d.norm_epsilon);
  if (d.family == ModelFamily::phi3 || share != 1) out.number("partial_rotary_factor", share);
  if (d.family == ModelFamily::llama) {
    out.boolean("attention_bias", d.qkv_bias);
    out.boolean("mlp_bias", d.mlp_bias);
  }
  write_windows(d, model_type, out);
  if (is_gemma(d)) {
    out.number("query_pre_attn_scalar",
               std::round(1e3 / (d.attention_scale * d.attention_scale)) / 1e3);
    out.raw("attn_logit_softcapping",
            d.attention_soft_cap > 0 ? fmt::format("{}", d.attention_soft_cap) : "null");
    out.raw("final_logit_softcapping",
            d.final_soft_cap > 0 ? fmt::format("{}", d.final_soft_cap) : "null");
  }
}

}  // namespace

std::string config_json(const ModelDescription& d, std::string_view torch_dtype) {
  ObjectWriter out;
  std::string_view type = name_of(d.family);
  if (d.family == ModelFamily::llama && window_of(d) > 0) type = "mistral";
  if (d.family == ModelFamily::gemma3) type = "gemma3_text";
  constexpr std::pair<std::string_view, std::string_view> kClasses[] = {
      {"llama", "LlamaForCausalLM"},     {"mistral", "MistralForCausalLM"},
      {"qwen2", "Qwen2ForCausalLM"},     {"qwen3", "Qwen3ForCausalLM"},
      {"gemma2", "Gemma2ForCausalLM"},   {"gemma3_text", "Gemma3ForCausalLM"},
      {"phi3", "Phi3ForCausalLM"},       {"gpt2", "GPT2LMHeadModel"},
      {"gpt_neox", "GPTNeoXForCausalLM"}};
  for (const auto& [name, model_class] : kClasses) {
    if (name == type) out.raw("architectures", fmt::format("[{}]", json_quote(model_class)));
  }
  out.text("model_type", type);
  if (!d.name.empty()) out.text("_name_or_path", d.name);
  out.text("torch_dtype", torch_dtype);
  out.integer("vocab_size", d.vocabulary);
  if (d.family == ModelFamily::gpt2) {
    write_gpt2(d, out);
  } else {
    write_llama_like(d, type, out);
  }
  out.boolean("tie_word_embeddings", d.tied_head);
  write_tokens(d, out);
  return out.finish();
}

std::string generation_json(const ModelDescription& d) {
  ObjectWriter out;
  write_tokens(d, out);
  const GenerationDefaults& g = d.generation;
  if (g.sample) out.boolean("do_sample", *g.sample);
  if (g.temperature) out.number("temperature", *g.temperature);
  if (g.top_k) out.integer("top_k", *g.top_k);
  if (g.top_p) out.number("top_p", *g.top_p);
  if (g.min_p) out.number("min_p", *g.min_p);
  if (g.repetition_penalty) out.number("repetition_penalty", *g.repetition_penalty);
  if (g.max_tokens) out.integer("max_new_tokens", *g.max_tokens);
  return out.finish();
}

}  // namespace touchstone::inline v0::io
