#include "touchstone/io/block_draft.h"

#include <fmt/format.h>

#include "io/json_document.h"
#include "io/mapped_file.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::io {
namespace {

constexpr std::size_t kMaxDraftConfigBytes = std::size_t{1} << 20;

std::int64_t number(const JsonValue& root, std::string_view key, std::int64_t least,
                    std::int64_t most) {
  const JsonValue value = root.at(key);
  const std::int64_t n = value.as_int();
  if (n < least || n > most) {
    value.fail(fmt::format("expected {} to {}, got {}", least, most, n));
  }
  return n;
}

double positive(const JsonValue& root, std::string_view key, double otherwise) {
  const auto value = root.find(key);
  if (!value) return otherwise;
  const double d = value->as_double();
  if (!(d > 0)) value->fail("expected a number above 0");
  return d;
}

void refuse(const JsonValue& value, const std::string& what) {
  throw Unsupported(fmt::format("block draft: {}: {}", value.path(), what));
}

void refuse_variants(const JsonValue& root) {
  if (const auto act = root.find("hidden_act"); act && act->as_string() != "silu") {
    refuse(*act, "expected silu, got " + std::string(act->as_string()));
  }
  if (const auto bias = root.find("attention_bias"); bias && bias->as_bool()) {
    refuse(*bias, "biases are not supported");
  }
  if (const auto scaling = root.find("rope_scaling"); scaling && !scaling->is_null()) {
    refuse(*scaling, "scaled rotations are not supported");
  }
  if (const auto types = root.find("layer_types"); types && types->is_array()) {
    for (const JsonValue type : *types) {
      if (type.as_string() != "full_attention") {
        refuse(type, "expected full_attention, got " + std::string(type.as_string()));
      }
    }
  }
  if (const auto causal = root.find("is_causal"); causal && causal->as_bool()) {
    refuse(*causal, "causal blocks are not supported");
  }
}

}  // namespace

BlockDraftDescription read_block_draft(const std::filesystem::path& folder) {
  const JsonDocument document((folder / "config.json").string(),
                              read_text_file(folder / "config.json", kMaxDraftConfigBytes));
  const JsonValue root = document.root();
  constexpr std::int64_t kMax = std::int64_t{1} << 24;
  BlockDraftDescription d;
  d.layers = number(root, "num_hidden_layers", 1, 1024);
  d.width = number(root, "hidden_size", 1, kMax);
  d.query_heads = number(root, "num_attention_heads", 1, 4096);
  d.kv_heads = number(root, "num_key_value_heads", 1, d.query_heads);
  d.head_size = root.find("head_dim") ? number(root, "head_dim", 2, 4096) : d.width / d.query_heads;
  d.mlp_width = number(root, "intermediate_size", 1, kMax);
  d.vocabulary = number(root, "vocab_size", 1, std::int64_t{1} << 30);
  d.block = number(root, "block_size", 2, 256);
  d.norm_eps = positive(root, "rms_norm_eps", 1e-6);
  d.rope_base = positive(root, "rope_theta", 10000);
  if (d.query_heads % d.kv_heads != 0 || d.head_size < 2 || d.head_size % 2 != 0) {
    root.at("num_key_value_heads").fail("heads do not divide");
  }
  refuse_variants(root);
  const JsonValue own = root.at("dflash_config");
  d.mask_token = static_cast<std::int32_t>(number(own, "mask_token_id", 0, d.vocabulary - 1));
  const JsonValue taps = own.at("target_layer_ids");
  for (const JsonValue tap : taps) {
    const std::int64_t layer = tap.as_int();
    if (layer < 0 || layer >= kMax || (!d.taps.empty() && layer <= d.taps.back())) {
      tap.fail("expected ascending layers from 0");
    }
    d.taps.push_back(layer);
  }
  if (d.taps.empty()) taps.fail("expected at least one layer");
  return d;
}

std::string block_draft_json(const BlockDraftDescription& d, std::string_view torch_dtype) {
  return fmt::format(
      R"({{
  "architectures": ["DFlashDraftModel"],
  "model_type": "qwen3",
  "torch_dtype": "{}",
  "hidden_act": "silu",
  "hidden_size": {},
  "num_hidden_layers": {},
  "num_attention_heads": {},
  "num_key_value_heads": {},
  "head_dim": {},
  "intermediate_size": {},
  "vocab_size": {},
  "block_size": {},
  "rms_norm_eps": {},
  "rope_theta": {},
  "attention_bias": false,
  "is_causal": false,
  "dflash_config": {{"mask_token_id": {}, "target_layer_ids": [{}]}}
}}
)",
      torch_dtype, d.width, d.layers, d.query_heads, d.kv_heads, d.head_size, d.mlp_width,
      d.vocabulary, d.block, d.norm_eps, d.rope_base, d.mask_token, fmt::join(d.taps, ", "));
}

void check_block_draft(const BlockDraftDescription& d, const TensorFile& file) {
  const auto expect = [&](const std::string& name, std::vector<std::int64_t> shape) {
    const TensorInfo& tensor = file.tensor(name);
    if (tensor.shape != shape || tensor.format == nullptr) {
      throw CorruptData(fmt::format("block draft: {}: expected weights of shape [{}], got {} [{}]",
                                    name, fmt::join(shape, ", "), tensor.type,
                                    fmt::join(tensor.shape, ", ")));
    }
  };
  const std::int64_t q = d.query_heads * d.head_size;
  const std::int64_t kv = d.kv_heads * d.head_size;
  expect("fc.weight", {d.width, std::ssize(d.taps) * d.width});
  expect("hidden_norm.weight", {d.width});
  expect("norm.weight", {d.width});
  for (std::int64_t i = 0; i < d.layers; ++i) {
    const std::string layer = fmt::format("layers.{}.", i);
    expect(layer + "input_layernorm.weight", {d.width});
    expect(layer + "post_attention_layernorm.weight", {d.width});
    expect(layer + "self_attn.q_proj.weight", {q, d.width});
    expect(layer + "self_attn.k_proj.weight", {kv, d.width});
    expect(layer + "self_attn.v_proj.weight", {kv, d.width});
    expect(layer + "self_attn.o_proj.weight", {d.width, q});
    expect(layer + "self_attn.q_norm.weight", {d.head_size});
    expect(layer + "self_attn.k_norm.weight", {d.head_size});
    expect(layer + "mlp.gate_proj.weight", {d.mlp_width, d.width});
    expect(layer + "mlp.up_proj.weight", {d.mlp_width, d.width});
    expect(layer + "mlp.down_proj.weight", {d.width, d.mlp_width});
  }
}

}  // namespace touchstone::inline v0::io
