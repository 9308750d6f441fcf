// How each container stores the tensors of each family, as one table that both loading and converting
// follow. A stored tensor is one or several canonical tensors, row after row, under one operation.
//
// Canonical tensors are named as GGUF names those of the llama architecture: token_embd, output_norm,
// output, blk.N.attn_norm, attn_q, attn_k, attn_v, attn_output, ffn_norm, ffn_gate, ffn_up, ffn_down,
// attn_q_norm, attn_k_norm, post_attention_norm, post_ffw_norm, position_embd, each .weight or .bias.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "touchstone/io/model_description.h"
#include "touchstone/io/tensor_file.h"

namespace touchstone::inline v0::io {

enum class TensorOp : std::uint8_t {
  none,
  pairs,       // rows of a head interleaved: i and i + D/2 side by side (GGUF, llama)
  transposed,  // [in, out] (GPT-2's convolutions)
  heads,       // of each head its rows of q, of k, of v (GPT-NeoX)
  minus_one,   // norms stored without the 1 that is added to them (Gemma in safetensors)
};

struct TensorRule {
  std::string stored;              // name in the container, without the prefix of the layer
  std::vector<std::string> parts;  // canonical names, without the prefix of the layer
  TensorOp op = TensorOp::none;
  bool optional = false;  // present in all layers or in none
};

struct TensorRules {
  std::string prefix;        // of everything: "model."
  std::string layer_prefix;  // "layers.{}." or "blk.{}."
  std::vector<TensorRule> global;
  std::vector<TensorRule> layer;
};

// `prefix`: of a safetensors file, before the names of the family.
TensorRules tensor_rules(ModelFamily family, Container container, std::string_view prefix);
// The prefixes that files of a family come with.
std::span<const std::string_view> known_prefixes(ModelFamily family);
// The embedding, by which the prefix is recognized.
std::string_view embedding_name(ModelFamily family);

// Tensors that are in files and not part of the model: masks, tables, the vision part.
bool is_ignored_tensor(std::string_view name);

// The shape of a canonical tensor (name without the prefix of the layer).
std::vector<std::int64_t> canonical_shape(const ModelDescription& description,
                                          std::string_view name);

}  // namespace touchstone::inline v0::io
