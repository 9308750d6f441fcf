#include "plan/model_config.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include "touchstone/core/checked.h"

namespace touchstone::inline v0::plan {
namespace {

using json = Json;

// Real ones have a few KiB.
constexpr std::uintmax_t kLargestFile = 16 << 20;

void add_note(ModelSpec& model, const std::string& note) {
  model.note += (model.note.empty() ? "" : "; ") + note;
}

enum class LayerKind : std::uint8_t { full, window, other };

LayerKind kind_of_name(const ConfigReader& config, const json& name) {
  if (name == "full_attention" || name == "attention" || name == "global_attention") {
    return LayerKind::full;
  }
  if (name == "sliding_attention" || name == "chunked_attention") return LayerKind::window;
  if (name == "linear_attention" || name == "mamba" || name == "conv" || name == "recurrent") {
    return LayerKind::other;
  }
  config.fail(
      fmt::format("layer_types: expected full_attention, sliding_attention or another "
                  "known kind, got {}",
                  name.dump().substr(0, 60)));
}

// Families that write down only how often a full layer comes.
std::int64_t full_layer_period(const ConfigReader& config) {
  const std::string type = config.string_or("model_type", "");
  std::int64_t period = 0;
  if (type.starts_with("gemma3")) period = 6;
  if (type == "gemma2") period = 2;
  if (type == "cohere2" || type.starts_with("llama4")) period = 4;
  period = config.integer_or("sliding_window_pattern", period, 1, kMaxLayers);
  return config.integer_or("full_attention_interval", period, 1, kMaxLayers);
}

std::int64_t window_of(const ConfigReader& config) {
  const std::string type = config.string_or("model_type", "");
  if (!config.boolean_or("use_sliding_window", type != "qwen2" && type != "qwen3")) return 0;
  const std::int64_t chunk = config.integer_or("attention_chunk_size", 0, 1, kMaxTokens);
  return config.integer_or("sliding_window", chunk, 1, kMaxTokens);
}

LayerKind kind_of_layer(const ConfigReader& config, std::int64_t layer, std::int64_t window,
                        std::int64_t layers) {
  if (config.has("layer_types")) {
    return kind_of_name(config,
                        config.list("layer_types", layers)[static_cast<std::size_t>(layer)]);
  }
  if (config.has("hybrid_layer_pattern")) {
    const json& list = config.list("hybrid_layer_pattern", layers);
    const json& entry = list[static_cast<std::size_t>(layer)];
    const bool windowed = config.checked(entry, "hybrid_layer_pattern", 0, 1) == 1;
    return windowed ? LayerKind::window : LayerKind::full;
  }
  const std::int64_t period = full_layer_period(config);
  const bool is_full = period != 0 && (layer + 1) % period == 0;
  if (config.has("linear_num_value_heads")) return is_full ? LayerKind::full : LayerKind::other;
  if (window == 0) return LayerKind::full;
  // Qwen with windows switched on: the first layers stay full.
  if (config.has("max_window_layers")) {
    const bool first = layer < config.integer("max_window_layers", 0, kMaxLayers);
    return first ? LayerKind::full : LayerKind::window;
  }
  return is_full ? LayerKind::full : LayerKind::window;
}

std::int64_t default_head_dim(const ConfigReader& config, const ModelSpec& model) {
  if (config.has("head_dim")) return config.integer("head_dim", 1, kMaxHeadDim);
  if (model.hidden % model.query_heads != 0) {
    config.fail(fmt::format("head_dim: is missing, and {} heads do not divide hidden_size {}",
                            model.query_heads, model.hidden));
  }
  return model.hidden / model.query_heads;
}

CachedLayers full_shape(const ConfigReader& config, const ModelSpec& model) {
  CachedLayers shape;
  if (config.has("kv_lora_rank")) {
    shape.kv_heads = 1;
    shape.v_dim = config.integer("kv_lora_rank", 1, kMaxHeadDim);
    shape.k_dim = shape.v_dim + config.integer("qk_rope_head_dim", 1, kMaxHeadDim);
    shape.k_is_v = true;
    return shape;
  }
  const std::int64_t heads =
      config.integer_or("num_key_value_heads", model.query_heads, 1, model.query_heads);
  // Keys of Gemma 4 for the layers with full attention.
  shape.kv_heads = config.integer_or("num_global_key_value_heads", heads, 1, model.query_heads);
  shape.k_dim = config.has("global_head_dim") ? config.integer("global_head_dim", 1, kMaxHeadDim)
                                              : default_head_dim(config, model);
  if (model.query_heads % heads != 0) {
    config.fail(
        fmt::format("num_key_value_heads: expected a divisor of num_attention_heads {}, got {}",
                    model.query_heads, heads));
  }
  shape.v_dim = config.integer_or("v_head_dim", shape.k_dim, 1, kMaxHeadDim);
  return shape;
}

CachedLayers window_shape(const ConfigReader& config, const ModelSpec& model, std::int64_t window) {
  CachedLayers shape = full_shape(config, model);
  if (shape.k_is_v) return shape;
  const std::int64_t heads =
      config.integer_or("num_key_value_heads", model.query_heads, 1, model.query_heads);
  const std::int64_t dim = default_head_dim(config, model);
  shape.kv_heads = config.integer_or("swa_num_key_value_heads", heads, 1, kMaxHeads);
  shape.k_dim = config.integer_or("swa_head_dim", dim, 1, kMaxHeadDim);
  const std::int64_t v_dim = config.integer_or("v_head_dim", shape.k_dim, 1, kMaxHeadDim);
  shape.v_dim = config.integer_or("swa_v_head_dim", v_dim, 1, kMaxHeadDim);
  shape.window = window;
  return shape;
}

// A gated delta rule keeps a matrix per value head in f32, and the last inputs of its convolution
// in 16 bits.
std::int64_t state_bytes(const ConfigReader& config, std::int64_t layers) {
  if (layers == 0 || !config.has("linear_num_value_heads")) return 0;
  const std::int64_t v_heads = config.integer("linear_num_value_heads", 1, kMaxHeads);
  const std::int64_t k_heads = config.integer("linear_num_key_heads", 1, kMaxHeads);
  const std::int64_t k_dim = config.integer("linear_key_head_dim", 1, kMaxHeadDim);
  const std::int64_t v_dim = config.integer("linear_value_head_dim", 1, kMaxHeadDim);
  const std::int64_t tail = config.integer_or("linear_conv_kernel_dim", 4, 1, 1024) - 1;
  const std::int64_t matrix = v_heads * k_dim * v_dim * 4;
  const std::int64_t channels = 2 * k_heads * k_dim + v_heads * v_dim;
  return checked_mul(layers, checked_add(matrix, checked_mul(tail * 2, channels)), "state bytes");
}

void add_layers(const ConfigReader& config, ModelSpec& model) {
  const std::int64_t layers = config.integer("num_hidden_layers", 1, kMaxLayers);
  const std::int64_t window = window_of(config);
  CachedLayers full = full_shape(config, model);
  CachedLayers windowed = window_shape(config, model, window);
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const LayerKind kind = kind_of_layer(config, layer, window, layers);
    if (kind == LayerKind::window && window == 0) {
      config.fail("sliding_window: is missing, but some layers have a window");
    }
    if (kind == LayerKind::full) ++full.layers;
    if (kind == LayerKind::window) ++windowed.layers;
    if (kind == LayerKind::other) ++model.other_layers;
  }
  if (full.layers > 0) model.cached.push_back(full);
  if (windowed.layers > 0) model.cached.push_back(windowed);
  if (model.cached.empty()) config.fail("expected at least one layer with keys and values");
  model.state_bytes = state_bytes(config, model.other_layers);
  if (model.other_layers > 0 && model.state_bytes == 0) {
    add_note(model, "the state of the layers without keys and values is not in the sizes");
  }
}

void read_gpt2(const ConfigReader& config, ModelSpec& model) {
  model.hidden = config.integer("n_embd", 1, kMaxWidth);
  model.query_heads = config.integer("n_head", 1, kMaxHeads);
  model.vocabulary = config.integer("vocab_size", 1, kMaxVocabulary);
  model.native_context = config.integer("n_positions", 1, kMaxTokens);
  CachedLayers layers;
  layers.layers = config.integer("n_layer", 1, kMaxLayers);
  layers.kv_heads = model.query_heads;
  layers.k_dim = layers.v_dim = default_head_dim(config, model);
  model.cached.push_back(layers);
}

void read_llama_like(const ConfigReader& config, ModelSpec& model) {
  // Caches of other kinds: a wrong plan would be worse than none.
  for (const char* key : {"hybrid_override_pattern", "compress_ratios", "linear_attn_config",
                          "attn_layer_period", "attn_layer_indices", "layers_block_type",
                          "hybrid_layer_ids", "attn_type_list", "block_types", "ssm_cfg"}) {
    if (config.has(key)) config.fail(fmt::format("{}: this kind of cache is not understood", key));
  }
  // With layer_types it is known which layers have keys and values.
  if (const std::string key = config.first_key("mamba_");
      !key.empty() && !config.has("layer_types")) {
    config.fail(fmt::format("{}: Mamba layers without layer_types are not understood", key));
  }
  if (config.integer_or("num_kv_shared_layers", 0, 0, kMaxLayers) != 0) {
    config.fail("num_kv_shared_layers: layers that share a cache are not understood");
  }
  model.hidden = config.integer("hidden_size", 1, kMaxWidth);
  model.query_heads = config.integer("num_attention_heads", 1, kMaxHeads);
  model.vocabulary = config.integer("vocab_size", 1, kMaxVocabulary);
  model.native_context = config.integer_or("max_position_embeddings", 0, 1, kMaxTokens);
  add_layers(config, model);
  if (config.has("index_head_dim")) {
    add_note(model, "the keys of the sparse index are not in the cache size");
  }
}

// Families whose configurations leave out that the embedding is used twice.
bool tied_by_default(const std::string& type) {
  return type.starts_with("gemma") || type.starts_with("cohere") || type == "gpt2";
}

// Keys that configurations of a family leave to its defaults.
void add_family_defaults(json& part) {
  if (!part.contains("model_type") || !part["model_type"].is_string()) return;
  if (!part["model_type"].get<std::string>().starts_with("gemma3")) return;
  const json kDefaults = {{"vocab_size", 262208},      {"hidden_size", 2304},
                          {"intermediate_size", 9216}, {"num_hidden_layers", 26},
                          {"num_attention_heads", 8},  {"num_key_value_heads", 4},
                          {"head_dim", 256},           {"max_position_embeddings", 131072},
                          {"sliding_window", 4096}};
  for (const auto& [key, value] : kDefaults.items()) {
    // A window of null is none.
    const bool is_window = key == "sliding_window";
    if (!part.contains(key) || (part[key].is_null() && !is_window)) part[key] = value;
  }
}

json parsed(const std::string& name, std::string_view text) {
  try {
    json root = json::parse(text);
    if (root.is_object()) return root;
  } catch (const json::exception& error) {
    // 1e999: JSON, but no number of this machine.
    if (error.byte == 0) throw CorruptData(fmt::format("{}: a number is out of range", name));
    throw CorruptData(fmt::format("{}: not valid JSON at byte {}", name, error.byte));
  }
  throw CorruptData(fmt::format("{}: expected a JSON object", name));
}

}  // namespace

ModelSpec parse_model_config(const std::string& name, std::string_view text) {
  const json root = parsed(name, text);
  const bool nested = root.contains("text_config") && root["text_config"].is_object();
  json part = nested ? root["text_config"] : root;
  add_family_defaults(part);
  const ConfigReader config(name, part);
  ModelSpec model;
  model.name = name;
  model.source = name;
  const std::string type = config.string_or("model_type", "");
  if (type == "gpt2") {
    read_gpt2(config, model);
  } else {
    read_llama_like(config, model);
  }
  const bool outer_tied =
      ConfigReader(name, root).boolean_or("tie_word_embeddings", tied_by_default(type));
  const bool tied = config.boolean_or("tie_word_embeddings", outer_tied);
  try {
    const ParameterCount count = count_parameters(config, model, tied);
    model.parameters = count.total;
    model.active_parameters = count.active;
    model.parameters_basis = count.exact ? "counted" : "estimated";
    if (!count.known) {
      add_note(model, type.empty()
                          ? "model_type is missing: taken for Llama blocks"
                          : fmt::format("model_type '{}' is not known: taken for Llama blocks",
                                        type.substr(0, 40)));
    }
    for (const json* object : {static_cast<const json*>(&part), &root}) {
      if (!object->contains("quantization_config")) continue;
      const json& quantization = object->at("quantization_config");
      if (quantization.is_null()) continue;
      read_quantization(config, quantization, count, model);
      break;
    }
  } catch (const InvalidArgument& error) {
    config.fail(error.what());
  }
  return model;
}

ModelSpec read_model_config(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const std::string file =
      fs::is_directory(path, error) ? (fs::path(path) / "config.json").string() : path;
  const std::uintmax_t size = fs::file_size(file, error);
  if (error) throw CorruptData(fmt::format("{}: {}", file, error.message()));
  if (size > kLargestFile) {
    throw CorruptData(fmt::format("{}: {} bytes are too many for a configuration", file, size));
  }
  std::ifstream stream(file, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  if (stream.bad() || text.size() != size) {
    throw CorruptData(fmt::format("{}: cannot be read", file));
  }
  return parse_model_config(file, text);
}

}  // namespace touchstone::inline v0::plan
