#include "io/model/tensor_rules.h"

#include <fmt/format.h>

#include "touchstone/core/error.h"

namespace touchstone::inline v0::io {
namespace {

using Rules = std::vector<TensorRule>;

// NAME.weight, and NAME.bias as an option.
void add(Rules& rules, const std::string& stored, const std::vector<std::string>& parts,
         TensorOp op = TensorOp::none, bool bias_required = false) {
  for (const char* const kind : {".weight", ".bias"}) {
    const bool bias = kind[1] == 'b';
    TensorRule rule;
    rule.stored = stored + kind;
    for (const std::string& part : parts) rule.parts.push_back(part + kind);
    // A bias has no columns that could be transposed.
    rule.op = bias && op == TensorOp::transposed ? TensorOp::none : op;
    rule.optional = bias && !bias_required;
    rules.push_back(std::move(rule));
  }
}

void add_weight(Rules& rules, const std::string& stored, const std::string& part,
                TensorOp op = TensorOp::none) {
  rules.push_back({stored + ".weight", {part + ".weight"}, op, false});
}

const std::vector<std::string> kQkv = {"attn_q", "attn_k", "attn_v"};

TensorRules gguf_rules(ModelFamily family) {
  TensorRules rules{"", "blk.{}.", {}, {}};
  const bool layer_norm = family == ModelFamily::gpt2 || family == ModelFamily::gpt_neox;
  const bool fused = layer_norm || family == ModelFamily::phi3;
  const TensorOp pairs = family == ModelFamily::llama ? TensorOp::pairs : TensorOp::none;
  const auto norm = [&](Rules& list, const std::string& name) {
    if (layer_norm) {
      add(list, name, {name}, TensorOp::none, true);
    } else {
      add_weight(list, name, name);
    }
  };
  add_weight(rules.global, "token_embd", "token_embd");
  if (family == ModelFamily::gpt2) add_weight(rules.global, "position_embd", "position_embd");
  norm(rules.global, "output_norm");
  add(rules.global, "output", {"output"});
  norm(rules.layer, "attn_norm");
  if (fused) {
    add(rules.layer, "attn_qkv", kQkv, TensorOp::none);
  } else {
    add(rules.layer, "attn_q", {"attn_q"}, pairs);
    add(rules.layer, "attn_k", {"attn_k"}, pairs);
    add(rules.layer, "attn_v", {"attn_v"});
  }
  if (family == ModelFamily::qwen3 || family == ModelFamily::gemma3) {
    add_weight(rules.layer, "attn_q_norm", "attn_q_norm");
    add_weight(rules.layer, "attn_k_norm", "attn_k_norm");
  }
  add(rules.layer, "attn_output", {"attn_output"});
  if (family == ModelFamily::gemma2 || family == ModelFamily::gemma3) {
    add_weight(rules.layer, "post_attention_norm", "post_attention_norm");
    add_weight(rules.layer, "post_ffw_norm", "post_ffw_norm");
  }
  norm(rules.layer, "ffn_norm");
  if (family == ModelFamily::phi3) {
    add(rules.layer, "ffn_up", {"ffn_gate", "ffn_up"});
  } else {
    if (!layer_norm) add(rules.layer, "ffn_gate", {"ffn_gate"});
    add(rules.layer, "ffn_up", {"ffn_up"});
  }
  add(rules.layer, "ffn_down", {"ffn_down"});
  return rules;
}

TensorRules gpt2_rules() {
  TensorRules rules{"", "h.{}.", {}, {}};
  add_weight(rules.global, "wte", "token_embd");
  add_weight(rules.global, "wpe", "position_embd");
  add(rules.global, "ln_f", {"output_norm"}, TensorOp::none, true);
  add(rules.layer, "ln_1", {"attn_norm"}, TensorOp::none, true);
  add(rules.layer, "attn.c_attn", kQkv, TensorOp::transposed);
  add(rules.layer, "attn.c_proj", {"attn_output"}, TensorOp::transposed);
  add(rules.layer, "ln_2", {"ffn_norm"}, TensorOp::none, true);
  add(rules.layer, "mlp.c_fc", {"ffn_up"}, TensorOp::transposed);
  add(rules.layer, "mlp.c_proj", {"ffn_down"}, TensorOp::transposed);
  return rules;
}

TensorRules gpt_neox_rules() {
  TensorRules rules{"", "layers.{}.", {}, {}};
  add_weight(rules.global, "embed_in", "token_embd");
  add(rules.global, "final_layer_norm", {"output_norm"}, TensorOp::none, true);
  add(rules.layer, "input_layernorm", {"attn_norm"}, TensorOp::none, true);
  add(rules.layer, "attention.query_key_value", kQkv, TensorOp::heads);
  add(rules.layer, "attention.dense", {"attn_output"});
  add(rules.layer, "post_attention_layernorm", {"ffn_norm"}, TensorOp::none, true);
  add(rules.layer, "mlp.dense_h_to_4h", {"ffn_up"});
  add(rules.layer, "mlp.dense_4h_to_h", {"ffn_down"});
  return rules;
}

TensorRules llama_like_rules(ModelFamily family) {
  TensorRules rules{"", "layers.{}.", {}, {}};
  const bool gemma = family == ModelFamily::gemma2 || family == ModelFamily::gemma3;
  const TensorOp norm = gemma ? TensorOp::minus_one : TensorOp::none;
  add_weight(rules.global, "embed_tokens", "token_embd");
  add_weight(rules.global, "norm", "output_norm", norm);
  add_weight(rules.layer, "input_layernorm", "attn_norm", norm);
  if (family == ModelFamily::phi3) {
    add(rules.layer, "self_attn.qkv_proj", kQkv);
    add(rules.layer, "mlp.gate_up_proj", {"ffn_gate", "ffn_up"});
  } else {
    for (const char* const part : {"q", "k", "v"}) {
      add(rules.layer, fmt::format("self_attn.{}_proj", part), {fmt::format("attn_{}", part)});
    }
    add(rules.layer, "mlp.gate_proj", {"ffn_gate"});
    add(rules.layer, "mlp.up_proj", {"ffn_up"});
  }
  if (family == ModelFamily::qwen3 || family == ModelFamily::gemma3) {
    add_weight(rules.layer, "self_attn.q_norm", "attn_q_norm", norm);
    add_weight(rules.layer, "self_attn.k_norm", "attn_k_norm", norm);
  }
  add(rules.layer, "self_attn.o_proj", {"attn_output"});
  if (gemma) {
    add_weight(rules.layer, "post_attention_layernorm", "post_attention_norm", norm);
    add_weight(rules.layer, "pre_feedforward_layernorm", "ffn_norm", norm);
    add_weight(rules.layer, "post_feedforward_layernorm", "post_ffw_norm", norm);
  } else {
    add_weight(rules.layer, "post_attention_layernorm", "ffn_norm");
  }
  add(rules.layer, "mlp.down_proj", {"ffn_down"});
  return rules;
}

}  // namespace

std::span<const std::string_view> known_prefixes(ModelFamily family) {
  static constexpr std::string_view kLlama[] = {"model.", "model.language_model.",
                                                "language_model.model.", ""};
  static constexpr std::string_view kGpt2[] = {"transformer.", ""};
  static constexpr std::string_view kNeox[] = {"gpt_neox.", ""};
  if (family == ModelFamily::gpt2) return kGpt2;
  if (family == ModelFamily::gpt_neox) return kNeox;
  return kLlama;
}

std::string_view embedding_name(ModelFamily family) {
  if (family == ModelFamily::gpt2) return "wte.weight";
  if (family == ModelFamily::gpt_neox) return "embed_in.weight";
  return "embed_tokens.weight";
}

TensorRules tensor_rules(ModelFamily family, Container container, std::string_view prefix) {
  if (container == Container::gguf) return gguf_rules(family);
  TensorRules rules = family == ModelFamily::gpt2       ? gpt2_rules()
                      : family == ModelFamily::gpt_neox ? gpt_neox_rules()
                                                        : llama_like_rules(family);
  rules.prefix = prefix;
  for (TensorRule& rule : rules.global) rule.stored.insert(0, prefix);
  rules.layer_prefix.insert(0, prefix);
  // The head stands outside of the prefix.
  const char* const head = family == ModelFamily::gpt_neox ? "embed_out" : "lm_head";
  const std::string outer = prefix == "language_model.model." ? "language_model." : "";
  add(rules.global, outer + head, {"output"});
  return rules;
}

bool is_ignored_tensor(std::string_view name) {
  for (const std::string_view ending : {".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias",
                                        ".attention.bias", ".attention.masked_bias"}) {
    if (name.ends_with(ending)) return true;
  }
  for (const std::string_view beginning :
       {"vision_tower.", "multi_modal_projector.", "model.vision_tower.",
        "model.multi_modal_projector.", "rope_freqs.weight", "rope_factors_long.weight",
        "rope_factors_short.weight"}) {
    if (name.starts_with(beginning)) return true;
  }
  return false;
}

std::vector<std::int64_t> canonical_shape(const ModelDescription& d, std::string_view name) {
  const std::string_view base = name.substr(0, name.rfind('.'));
  const bool bias = name.ends_with(".bias");
  const std::int64_t q = d.heads * d.head_size;
  const std::int64_t k = d.kv_heads * d.head_size;
  struct Shape {
    std::string_view name;
    std::int64_t rows;
    std::int64_t columns;  // 0: a vector
  };
  const Shape shapes[] = {{"token_embd", d.vocabulary, d.width},
                          {"position_embd", d.context, d.width},
                          {"output", d.vocabulary, d.width},
                          {"attn_q", q, d.width},
                          {"attn_k", k, d.width},
                          {"attn_v", k, d.width},
                          {"attn_output", d.width, q},
                          {"ffn_gate", d.ffn_width, d.width},
                          {"ffn_up", d.ffn_width, d.width},
                          {"ffn_down", d.width, d.ffn_width},
                          {"attn_q_norm", d.head_size, 0},
                          {"attn_k_norm", d.head_size, 0}};
  for (const Shape& shape : shapes) {
    if (shape.name != base) continue;
    if (bias || shape.columns == 0) return {shape.rows};
    return {shape.rows, shape.columns};
  }
  return {d.width};  // all other norms
}

}  // namespace touchstone::inline v0::io
