#include "model/layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "touchstone/core/error.h"
#include "touchstone/ops/activation.h"
#include "touchstone/ops/cached_attention.h"
#include "touchstone/ops/embedding.h"
#include "touchstone/ops/gate.h"
#include "touchstone/ops/kv_append.h"
#include "touchstone/ops/layer_norm.h"
#include "touchstone/ops/linear.h"
#include "touchstone/ops/rms_norm.h"
#include "touchstone/ops/rope.h"

namespace touchstone::inline v0::model {
namespace {

Activation activation_of(io::ActivationKind kind) {
  switch (kind) {
    case io::ActivationKind::silu:
      return Activation::silu;
    case io::ActivationKind::gelu:
      return Activation::gelu;
    case io::ActivationKind::gelu_tanh:
      return Activation::gelu_tanh;
    case io::ActivationKind::relu:
      break;
  }
  throw Unsupported(fmt::format("model: activation {} is not supported", name_of(kind)));
}

// Models of the Gemma family multiply by the weight before they round.
RmsNormRounding rounding_of(io::ModelFamily family) {
  const bool gemma = family == io::ModelFamily::gemma2 || family == io::ModelFamily::gemma3;
  return gemma ? RmsNormRounding::once : RmsNormRounding::before_weight;
}

}  // namespace

CachePlan plan_cache(const io::ModelDescription& d, const ModelOptions& options) {
  const QuantFormat plain{.dtype = options.compute};
  CachePlan plan;
  for (const io::LayerDescription& layer : d.layers) {
    auto& groups = plan.layout.groups;
    auto group = std::ranges::find(groups, layer.window, &cache::LayerGroup::window);
    if (group == groups.end()) {
      groups.push_back({.layers = 0,
                        .kv_heads = d.kv_heads,
                        .k_dim = d.head_size,
                        .v_dim = d.head_size,
                        .k = options.keys.value_or(plain),
                        .v = options.values.value_or(plain),
                        .page_tokens = options.page_tokens,
                        .window = layer.window,
                        .sinks = layer.window > 0 ? d.window_sinks : 0});
      group = groups.end() - 1;
    }
    plan.layers.push_back({group - groups.begin(), group->layers++});
  }
  return plan;
}

Layers::Layers(Context& context, const io::ModelDescription& description, const Weights& weights,
               const CachePlan& plan, const ModelOptions& options, std::int64_t max_length)
    : d_(description),
      w_(weights),
      cache_layers_(plan.layers),
      compute_(options.compute),
      device_(context.device()),
      int8_activations_(options.int8_activations),
      rotation_(make_rotation(d_.rope, max_length, device_)) {
  activation_of(d_.activation);
  if (d_.local_rope) local_rotation_ = make_rotation(*d_.local_rope, max_length, device_);
  const std::int64_t rows = options.max_rows;
  const auto buffer = [&](std::int64_t columns) {
    return Tensor::empty({rows, columns}, compute_, device_);
  };
  x_ = buffer(d_.width);
  normed_ = buffer(d_.width);
  delta_ = buffer(d_.width);
  gathered_ = buffer(d_.width);
  q_ = buffer(d_.heads * d_.head_size);
  mixed_ = buffer(d_.heads * d_.head_size);
  k_ = buffer(d_.kv_heads * d_.head_size);
  v_ = buffer(d_.kv_heads * d_.head_size);
  up_ = buffer(d_.ffn_width);
  if (d_.gated) gate_ = buffer(d_.ffn_width);
}

TensorView Layers::rows_of(Tensor& buffer, std::int64_t rows, std::int64_t columns) const {
  const std::int64_t shape[] = {rows, columns};
  return make_view(buffer.data(), shape, compute_, device_);
}

TensorView Layers::heads_of(Tensor& buffer, std::int64_t rows, std::int64_t heads) const {
  const std::int64_t shape[] = {rows, heads, d_.head_size};
  return make_view(buffer.data(), shape, compute_, device_);
}

// Learned positions are left as a sum to do: the first norm makes it.
ConstTensorView Layers::embed(Context& context, const Chunk& chunk) {
  // Rounded to the dtype of the residual stream, as models that scale their embedding do.
  const double scale = visit_float_dtype(
      compute_, [&]<class T>() { return convert<double>(convert<T>(d_.embedding_scale)); });
  embedding(context, {.tokens = chunk.tokens,
                      .weight = w_.embedding.weight,
                      .weight_format = w_.embedding.format,
                      .y = rows_of(x_, chunk.rows, d_.width),
                      .scale = scale});
  if (!d_.learned_positions) return {};
  const TensorView positions = rows_of(delta_, chunk.rows, d_.width);
  embedding(context, {.tokens = chunk.positions,
                      .weight = w_.positions.weight,
                      .weight_format = w_.positions.format,
                      .y = positions});
  return positions;
}

void Layers::norm(Context& context, const NormWeights& weights, const TensorView& x,
                  const ConstTensorView& delta, const TensorView& y) const {
  const TensorView sum = delta.defined() ? x : TensorView{};
  if (d_.norm == io::NormKind::layer) {
    layer_norm(context, {.x = x,
                         .residual = delta,
                         .weight = weights.weight,
                         .bias = weights.bias,
                         .y = y,
                         .sum = sum,
                         .eps = d_.norm_epsilon});
    return;
  }
  rms_norm(context, {.x = x,
                     .residual = delta,
                     .weight = weights.weight,
                     .y = y,
                     .sum = sum,
                     .eps = d_.norm_epsilon,
                     .rounding = rounding_of(d_.family)});
}

void Layers::project(Context& context, const Matrix& matrix, const ConstTensorView& x,
                     const ConstTensorView& residual, const TensorView& y, double soft_cap) const {
  linear(context, {.x = x,
                   .weight = matrix.weight,
                   .weight_format = matrix.format,
                   .bias = matrix.bias,
                   .residual = residual,
                   .y = y,
                   .soft_cap = soft_cap,
                   .int8_activations = int8_activations_,
                   .constant_weight = true});
}

void Layers::rotate(Context& context, const Rotation& rotation, const Chunk& chunk,
                    const TensorView& x) const {
  if (rotation.frequencies.elements() == 0) return;
  rope(context, {.x = x,
                 .positions = chunk.positions,
                 .frequencies = rotation.frequencies,
                 .y = x,
                 .scale = rotation.scale});
}

void Layers::attention(Context& context, const Chunk& chunk, std::size_t layer,
                       const ConstTensorView& input, const ConstTensorView& residual,
                       const TensorView& y) {
  const LayerWeights& w = w_.layers[layer];
  const std::int64_t rows = chunk.rows;
  project(context, w.q, input, {}, rows_of(q_, rows, d_.heads * d_.head_size));
  project(context, w.k, input, {}, rows_of(k_, rows, d_.kv_heads * d_.head_size));
  project(context, w.v, input, {}, rows_of(v_, rows, d_.kv_heads * d_.head_size));
  const TensorView q = heads_of(q_, rows, d_.heads);
  const TensorView k = heads_of(k_, rows, d_.kv_heads);
  if (d_.qk_norm) {
    norm(context, w.q_norm, q, {}, q);
    norm(context, w.k_norm, k, {}, k);
  }
  const Rotation& rotation = d_.layers[layer].local_rope ? local_rotation_ : rotation_;
  rotate(context, rotation, chunk, q);
  rotate(context, rotation, chunk, k);
  const CacheLayer place = cache_layers_[layer];
  kv_append(context, {.cache = chunk.view,
                      .layer_group = place.group,
                      .layer = place.index,
                      .k = k,
                      .v = heads_of(v_, rows, d_.kv_heads),
                      .rows = chunk.cache_rows,
                      .positions = chunk.slots});
  cached_attention(context, {.q = q,
                             .query_offsets = chunk.query_offsets,
                             .cache = chunk.view,
                             .layer_group = place.group,
                             .layer = place.index,
                             .positions = chunk.positions,
                             .tree = chunk.tree,
                             .tree_starts = chunk.tree_starts,
                             .output = heads_of(mixed_, rows, d_.heads),
                             .scale = d_.attention_scale,
                             .soft_cap = d_.attention_soft_cap,
                             .include_reserved = true});
  project(context, w.output, rows_of(mixed_, rows, d_.heads * d_.head_size), residual, y);
}

void Layers::mlp(Context& context, std::int64_t rows, std::size_t layer,
                 const ConstTensorView& input, const ConstTensorView& residual,
                 const TensorView& y) {
  const LayerWeights& w = w_.layers[layer];
  const TensorView up = rows_of(up_, rows, d_.ffn_width);
  project(context, w.up, input, {}, up);
  const Activation kind = activation_of(d_.activation);
  if (d_.gated) {
    const TensorView gated = rows_of(gate_, rows, d_.ffn_width);
    project(context, w.gate, input, {}, gated);
    touchstone::gate(context, {.gate = gated, .up = up, .y = up, .kind = kind});
  } else {
    activation(context, {.x = up, .y = up, .kind = kind});
  }
  project(context, w.down, up, residual, y);
}

void Layers::layer(Context& context, const Chunk& chunk, std::size_t index, ConstTensorView& delta,
                   const HiddenHook& hook) {
  const LayerWeights& w = w_.layers[index];
  const TensorView x = rows_of(x_, chunk.rows, d_.width);
  const TensorView normed = rows_of(normed_, chunk.rows, d_.width);
  const TensorView result = rows_of(delta_, chunk.rows, d_.width);
  norm(context, w.attention_norm, x, delta, normed);
  delta = {};
  if (hook) hook(static_cast<std::int64_t>(index), x);
  if (d_.post_norms) {
    attention(context, chunk, index, normed, {}, result);
    norm(context, w.post_attention_norm, result, {}, result);
    norm(context, w.mlp_norm, x, result, normed);
    mlp(context, chunk.rows, index, normed, {}, result);
    norm(context, w.post_mlp_norm, result, {}, result);
    delta = result;
    return;
  }
  if (d_.parallel_blocks) {
    // Both blocks read x: the sum of the first goes beside it.
    attention(context, chunk, index, normed, x, result);
    norm(context, w.mlp_norm, x, {}, normed);
    mlp(context, chunk.rows, index, normed, result, x);
    return;
  }
  attention(context, chunk, index, normed, x, x);
  norm(context, w.mlp_norm, x, {}, normed);
  mlp(context, chunk.rows, index, normed, x, x);
}

ConstTensorView Layers::run(Context& context, const Chunk& chunk, const HiddenHook& hook) {
  ConstTensorView delta = embed(context, chunk);
  for (std::size_t i = 0; i < d_.layers.size(); ++i) layer(context, chunk, i, delta, hook);
  const TensorView x = rows_of(x_, chunk.rows, d_.width);
  const TensorView normed = rows_of(normed_, chunk.rows, d_.width);
  norm(context, w_.final_norm, x, delta, normed);
  if (hook) hook(static_cast<std::int64_t>(d_.layers.size()), x);
  return normed;
}

void Layers::head(Context& context, const ConstTensorView& hidden, const TensorView& logits) const {
  project(context, w_.head, hidden, {}, logits, d_.final_soft_cap);
}

ConstTensorView Layers::gather(Context& context, const ConstTensorView& hidden,
                               const ConstTensorView& from) {
  const TensorView gathered = rows_of(gathered_, from.shape[0], d_.width);
  embedding(context, {.tokens = from, .weight = hidden, .y = gathered});
  return gathered;
}

}  // namespace touchstone::inline v0::model
