// Descriptions from the metadata of GGUF. Where the file leaves out what its readers know by the
// name of the architecture, that is filled in here, with the value that they use.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "io/container/tensor_file_state.h"
#include "io/model/describe.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::io {
namespace {

class Keys {
 public:
  explicit Keys(const TensorFile& file) : file_(file), name_(file.files().front().string()) {
    const MetadataValue* const architecture = file.find_metadata("general.architecture");
    if (architecture == nullptr) fail("no key general.architecture");
    architecture_ = std::string(architecture->as_string());
    for (const MetadataValue& value : file.metadata()) {
      // Weights in another basis: without the transform of activations that goes with it they are
      // noise.
      if (value.key().starts_with("prism.hadamard")) {
        refuse("weights stored in a Hadamard basis (" + printable(value.key()) + ")");
      }
    }
  }

  const std::string& name() const { return name_; }
  const std::string& architecture() const { return architecture_; }
  const TensorFile& file() const { return file_; }

  [[noreturn]] void fail(const std::string& problem) const {
    throw CorruptData(name_ + ": " + problem);
  }
  [[noreturn]] void refuse(const std::string& problem) const {
    throw Unsupported(name_ + ": " + problem);
  }

  // Of the architecture: "attention.head_count" is "llama.attention.head_count".
  const MetadataValue* find(std::string_view key) const {
    return file_.find_metadata(architecture_ + "." + std::string(key));
  }
  std::int64_t integer(std::string_view key, std::optional<std::int64_t> otherwise,
                       std::int64_t most = kMaxContext) const {
    const MetadataValue* const value = find(key);
    if (value == nullptr && otherwise) return *otherwise;
    if (value == nullptr) fail(fmt::format("no key {}.{}", architecture_, key));
    const std::int64_t number = value->is_array() ? same_in_all_layers(*value) : value->as_int();
    if (number < 0 || number > most) {
      fail(fmt::format("{}: expected 0 to {}, got {}", value->key(), most, number));
    }
    return number;
  }
  double number(std::string_view key, double otherwise) const {
    const MetadataValue* const value = find(key);
    return value != nullptr ? decimal_of_f32(value->as_float()) : otherwise;
  }
  std::string text(std::string_view key, std::string_view otherwise) const {
    const MetadataValue* const value = find(key);
    return std::string(value != nullptr ? value->as_string() : otherwise);
  }
  bool boolean(std::string_view key, bool otherwise) const {
    const MetadataValue* const value = find(key);
    return value != nullptr ? value->as_bool() : otherwise;
  }

 private:
  std::int64_t same_in_all_layers(const MetadataValue& value) const {
    const std::vector<std::int64_t> values = value.integers();
    if (values.empty() ||
        std::adjacent_find(values.begin(), values.end(), std::not_equal_to<>()) != values.end()) {
      refuse(fmt::format("{}: layers that differ are not supported", value.key()));
    }
    return values.front();
  }

  const TensorFile& file_;
  std::string name_;
  std::string architecture_;
};

ModelFamily family_of(const Keys& keys) {
  constexpr std::pair<std::string_view, ModelFamily> kNames[] = {
      {"llama", ModelFamily::llama},   {"qwen2", ModelFamily::qwen2},
      {"qwen3", ModelFamily::qwen3},   {"gemma2", ModelFamily::gemma2},
      {"gemma3", ModelFamily::gemma3}, {"phi3", ModelFamily::phi3},
      {"gpt2", ModelFamily::gpt2},     {"gptneox", ModelFamily::gpt_neox}};
  std::string_view reason;
  if (keys.integer("expert_count", 0) > 0) reason = " (a mixture of experts)";
  if (keys.find("ssm.state_size") != nullptr || keys.find("wkv.head_size") != nullptr) {
    reason = " (recurrent)";
  }
  for (const auto& [name, family] : kNames) {
    if (keys.architecture() == name && reason.empty()) return family;
  }
  keys.refuse(fmt::format(
      "architecture '{}'{} is not supported; expected llama, qwen2, qwen3, gemma2, gemma3, phi3, "
      "gpt2 or gptneox",
      printable(keys.architecture()), reason));
}

// A tensor of divisors of the frequencies; empty where there is none.
std::vector<float> factors_of(const Keys& keys, const char* name, std::int64_t dims) {
  const TensorInfo* const tensor = keys.file().find(name);
  if (tensor == nullptr) return {};
  if (tensor->type != "f32" || tensor->elements() != dims / 2) {
    keys.fail(fmt::format("tensor '{}': expected f32 [{}]", name, dims / 2));
  }
  std::vector<float> values(static_cast<std::size_t>(dims / 2));
  std::memcpy(values.data(), tensor->data.data(), tensor->data.size());
  return values;
}

void read_rope(const Keys& keys, ModelDescription& out) {
  RopeDescription& rope = out.rope;
  rope.dims = keys.integer("rope.dimension_count", out.head_size, out.head_size);
  if (out.family == ModelFamily::llama && rope.dims != out.head_size) {
    // Which rows its writers have put side by side is then not known.
    keys.refuse("partial rotation in the llama architecture");
  }
  rope.theta = keys.number("rope.freq_base", 10000);
  const std::string kind = keys.text("rope.scaling.type", "none");
  const double factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1));
  const std::int64_t original = keys.integer("rope.scaling.original_context_length", out.context);
  if (kind == "linear" || (kind == "none" && factor != 1)) {
    rope.scaling = RopeScaling::linear;
    rope.factor = factor;
  } else if (kind == "yarn") {
    rope.scaling = RopeScaling::yarn;
    rope.factor = factor;
    rope.original_context = original;
    rope.attention_factor =
        keys.number("rope.scaling.attn_factor", 1) * (factor > 1 ? 0.1 * std::log(factor) + 1 : 1);
    rope.beta_fast = keys.number("rope.scaling.yarn_beta_fast", 32);
    rope.beta_slow = keys.number("rope.scaling.yarn_beta_slow", 1);
  } else if (kind == "longrope") {
    if (keys.file().find("rope_factors_long.weight") == nullptr) {
      keys.refuse("rope scaling 'longrope' without its tensors of factors");
    }
  } else if (kind != "none") {
    keys.refuse(fmt::format("rope scaling '{}' is not supported", printable(kind)));
  }
  rope.long_factors = factors_of(keys, "rope_factors_long.weight", rope.dims);
  rope.factors = factors_of(
      keys, rope.long_factors.empty() ? "rope_freqs.weight" : "rope_factors_short.weight",
      rope.dims);
  if (!rope.long_factors.empty()) {
    rope.scaling = RopeScaling::longrope;
    rope.original_context = original;
    rope.factor =
        static_cast<double>(out.context) / static_cast<double>(std::max<std::int64_t>(original, 1));
    rope.attention_factor = keys.number("rope.scaling.attn_factor", 1);
  } else if (!rope.factors.empty()) {
    // The divisors are all that the file keeps of the scaling of Llama 3: the last one, of the
    // longest wave, is the factor.
    rope.scaling = RopeScaling::llama3;
    rope.factor = decimal_of_f32(static_cast<double>(rope.factors.back()));
    rope.original_context = original;
  }
}

void read_windows(const Keys& keys, ModelDescription& out) {
  const std::int64_t window = keys.integer("attention.sliding_window", 0);
  const std::int64_t period = out.family == ModelFamily::gemma2   ? 2
                              : out.family == ModelFamily::gemma3 ? 6
                                                                  : 0;
  std::int64_t index = 0;
  for (LayerDescription& layer : out.layers) {
    ++index;
    if (period == 0 || index % period != 0) layer.window = window;
  }
  const MetadataValue* const pattern = keys.find("attention.sliding_window_pattern");
  if (pattern == nullptr || !pattern->is_array()) return;
  const std::vector<std::int64_t> windowed = pattern->integers();
  if (windowed.size() != out.layers.size()) {
    keys.fail(fmt::format("{}: expected {} values", pattern->key(), out.layers.size()));
  }
  for (std::size_t i = 0; i < windowed.size(); ++i) {
    out.layers[i].window = windowed[i] != 0 ? window : 0;
  }
}

void read_gemma(const Keys& keys, ModelDescription& out) {
  out.post_norms = true;
  out.embedding_scale = std::sqrt(static_cast<double>(out.width));
  out.activation = ActivationKind::gelu_tanh;
  out.attention_soft_cap = keys.number("attn_logit_softcapping", 0);
  out.final_soft_cap = keys.number("final_logit_softcapping", 0);
  // The 27B models, told by their number of layers, scale by the width of a head's share.
  const bool largest = out.layers.size() == (out.family == ModelFamily::gemma2 ? 46U : 62U);
  const double size = largest ? static_cast<double>(out.width) / static_cast<double>(out.heads)
                              : static_cast<double>(out.head_size);
  out.attention_scale = keys.number("attention.scale", decimal_of_f32(1 / std::sqrt(size)));
  if (out.family != ModelFamily::gemma3) return;
  out.qk_norm = true;
  RopeDescription local;
  local.dims = out.rope.dims;
  local.theta = keys.number("rope.freq_base_swa", 10000);
  out.local_rope = local;
  for (LayerDescription& layer : out.layers) layer.local_rope = layer.window > 0;
}

void read_tokens(const Keys& keys, ModelDescription& out) {
  const auto token = [&](const char* key) -> std::optional<std::int64_t> {
    const MetadataValue* const value = keys.file().find_metadata(key);
    // "No such token" in files of old converters.
    if (value == nullptr || value->as_int() == -1 || value->as_int() == 0xffffffffLL) return {};
    return value->as_int();
  };
  out.bos_token = token("tokenizer.ggml.bos_token_id");
  out.pad_token = token("tokenizer.ggml.padding_token_id");
  const auto add_end = [&](std::int64_t id) {
    if (std::ranges::find(out.eos_tokens, id) == out.eos_tokens.end()) out.eos_tokens.push_back(id);
  };
  if (const auto eos = token("tokenizer.ggml.eos_token_id")) add_end(*eos);
  if (const MetadataValue* const more = keys.file().find_metadata("tokenizer.ggml.eos_token_ids")) {
    for (const std::int64_t id : more->integers()) add_end(id);
  }
  // Ends of a turn and of a message: chat models write these instead.
  for (const char* const key : {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    if (const auto end = token(key)) add_end(*end);
  }
}

}  // namespace

ModelDescription describe_gguf(const TensorFile& file) {
  const Keys keys(file);
  const MetadataValue* const split = file.find_metadata("split.count");
  if (split != nullptr && split->as_int() > std::ssize(file.files())) {
    keys.refuse("one of several files of a GGUF model");
  }
  ModelDescription out;
  out.family = family_of(keys);
  if (const MetadataValue* const name = file.find_metadata("general.name")) {
    out.name = std::string(name->as_string());
  }
  out.width = keys.integer("embedding_length", {}, kMaxWidth);
  out.heads = keys.integer("attention.head_count", {}, kMaxWidth);
  out.kv_heads = keys.integer("attention.head_count_kv", out.heads, kMaxWidth);
  out.head_size = keys.integer("attention.key_length",
                               out.width / std::max<std::int64_t>(out.heads, 1), kMaxWidth);
  if (out.head_size > kMaxHeadSize) {
    keys.fail(fmt::format("heads of {}, at most {}", out.head_size, kMaxHeadSize));
  }
  if (keys.integer("attention.value_length", out.head_size) != out.head_size) {
    keys.refuse("keys and values of different size");
  }
  out.ffn_width = keys.integer("feed_forward_length", {}, kMaxWidth);
  out.context = keys.integer("context_length", {});
  // Every layer has tensors of its own, so that their number bounds that of the layers.
  const auto most =
      std::min<std::int64_t>(kMaxLayers, static_cast<std::int64_t>(file.tensors().size()));
  out.layers.resize(static_cast<std::size_t>(keys.integer("block_count", {}, most)));
  const TensorInfo& embedding = file.tensor("token_embd.weight");
  if (embedding.shape.size() != 2) keys.fail("tensor 'token_embd.weight': expected rank 2");
  out.vocabulary = embedding.shape[0];
  out.tied_head = file.find("output.weight") == nullptr;
  out.attention_scale =
      1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(out.head_size, 1)));
  out.qk_norm = out.family == ModelFamily::qwen3;
  if (out.family == ModelFamily::gpt2 || out.family == ModelFamily::gpt_neox) {
    out.norm = NormKind::layer;
    out.gated = false;
    // The only activation that readers of these files know.
    out.activation =
        out.family == ModelFamily::gpt2 ? ActivationKind::gelu_tanh : ActivationKind::gelu;
    out.norm_epsilon = keys.number("attention.layer_norm_epsilon", 1e-5);
    out.parallel_blocks =
        out.family == ModelFamily::gpt_neox && keys.boolean("use_parallel_residual", true);
    out.learned_positions = out.family == ModelFamily::gpt2;
  } else {
    out.norm_epsilon = keys.number("attention.layer_norm_rms_epsilon", 1e-5);
  }
  if (!out.learned_positions) read_rope(keys, out);
  read_windows(keys, out);
  if (out.family == ModelFamily::gemma2 || out.family == ModelFamily::gemma3) read_gemma(keys, out);
  read_tokens(keys, out);
  check_description(keys.name(), out);
  return out;
}

}  // namespace touchstone::inline v0::io
