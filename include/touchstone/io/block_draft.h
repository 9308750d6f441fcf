// Block drafts (DFlash, arXiv 2602.06036): a few decoder layers that fill a block of masked
// positions in one pass, with hidden states of the target as keys and values. A folder in the
// layout of Hugging Face: config.json and safetensors with the names
//
//   fc.weight                     [width, taps * width]    target features to one vector
//   hidden_norm.weight            [width]
//   layers.N.input_layernorm.weight, layers.N.post_attention_layernorm.weight
//   layers.N.self_attn.{q,k,v,o}_proj.weight, layers.N.self_attn.{q,k}_norm.weight
//   layers.N.mlp.{gate,up,down}_proj.weight
//   norm.weight                   [width]
//
// without embedding and head, which are the target's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "touchstone/core/export.h"
#include "touchstone/io/tensor_file.h"

namespace touchstone::inline v0::io {

struct BlockDraftDescription {
  std::int64_t layers = 0;
  std::int64_t width = 0;
  std::int64_t query_heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_size = 0;
  std::int64_t mlp_width = 0;
  std::int64_t vocabulary = 0;
  std::int64_t block = 0;  // positions of a pass, the last token of the text included
  double norm_eps = 1e-6;
  double rope_base = 10000;
  std::int32_t mask_token = 0;
  std::vector<std::int64_t> taps{};  // layers of the target, from 0: their outputs are read
};

// Of a folder. CorruptData for what is missing or out of range, by key; Unsupported for layers with
// windows or causal attention, scaled rotations, another activation than SiLU, and biases.
TOUCHSTONE_API BlockDraftDescription read_block_draft(const std::filesystem::path& folder);
// The config.json that gives the description back. torch_dtype: "float32", ..
TOUCHSTONE_API std::string block_draft_json(const BlockDraftDescription& description,
                                            std::string_view torch_dtype);
// CorruptData names the tensor that is missing or of another shape.
TOUCHSTONE_API void check_block_draft(const BlockDraftDescription& description,
                                      const TensorFile& file);

}  // namespace touchstone::inline v0::io
