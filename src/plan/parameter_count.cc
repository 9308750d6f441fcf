// Parameters of a model as the sum over the shapes of its tensors.
#include <algorithm>
#include <array>

#include "plan/model_config.h"
#include "touchstone/core/checked.h"

namespace touchstone::inline v0::plan {
namespace {

std::int64_t product(std::initializer_list<std::int64_t> factors) {
  std::int64_t value = 1;
  for (const std::int64_t factor : factors) value = checked_mul(value, factor, "parameters");
  return value;
}

std::int64_t sum(std::initializer_list<std::int64_t> terms) {
  std::int64_t value = 0;
  for (const std::int64_t term : terms) value = checked_add(value, term, "parameters");
  return value;
}

// Families whose blocks are exactly what is counted below.
bool is_known(const std::string& type) {
  constexpr std::array<std::string_view, 12> kKnown = {
      "llama",  "mistral", "mixtral",     "qwen2", "qwen3",       "qwen3_moe",
      "gemma2", "gemma3",  "gemma3_text", "phi3",  "deepseek_v3", "kimi_k2"};
  return std::ranges::find(kKnown, type) != kKnown.end();
}

bool starts(const std::string& type, std::string_view family) { return type.starts_with(family); }

// Queries and keys through low-rank matrices, each with a norm between.
std::int64_t mla_attention(const ConfigReader& config, std::int64_t width, std::int64_t heads) {
  const std::int64_t latent = config.integer("kv_lora_rank", 1, kMaxWidth);
  const std::int64_t rope = config.integer("qk_rope_head_dim", 1, kMaxHeadDim);
  const std::int64_t nope = config.integer("qk_nope_head_dim", 1, kMaxHeadDim);
  const std::int64_t value = config.integer("v_head_dim", 1, kMaxHeadDim);
  const std::int64_t q_rank = config.integer_or("q_lora_rank", 0, 0, kMaxWidth);
  const std::int64_t queries =
      q_rank == 0 ? product({width, heads, nope + rope})
                  : sum({product({width, q_rank}), q_rank, product({q_rank, heads, nope + rope})});
  return sum({queries, product({width, latent + rope}), latent,
              product({latent, heads, nope + value}), product({heads, value, width})});
}

std::int64_t attention(const ConfigReader& config, const std::string& type, const ModelSpec& model,
                       const CachedLayers& layers) {
  if (layers.k_is_v) return mla_attention(config, model.hidden, model.query_heads);
  const std::int64_t q = product({model.query_heads, layers.k_dim});
  const std::int64_t k = product({layers.kv_heads, layers.k_dim});
  const std::int64_t v = product({layers.kv_heads, layers.v_dim});
  std::int64_t count = sum({product({model.hidden, sum({q, k, v})}),
                            product({model.query_heads, layers.v_dim, model.hidden})});
  const bool bias = config.boolean_or("attention_bias", starts(type, "qwen2"));
  if (bias) count = sum({count, q, k, v});
  // In the Llama family the switch is about all four matrices.
  if (bias && type == "llama") count = sum({count, model.hidden});
  if (starts(type, "qwen3") || starts(type, "gemma3")) count = sum({count, 2 * layers.k_dim});
  return count;
}

struct FeedForward {
  std::int64_t dense = 0;          // a layer without experts
  std::int64_t sparse_total = 0;   // a layer with them
  std::int64_t sparse_active = 0;  // of the experts that one token is routed to
  std::int64_t dense_layers = 0;
  std::int64_t experts = 0;  // all routed experts of a layer
};

std::int64_t chosen_experts(const ConfigReader& config, std::int64_t experts) {
  for (const char* key : {"num_experts_per_tok", "num_experts_per_token", "top_k_experts"}) {
    if (config.has(key)) return config.integer(key, 1, experts);
  }
  config.fail("num_experts_per_tok: is missing");
}

// Llama 4: one layer in every interleave_moe_layer_step has experts, and a shared expert beside
// them.
void interleave(const ConfigReader& config, std::int64_t width, std::int64_t layers,
                FeedForward& result) {
  const std::int64_t step = config.integer("interleave_moe_layer_step", 1, kMaxLayers);
  const std::int64_t shared =
      product({3, width, config.integer("intermediate_size", 1, kMaxWidth)});
  result.dense = product({3, width, config.integer("intermediate_size_mlp", 1, kMaxWidth)});
  result.dense_layers = layers - layers / step;
  result.sparse_total = sum({result.sparse_total, shared});
  result.sparse_active = sum({result.sparse_active, shared});
}

FeedForward feed_forward(const ConfigReader& config, const ModelSpec& model, std::int64_t layers) {
  const std::int64_t width = model.hidden;
  // Some mixtures give the width of an expert only.
  const std::int64_t inner = config.integer_or("intermediate_size", 0, 1, kMaxWidth);
  FeedForward result;
  result.dense = product({3, width, inner});
  result.dense_layers = layers;
  std::int64_t experts = 0;
  for (const char* key : {"num_local_experts", "n_routed_experts", "num_experts"}) {
    if (experts == 0) experts = config.integer_or(key, 0, 0, kMaxExperts);
  }
  if (experts == 0) {
    if (inner == 0) config.fail("intermediate_size: is missing");
    return result;
  }
  const std::int64_t chosen = chosen_experts(config, experts);
  const std::int64_t expert_inner = config.integer_or("moe_intermediate_size", inner, 1, kMaxWidth);
  if (expert_inner == 0) config.fail("moe_intermediate_size: is missing");
  const std::int64_t one = product({3, width, expert_inner});
  const std::int64_t shared = config.integer_or("n_shared_experts", 0, 0, kMaxExperts);
  const std::int64_t shared_inner =
      config.integer_or("shared_expert_intermediate_size", 0, 0, kMaxWidth);
  // Routers of the DeepSeek kind have a bias per expert beside the matrix.
  const std::int64_t bias = config.has("n_routed_experts") ? experts : 0;
  const std::int64_t always = sum(
      {product({width, experts}), bias, product({shared, one}), product({3, width, shared_inner})});
  result.experts = product({experts, one});
  result.sparse_total = sum({always, result.experts});
  result.sparse_active = sum({always, product({chosen, one})});
  result.dense_layers = config.integer_or("first_k_dense_replace", 0, 0, layers);
  if (config.has("interleave_moe_layer_step")) interleave(config, width, layers, result);
  return result;
}

// Learned positions, biases everywhere, a feed-forward of four times the width by default.
ParameterCount count_gpt2(const ConfigReader& config, const ModelSpec& model) {
  const std::int64_t width = model.hidden;
  const std::int64_t layers = model.cached.front().layers;
  const std::int64_t inner = config.integer_or("n_inner", 4 * width, 1, 4 * kMaxWidth);
  const std::int64_t block = sum(
      {product({4, width, width}), 4 * width, product({2, width, inner}), inner, width, 4 * width});
  const std::int64_t total =
      sum({product({model.vocabulary, width}), product({model.native_context, width}),
           product({layers, block}), 2 * width});
  return {.total = total,
          .embedding = product({model.vocabulary + model.native_context, width}),
          .active = total,
          .known = true,
          .exact = true};
}

// Two matrices in the feed-forward, biases everywhere but in the embeddings.
ParameterCount count_gpt_neox(const ConfigReader& config, const ModelSpec& model, bool tied) {
  const std::int64_t width = model.hidden;
  const std::int64_t inner = config.integer("intermediate_size", 1, kMaxWidth);
  const std::int64_t attention_biases = config.boolean_or("attention_bias", true) ? 4 * width : 0;
  const std::int64_t block = sum({product({4, width, width}), attention_biases,
                                  product({2, width, inner}), inner, width, 4 * width});
  const std::int64_t embedding = product({model.vocabulary, width, tied ? 1 : 2});
  const std::int64_t total =
      sum({embedding, product({model.cached.front().layers, block}), 2 * width});
  return {.total = total, .embedding = embedding, .active = total, .known = true, .exact = true};
}

}  // namespace

ParameterCount count_parameters(const ConfigReader& config, const ModelSpec& model, bool tied) {
  const std::string type = config.string_or("model_type", "");
  if (type == "gpt2") return count_gpt2(config, model);
  if (type == "gpt_neox") return count_gpt_neox(config, model, tied);
  std::int64_t layers = model.other_layers;
  std::int64_t common =
      sum({product({model.vocabulary, model.hidden, tied ? 1 : 2}), model.hidden});
  for (const CachedLayers& group : model.cached) {
    layers += group.layers;
    common = sum({common, product({group.layers, attention(config, type, model, group)})});
  }
  // Layers without a cache mix tokens by other means of about the same size.
  common =
      sum({common,
           product({model.other_layers, attention(config, type, model, model.cached.front())})});
  const std::int64_t norms = starts(type, "gemma2") || starts(type, "gemma3") ? 4 : 2;
  const FeedForward inner = feed_forward(config, model, layers);
  const std::int64_t sparse_layers = layers - inner.dense_layers;
  common = sum(
      {common, product({layers, norms, model.hidden}), product({inner.dense_layers, inner.dense})});
  ParameterCount count;
  count.experts = product({sparse_layers, inner.experts});
  count.embedding = sum({product({model.vocabulary, model.hidden, tied ? 1 : 2}), model.hidden,
                         product({layers, norms, model.hidden})});
  count.total = sum({common, product({sparse_layers, inner.sparse_total})});
  count.active = sum({common, product({sparse_layers, inner.sparse_active})});
  count.known = is_known(type);
  count.exact = count.known && model.other_layers == 0;
  return count;
}

}  // namespace touchstone::inline v0::plan
