// config.json and generation_config.json. Keys that are absent have the defaults of the model's own
// class in `transformers`, because that is what a file without them means.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "io/container/tensor_file_state.h"
#include "io/json_document.h"
#include "io/model/describe.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::io {
namespace {

// Members of an object with defaults; null counts as absent, as in Python.
class Fields {
 public:
  explicit Fields(JsonValue object) : object_(object) {
    if (!object.is_object()) object.fail("expected an object");
  }
  std::optional<JsonValue> get(std::string_view key) const {
    const auto found = object_.find(key);
    return found && !found->is_null() ? found : std::nullopt;
  }
  bool has(std::string_view key) const { return get(key).has_value(); }
  std::int64_t integer(std::string_view key, std::optional<std::int64_t> otherwise = {},
                       std::int64_t least = 1, std::int64_t most = kMaxContext) const {
    const auto value = get(key);
    if (!value && otherwise) return *otherwise;
    if (!value) object_.fail(fmt::format("missing key \"{}\"", key));
    const std::int64_t number = value->as_int();
    if (number < least || number > most) {
      value->fail(fmt::format("expected {} to {}, got {}", least, most, number));
    }
    return number;
  }
  double number(std::string_view key, double otherwise) const {
    const auto value = get(key);
    return value ? value->as_double() : otherwise;
  }
  // Of keys whose null says "none", which is 0, and not "as usual".
  double number_or_none(std::string_view key, double otherwise) const {
    return object_.find(key) && !has(key) ? 0 : number(key, otherwise);
  }
  bool boolean(std::string_view key, bool otherwise) const {
    const auto value = get(key);
    return value ? value->as_bool() : otherwise;
  }
  std::string text(std::string_view key, std::string_view otherwise) const {
    const auto value = get(key);
    return std::string(value ? value->as_string() : otherwise);
  }
  std::vector<float> floats(std::string_view key) const {
    const JsonValue list = object_.at(key);
    if (!list.is_array()) list.fail("expected an array");
    std::vector<float> values;
    for (const JsonValue value : list) values.push_back(static_cast<float>(value.as_double()));
    return values;
  }
  [[noreturn]] void refuse(const std::string& problem) const {
    throw Unsupported("config.json: " + problem);
  }
  JsonValue object() const { return object_; }

 private:
  JsonValue object_;
};

ModelFamily family_of(const Fields& config) {
  const std::string type = config.text("model_type", "");
  constexpr std::pair<std::string_view, ModelFamily> kTypes[] = {
      {"llama", ModelFamily::llama},   {"mistral", ModelFamily::llama},
      {"qwen2", ModelFamily::qwen2},   {"qwen3", ModelFamily::qwen3},
      {"gemma2", ModelFamily::gemma2}, {"gemma3_text", ModelFamily::gemma3},
      {"gemma3", ModelFamily::gemma3}, {"phi3", ModelFamily::phi3},
      {"gpt2", ModelFamily::gpt2},     {"gpt_neox", ModelFamily::gpt_neox}};
  std::string_view reason;
  for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts"}) {
    if (config.has(key)) reason = " (a mixture of experts)";
  }
  for (const char* part : {"mamba", "rwkv", "recurrent", "jamba"}) {
    if (type.find(part) != std::string::npos) reason = " (recurrent)";
  }
  for (const auto& [name, family] : kTypes) {
    if (type == name && reason.empty()) return family;
  }
  config.refuse(fmt::format(
      "model_type '{}'{} is not supported; expected llama, mistral, qwen2, qwen3, gemma2, "
      "gemma3, phi3, gpt2 or gpt_neox",
      printable(type), reason));
}

ActivationKind activation_of(const Fields& config, const std::string& name) {
  constexpr std::pair<std::string_view, ActivationKind> kNames[] = {
      {"silu", ActivationKind::silu},
      {"swish", ActivationKind::silu},
      {"gelu", ActivationKind::gelu},
      {"gelu_new", ActivationKind::gelu_tanh},
      {"gelu_fast", ActivationKind::gelu_tanh},
      {"gelu_pytorch_tanh", ActivationKind::gelu_tanh},
      {"relu", ActivationKind::relu}};
  for (const auto& [known, kind] : kNames) {
    if (name == known) return kind;
  }
  config.refuse(fmt::format("activation '{}' is not supported", printable(name)));
}

double yarn_attention_factor(const Fields& scaling, double factor) {
  const auto scale = [&](double by) { return factor <= 1 ? 1.0 : 0.1 * by * std::log(factor) + 1; };
  if (scaling.has("attention_factor")) return scaling.number("attention_factor", 1);
  if (scaling.has("mscale") && scaling.has("mscale_all_dim")) {
    return scale(scaling.number("mscale", 1)) / scale(scaling.number("mscale_all_dim", 1));
  }
  return scale(1);
}

// Divisors, one per pair.
std::vector<float> longrope_factors(const Fields& scaling, const char* key, std::int64_t dims) {
  std::vector<float> factors = scaling.floats(key);
  if (static_cast<std::int64_t>(factors.size()) != dims / 2) {
    scaling.object().at(key).fail(
        fmt::format("expected {} numbers, got {}", dims / 2, factors.size()));
  }
  return factors;
}

void read_scaling(const Fields& config, const Fields& scaling, std::int64_t context,
                  RopeDescription& rope) {
  const std::string kind = scaling.text("rope_type", scaling.text("type", "default"));
  if (kind == "default" || kind == "none") return;
  rope.factor = scaling.number("factor", 1);
  const std::int64_t original =
      config.integer("original_max_position_embeddings",
                     scaling.integer("original_max_position_embeddings", context));
  if (kind == "linear") {
    rope.scaling = RopeScaling::linear;
    return;
  }
  rope.original_context = original;
  if (kind == "dynamic") {
    rope.scaling = RopeScaling::dynamic;
  } else if (kind == "yarn") {
    rope.scaling = RopeScaling::yarn;
    rope.attention_factor = yarn_attention_factor(scaling, rope.factor);
    rope.beta_fast = scaling.number("beta_fast", 32);
    rope.beta_slow = scaling.number("beta_slow", 1);
  } else if (kind == "llama3") {
    rope.scaling = RopeScaling::llama3;
    rope.factors = llama3_factors(rope, scaling.number("low_freq_factor", 1),
                                  scaling.number("high_freq_factor", 4));
  } else if (kind == "longrope" || kind == "su") {
    rope.scaling = RopeScaling::longrope;
    rope.factors = longrope_factors(scaling, "short_factor", rope.dims);
    rope.long_factors = longrope_factors(scaling, "long_factor", rope.dims);
    if (!scaling.has("factor") || config.has("original_max_position_embeddings")) {
      rope.factor = static_cast<double>(context) / static_cast<double>(original);
    }
    const double grown = std::log(rope.factor) / std::log(static_cast<double>(original));
    rope.attention_factor = decimal_of_f32(
        scaling.number("attention_factor", rope.factor <= 1 ? 1 : std::sqrt(1 + grown)));
  } else {
    config.refuse(fmt::format("rope_type '{}' is not supported", printable(kind)));
  }
}

// rope_theta and rope_scaling of older files; rope_parameters of newer ones, which holds both.
RopeDescription read_rope(const Fields& config, std::int64_t dims, double theta,
                          std::int64_t context) {
  RopeDescription rope;
  rope.dims = dims;
  rope.theta = config.number("rope_theta", theta);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto found = config.get(key);
    if (!found) continue;
    const Fields scaling(*found);
    rope.theta = scaling.number("rope_theta", rope.theta);
    read_scaling(config, scaling, context, rope);
  }
  return rope;
}

// A layer is windowed if layer_types says so, else by the rule of its family.
void read_windows(const Fields& config, ModelDescription& out) {
  const bool qwen = out.family == ModelFamily::qwen2 || out.family == ModelFamily::qwen3;
  const bool may = config.boolean("use_sliding_window", !qwen);
  const bool windows = out.family == ModelFamily::gemma2 || out.family == ModelFamily::gemma3 ||
                       config.text("model_type", "") == "mistral";
  const std::int64_t usual = windows && !config.object().find("sliding_window") ? 4096 : 0;
  const std::int64_t window = may ? config.integer("sliding_window", usual, 0) : 0;
  const auto types = config.get("layer_types");
  if (types && (!types->is_array() || types->size() != out.layers.size())) {
    types->fail(fmt::format("expected {} entries, one per layer", out.layers.size()));
  }
  const std::int64_t period = config.integer("sliding_window_pattern",
                                             out.family == ModelFamily::gemma2   ? 2
                                             : out.family == ModelFamily::gemma3 ? 6
                                                                                 : 0,
                                             0);
  const std::int64_t first = config.integer("max_window_layers", qwen ? 28 : 0,
                                            0);  // of Qwen: layers before it have full attention
  std::int64_t index = 0;
  std::vector<bool> windowed(out.layers.size());
  for (std::size_t i = 0; i < windowed.size(); ++i, ++index) {
    windowed[i] = period > 0 ? (index + 1) % period != 0 : index >= first;
  }
  if (types) {
    std::size_t i = 0;
    for (const JsonValue type : *types) {
      const std::string_view name = type.as_string();
      if (name != "full_attention" && name != "sliding_attention") {
        config.refuse(fmt::format("layer type '{}' is not supported", printable(name)));
      }
      windowed[i++] = name == "sliding_attention";
    }
  }
  for (std::size_t i = 0; i < windowed.size(); ++i) {
    if (windowed[i]) out.layers[i].window = window;
  }
}

void read_sizes(const Fields& config, ModelDescription& out) {
  // Files of Gemma 3 leave out what its smallest model has.
  const auto gemma3 = [&](std::int64_t usual) {
    return out.family == ModelFamily::gemma3 ? std::optional(usual) : std::nullopt;
  };
  out.width = config.integer("hidden_size", gemma3(2304), 1, kMaxWidth);
  out.heads = config.integer("num_attention_heads", gemma3(8), 1, kMaxWidth);
  out.kv_heads = config.integer("num_key_value_heads", gemma3(4).value_or(out.heads), 1, kMaxWidth);
  // Gemma and Qwen 3 have heads of a size of their own, also when the file does not say so.
  const std::int64_t divided = std::max<std::int64_t>(out.width / out.heads, 1);
  out.head_size =
      config.integer("head_dim",
                     out.family == ModelFamily::gemma2 || out.family == ModelFamily::gemma3 ? 256
                     : out.family == ModelFamily::qwen3                                     ? 128
                                                        : divided,
                     1, kMaxHeadSize);
  if (out.head_size > kMaxHeadSize) {
    config.object().fail(fmt::format("heads of {}, at most {}", out.head_size, kMaxHeadSize));
  }
  out.ffn_width = config.integer("intermediate_size", gemma3(9216), 1, kMaxWidth);
  out.vocabulary = config.integer("vocab_size", gemma3(262208), 1, kMaxContext);
  out.context = config.integer("max_position_embeddings", gemma3(131072).value_or(2048));
  out.layers.resize(
      static_cast<std::size_t>(config.integer("num_hidden_layers", gemma3(26), 1, kMaxLayers)));
}

void read_gpt2(const Fields& config, ModelDescription& out) {
  for (const char* key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"}) {
    if (config.boolean(key, false)) config.refuse(fmt::format("{} is not supported", key));
  }
  out.width = config.integer("n_embd", {}, 1, kMaxWidth);
  out.heads = out.kv_heads = config.integer("n_head", {}, 1, kMaxWidth);
  out.head_size = std::max<std::int64_t>(out.width / out.heads, 1);
  out.ffn_width = config.integer("n_inner", 4 * out.width, 1, kMaxWidth);
  out.vocabulary = config.integer("vocab_size", {}, 1, kMaxContext);
  out.context = config.integer("n_positions", config.integer("n_ctx", 1024));
  out.layers.resize(static_cast<std::size_t>(config.integer("n_layer", {}, 1, kMaxLayers)));
  out.norm = NormKind::layer;
  out.norm_epsilon = config.number("layer_norm_epsilon", 1e-5);
  out.learned_positions = true;
  out.gated = false;
  out.activation = activation_of(config, config.text("activation_function", "gelu_new"));
  out.attention_scale = config.boolean("scale_attn_weights", true)
                            ? 1 / std::sqrt(static_cast<double>(out.head_size))
                            : 1;
  out.tied_head = config.boolean("tie_word_embeddings", true);
}

void read_gpt_neox(const Fields& config, ModelDescription& out) {
  read_sizes(config, out);
  out.norm = NormKind::layer;
  out.norm_epsilon = config.number("layer_norm_eps", 1e-5);
  out.gated = false;
  out.activation = activation_of(config, config.text("hidden_act", "gelu"));
  out.parallel_blocks = config.boolean("use_parallel_residual", true);
  double share = config.number("rotary_pct", 0.25);
  if (const auto rope = config.get("rope_parameters")) {
    share = Fields(*rope).number("partial_rotary_factor", share);
  }
  const auto dims =
      static_cast<std::int64_t>(static_cast<double>(out.head_size) * std::clamp(share, 0.0, 1.0));
  out.rope = read_rope(config, dims, config.number("rotary_emb_base", 10000), out.context);
  out.attention_scale = 1 / std::sqrt(static_cast<double>(out.head_size));
  out.tied_head = config.boolean("tie_word_embeddings", false);
}

void read_gemma(const Fields& config, ModelDescription& out) {
  out.post_norms = true;
  out.embedding_scale = std::sqrt(static_cast<double>(out.width));
  out.attention_scale = decimal_of_f32(1 / std::sqrt(config.number("query_pre_attn_scalar", 256)));
  const double cap = out.family == ModelFamily::gemma2 ? 1 : 0;
  out.attention_soft_cap = config.number_or_none("attn_logit_softcapping", 50 * cap);
  out.final_soft_cap = config.number_or_none("final_logit_softcapping", 30 * cap);
  out.activation = activation_of(
      config, config.text("hidden_activation", config.text("hidden_act", "gelu_pytorch_tanh")));
  if (out.family != ModelFamily::gemma3) return;
  out.qk_norm = true;
  RopeDescription local;
  local.dims = out.rope.dims;
  local.theta = config.number("rope_local_base_freq", 10000);
  out.local_rope = local;
  for (LayerDescription& layer : out.layers) layer.local_rope = layer.window > 0;
}

// Newer files of Gemma 3 hold one object of rope parameters per kind of layer.
void read_layered_rope(const Fields& config, ModelDescription& out) {
  const auto found = config.get("rope_parameters");
  if (!found || out.family != ModelFamily::gemma3) return;
  const Fields parameters(*found);
  if (const auto full = parameters.get("full_attention")) {
    const Fields fields(*full);
    out.rope.theta = fields.number("rope_theta", out.rope.theta);
    read_scaling(config, fields, out.context, out.rope);
  }
  if (const auto local = parameters.get("sliding_attention")) {
    out.local_rope->theta = Fields(*local).number("rope_theta", out.local_rope->theta);
  }
}

void read_llama_like(const Fields& config, ModelDescription& out) {
  read_sizes(config, out);
  out.norm_epsilon = config.number("rms_norm_eps", out.family == ModelFamily::phi3 ? 1e-5 : 1e-6);
  out.activation = activation_of(config, config.text("hidden_act", "silu"));
  double share = config.number("partial_rotary_factor", 1);
  if (const auto rope = config.get("rope_parameters")) {
    share = Fields(*rope).number("partial_rotary_factor", share);
  }
  const auto dims =
      static_cast<std::int64_t>(static_cast<double>(out.head_size) * std::clamp(share, 0.0, 1.0));
  const double theta = out.family == ModelFamily::gemma3 ? 1e6 : 1e4;
  out.rope = read_rope(config, dims, theta, out.context);
  out.attention_scale = 1 / std::sqrt(static_cast<double>(out.head_size));
  out.qk_norm = out.family == ModelFamily::qwen3;
  const bool gemma = out.family == ModelFamily::gemma2 || out.family == ModelFamily::gemma3;
  out.tied_head = config.boolean("tie_word_embeddings", gemma);
  read_windows(config, out);
  if (gemma) {
    read_gemma(config, out);
    read_layered_rope(config, out);
  }
}

void read_tokens(const Fields& fields, ModelDescription& out) {
  if (fields.has("bos_token_id")) out.bos_token = fields.integer("bos_token_id", {}, 0);
  if (fields.has("pad_token_id") && fields.get("pad_token_id")->as_int() >= 0) {
    out.pad_token = fields.integer("pad_token_id", {}, 0);
  }
  const auto eos = fields.get("eos_token_id");
  if (!eos) return;
  out.eos_tokens.clear();
  const auto add_end = [&](std::int64_t id) {
    if (id < 0) eos->fail("a negative token");
    if (std::ranges::find(out.eos_tokens, id) == out.eos_tokens.end()) out.eos_tokens.push_back(id);
  };
  if (eos->is_array()) {
    for (const JsonValue token : *eos) add_end(token.as_int());
  } else {
    add_end(eos->as_int());
  }
}

void read_generation(std::string_view text, ModelDescription& out) {
  const JsonDocument document("generation_config.json", text, {.max_bytes = kMaxConfigBytes});
  const Fields fields(document.root());
  read_tokens(fields, out);
  const auto real = [&](const char* key) -> std::optional<double> {
    if (!fields.has(key)) return std::nullopt;
    return fields.number(key, 0);
  };
  out.generation.temperature = real("temperature");
  out.generation.top_p = real("top_p");
  out.generation.min_p = real("min_p");
  out.generation.repetition_penalty = real("repetition_penalty");
  if (fields.has("top_k")) out.generation.top_k = fields.integer("top_k", {}, 0);
  if (fields.has("do_sample")) out.generation.sample = fields.boolean("do_sample", false);
  if (fields.has("max_new_tokens"))
    out.generation.max_tokens = fields.integer("max_new_tokens", {});
}

}  // namespace

ModelDescription describe_hugging_face(std::string_view config_text, std::string_view generation) {
  const JsonDocument document("config.json", config_text, {.max_bytes = kMaxConfigBytes});
  const Fields outer(document.root());
  ModelDescription out;
  out.family = family_of(outer);
  // A model with a vision part keeps the language model one level deeper.
  const auto inner = outer.get("text_config");
  const Fields config(inner ? *inner : document.root());
  if (const auto quantization = outer.get("quantization_config")) {
    outer.refuse(fmt::format("quantization_config '{}' is not supported",
                             printable(Fields(*quantization).text("quant_method", "?"))));
  }
  out.name = outer.text("_name_or_path", "");
  if (out.family == ModelFamily::gpt2) {
    read_gpt2(config, out);
  } else if (out.family == ModelFamily::gpt_neox) {
    read_gpt_neox(config, out);
  } else {
    read_llama_like(config, out);
  }
  read_tokens(config, out);
  if (inner) read_tokens(outer, out);
  if (!generation.empty()) read_generation(generation, out);
  check_description("config.json", out);
  return out;
}

}  // namespace touchstone::inline v0::io
