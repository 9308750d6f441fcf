// The architecture of a decoder-only transformer, from config.json and generation_config.json of a
// folder in the layout of Hugging Face, or from the metadata of a GGUF file. Both give the same
// description for the same model. Architectures that are not listed here (mixtures of experts,
// recurrent models) are refused by name (Unsupported).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "touchstone/core/export.h"

namespace touchstone::inline v0::io {

// Decides the names and layout of tensors. llama: Llama 2 and 3, Mistral, SmolLM2 and others of
// the same structure.
enum class ModelFamily : std::uint8_t { llama, qwen2, qwen3, gemma2, gemma3, phi3, gpt2, gpt_neox };
inline constexpr ModelFamily kModelFamilies[] = {
    ModelFamily::llama,  ModelFamily::qwen2, ModelFamily::qwen3, ModelFamily::gemma2,
    ModelFamily::gemma3, ModelFamily::phi3,  ModelFamily::gpt2,  ModelFamily::gpt_neox};
TOUCHSTONE_API std::string_view name_of(ModelFamily family);  // "llama", ..., "gpt_neox"

enum class NormKind : std::uint8_t { rms, layer };
enum class ActivationKind : std::uint8_t { silu, gelu, gelu_tanh, relu };
TOUCHSTONE_API std::string_view name_of(ActivationKind activation);

enum class RopeScaling : std::uint8_t { none, linear, dynamic, yarn, llama3, longrope };
TOUCHSTONE_API std::string_view name_of(RopeScaling scaling);

// Rotation of pairs (i, i + dims / 2) of a head, for i < dims / 2: weights are put into this order
// when they are loaded (model_file.h). Frequency i: theta^(-2 i / dims) / factors[i].
struct RopeDescription {
  std::int64_t dims = 0;  // rotated values of a head; 0: positions are learned
  double theta = 10000;
  RopeScaling scaling = RopeScaling::none;
  double factor = 1;                  // linear, dynamic, yarn, llama3, longrope
  std::int64_t original_context = 0;  // dynamic, yarn, llama3, longrope: the context of training
  double attention_factor = 1;        // yarn, longrope: factor of cosine and sine
  double beta_fast = 32;              // yarn
  double beta_slow = 1;
  std::vector<float> factors;       // llama3; longrope up to original_context. Empty: all 1
  std::vector<float> long_factors;  // longrope beyond original_context
  friend bool operator==(const RopeDescription&, const RopeDescription&) = default;
};

struct LayerDescription {
  std::int64_t window = 0;  // positions a query attends to, its own included; 0: all
  bool local_rope = false;  // ModelDescription::local_rope instead of rope
  std::int64_t sinks = 0;   // first positions that a query sees beside its window; only with one
  friend bool operator==(const LayerDescription&, const LayerDescription&) = default;
};

struct GenerationDefaults {
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<std::int64_t> top_k;
  std::optional<double> repetition_penalty;
  std::optional<bool> sample;  // false: greedy
  std::optional<std::int64_t> max_tokens;
  friend bool operator==(const GenerationDefaults&, const GenerationDefaults&) = default;
};

struct ModelDescription {
  ModelFamily family = ModelFamily::llama;
  std::string name;  // of the model, where the file has one

  std::int64_t width = 0;       // E
  std::int64_t ffn_width = 0;   // F
  std::int64_t heads = 0;       // H
  std::int64_t kv_heads = 0;    // K, a divisor of H
  std::int64_t head_size = 0;   // D
  std::int64_t vocabulary = 0;  // V: rows of the embedding
  std::int64_t context = 0;     // tokens
  std::vector<LayerDescription> layers;

  NormKind norm = NormKind::rms;
  double norm_epsilon = 1e-5;
  bool norm_bias = false;
  bool qk_norm = false;     // norm of each head of q and k before the rotation
  bool post_norms = false;  // norms of the results of attention and MLP before they are added

  RopeDescription rope;
  std::optional<RopeDescription> local_rope;
  bool learned_positions = false;  // a table of `context` rows is added to the embedding

  double attention_scale = 0;     // of q k^T
  double attention_soft_cap = 0;  // cap * tanh(score / cap); 0: none
  double final_soft_cap = 0;      // the same of the logits
  bool qkv_bias = false;
  bool attention_output_bias = false;

  ActivationKind activation = ActivationKind::silu;
  bool gated = true;  // activation(gate) * up
  bool mlp_bias = false;

  bool parallel_blocks = false;  // attention and MLP read the same input, each through its own norm
  double embedding_scale = 1;
  bool tied_head = false;  // logits by the embedding
  bool head_bias = false;

  std::optional<std::int64_t> bos_token;
  std::optional<std::int64_t> pad_token;
  std::vector<std::int64_t> eos_tokens;  // each once, the model's own end of text first
  GenerationDefaults generation;

  friend bool operator==(const ModelDescription&, const ModelDescription&) = default;
};

// The description as readable lines "key: value"; what differs from the defaults only, where that
// is shorter.
TOUCHSTONE_API std::vector<std::pair<std::string, std::string>> describe(
    const ModelDescription& description);

}  // namespace touchstone::inline v0::io
