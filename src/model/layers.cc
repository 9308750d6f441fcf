#include "model/layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
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
#include "touchstone/ops/rope_append.h"

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

// The gate of a fused epilogue.
LinearGate gate_of(Activation kind) {
  return kind == Activation::silu   ? LinearGate::silu
         : kind == Activation::gelu ? LinearGate::gelu
                                    : LinearGate::gelu_tanh;
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
    const std::int64_t sinks = layer.window > 0 ? layer.sinks : 0;
    auto group = std::ranges::find_if(groups, [&](const cache::LayerGroup& one) {
      return one.window == layer.window && one.sinks == sinks;
    });
    if (group == groups.end()) {
      groups.push_back({.layers = 0,
                        .kv_heads = d.kv_heads,
                        .k_dim = d.head_size,
                        .v_dim = d.head_size,
                        .k = options.keys.value_or(plain),
                        .v = options.values.value_or(plain),
                        .page_tokens = options.page_tokens,
                        .window = layer.window,
                        .sinks = sinks});
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
  mixed_ = buffer(d_.heads * d_.head_size);
  const auto joined = [](const LayerWeights& layer) { return layer.qkv.weight.defined(); };
  if (std::ranges::any_of(w_.layers, joined)) {
    qkv_ = buffer((d_.heads + 2 * d_.kv_heads) * d_.head_size);
  }
  if (!std::ranges::all_of(w_.layers, joined)) {
    q_ = buffer(d_.heads * d_.head_size);
    k_ = buffer(d_.kv_heads * d_.head_size);
    v_ = buffer(d_.kv_heads * d_.head_size);
  }
  up_ = buffer(d_.ffn_width);
  if (!device_.is_cuda() && std::ranges::any_of(w_.layers, [](const auto& layer) {
        return layer.gate_up.weight.defined();
      })) {
    gate_up_ = buffer(2 * d_.ffn_width);
  }
  if (std::ranges::any_of(w_.layers,
                          [](const auto& layer) { return layer.gate.weight.defined(); })) {
    gate_ = buffer(d_.ffn_width);
  }
  Tensor counting = Tensor::empty({rows}, DType::i32);
  std::iota(counting.values<std::int32_t>().begin(), counting.values<std::int32_t>().end(), 0);
  counting_ = device_.is_cuda() ? counting.to(device_) : std::move(counting);
}

TensorView Layers::rows_of(Tensor& buffer, std::int64_t rows, std::int64_t columns) const {
  const std::int64_t shape[] = {rows, columns};
  return make_view(buffer.data(), shape, compute_, device_);
}

TensorView Layers::heads_of(Tensor& buffer, std::int64_t rows, std::int64_t heads) const {
  const std::int64_t shape[] = {rows, heads, d_.head_size};
  return make_view(buffer.data(), shape, compute_, device_);
}

// Learned positions are the residual of the first norm, which adds them.
void Layers::embed_tokens(Context& context, const ConstTensorView& tokens,
                          const TensorView& y) const {
  embedding(context, {.tokens = tokens,
                      .weight = w_.embedding.weight,
                      .weight_format = w_.embedding.format,
                      .y = y,
                      .scale = d_.embedding_scale});
}

ConstTensorView Layers::embed(Context& context, const Chunk& chunk) {
  // Rounded to the dtype of the residual stream, as models that scale their embedding do.
  const double scale = visit_float_dtype(
      compute_, [&]<class T>() { return convert<double>(convert<T>(d_.embedding_scale)); });
  const TensorView x = rows_of(x_, chunk.rows, d_.width);
  if (begin_call("embedding", {x, x})) {
    embedding(context, {.tokens = chunk.tokens,
                        .weight = w_.embedding.weight,
                        .weight_format = w_.embedding.format,
                        .y = x,
                        .scale = scale});
  }
  if (!d_.learned_positions) return {};
  const TensorView positions = rows_of(delta_, chunk.rows, d_.width);
  embedding(context, {.tokens = chunk.positions,
                      .weight = w_.positions.weight,
                      .weight_format = w_.positions.format,
                      .y = positions});
  return positions;
}

bool Layers::begin_call(const char* name, std::initializer_list<ConstTensorView> tensors,
                        std::int64_t bytes) {
  if (trace_ == nullptr) return true;
  for (const ConstTensorView& tensor : tensors) bytes += tensor.elements() * size_of(tensor.dtype);
  auto part = std::ranges::find(trace_->parts, name, &StepPart::name);
  if (part == trace_->parts.end()) part = trace_->parts.insert(part, {.name = name});
  ++part->calls;
  part->bytes += bytes;
  return trace_->only.empty() || trace_->only == name;
}

std::int64_t Layers::cached_bytes(const Chunk& chunk, const CacheLayer& cache_layer) const {
  if (trace_ == nullptr) return 0;
  const cache::GroupView& group = chunk.view.groups[static_cast<std::size_t>(cache_layer.group)];
  const std::int64_t token = group.geometry.layer_bytes / group.page_tokens;
  const std::int64_t seen = group.layer_group.window > 0
                                ? group.layer_group.window + group.layer_group.sinks
                                : std::numeric_limits<std::int64_t>::max();
  std::int64_t tokens = 0;
  for (const std::int64_t length : trace_->lengths) tokens += std::min(length, seen);
  return tokens * token;
}

void Layers::norm(Context& context, const NormWeights& weights, const TensorView& x,
                  const ConstTensorView& delta, const TensorView& y, const char* name) {
  if (!begin_call(name, {x, delta, weights.weight, y})) return;
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

void Layers::project(Context& context, const char* name, const Matrix& matrix,
                     const ConstTensorView& x, const TensorView& y, const Epilogue& epilogue) {
  if (!begin_call(name, {matrix.weight, x, epilogue.residual, y})) return;
  linear(context, {.x = x,
                   .weight = matrix.weight,
                   .weight_format = matrix.format,
                   .bias = matrix.bias,
                   .residual = epilogue.residual,
                   .y = y,
                   .gate = epilogue.gate,
                   .soft_cap = epilogue.soft_cap,
                   .int8_activations = int8_activations_,
                   .constant_weight = true});
}

void Layers::rotate(Context& context, const Rotation& rotation, const Chunk& chunk,
                    const TensorView& x) {
  if (rotation.frequencies.elements() == 0 || !begin_call("rope", {x, x})) return;
  rope(context, {.x = x,
                 .positions = chunk.positions,
                 .frequencies = rotation.frequencies,
                 .y = x,
                 .scale = rotation.scale});
}

Layers::Heads Layers::project_heads(Context& context, std::int64_t rows, const LayerWeights& w,
                                    const ConstTensorView& input) {
  const std::int64_t q_width = d_.heads * d_.head_size;
  const std::int64_t k_width = d_.kv_heads * d_.head_size;
  if (!w.qkv.weight.defined()) {
    project(context, "q k v", w.q, input, rows_of(q_, rows, q_width), {});
    project(context, "q k v", w.k, input, rows_of(k_, rows, k_width), {});
    project(context, "q k v", w.v, input, rows_of(v_, rows, k_width), {});
    return {heads_of(q_, rows, d_.heads), heads_of(k_, rows, d_.kv_heads),
            heads_of(v_, rows, d_.kv_heads)};
  }
  const std::int64_t width = q_width + 2 * k_width;
  project(context, "q k v", w.qkv, input, rows_of(qkv_, rows, width), {});
  const auto part = [&](std::int64_t first, std::int64_t heads) {
    const std::int64_t shape[] = {rows, heads, d_.head_size};
    auto* const data = static_cast<std::byte*>(qkv_.data()) + first * size_of(compute_);
    return with_stride(make_view(static_cast<void*>(data), shape, compute_, device_), 0, width);
  };
  return {part(0, d_.heads), part(q_width, d_.kv_heads), part(q_width + k_width, d_.kv_heads)};
}

// In one kernel, which saves the launches of prepare_heads().
void Layers::rotate_and_append(Context& context, const Chunk& chunk, const LayerWeights& w,
                               const Rotation& rotation, const CacheLayer& cache_layer,
                               const Heads& heads) {
  if (!begin_call("rope_append", {heads.q, heads.k, heads.v, heads.q, heads.k, heads.v})) return;
  const bool rotates = rotation.frequencies.elements() > 0;
  const ConstTensorView frequencies = rotation.frequencies;
  rope_append(context, {.cache = chunk.view,
                        .layer_group = cache_layer.group,
                        .layer = cache_layer.index,
                        .q = heads.q,
                        .k = heads.k,
                        .v = heads.v,
                        .y = heads.q,
                        .q_weight = w.q_norm.weight,
                        .k_weight = w.k_norm.weight,
                        .eps = d_.norm_epsilon,
                        .rounding = rounding_of(d_.family),
                        .positions = rotates ? chunk.positions : ConstTensorView{},
                        .frequencies = rotates ? frequencies : ConstTensorView{},
                        .scale = rotation.scale,
                        .rows = chunk.cache_rows,
                        .slots = chunk.slots});
}

void Layers::prepare_heads(Context& context, const Chunk& chunk, const LayerWeights& w,
                           const Rotation& rotation, const CacheLayer& cache_layer,
                           const Heads& heads) {
  if (d_.qk_norm) {
    norm(context, w.q_norm, heads.q, {}, heads.q, "q k norm");
    norm(context, w.k_norm, heads.k, {}, heads.k, "q k norm");
  }
  rotate(context, rotation, chunk, heads.q);
  rotate(context, rotation, chunk, heads.k);
  if (!begin_call("kv_append", {heads.k, heads.v, heads.k, heads.v})) return;
  kv_append(context, {.cache = chunk.view,
                      .layer_group = cache_layer.group,
                      .layer = cache_layer.index,
                      .k = heads.k,
                      .v = heads.v,
                      .rows = chunk.cache_rows,
                      .positions = chunk.slots});
}

void Layers::attention(Context& context, const Chunk& chunk, std::size_t layer,
                       const ConstTensorView& input, const ConstTensorView& residual,
                       const TensorView& y) {
  const LayerWeights& w = w_.layers[layer];
  const std::int64_t rows = chunk.rows;
  const CacheLayer cache_layer = cache_layers_[layer];
  const Rotation& rotation = d_.layers[layer].local_rope ? local_rotation_ : rotation_;
  const Heads heads = project_heads(context, rows, w, input);
  if (device_.is_cuda()) {
    rotate_and_append(context, chunk, w, rotation, cache_layer, heads);
  } else {
    prepare_heads(context, chunk, w, rotation, cache_layer, heads);
  }
  const TensorView& q = heads.q;
  const TensorView mixed = heads_of(mixed_, rows, d_.heads);
  const ConstTensorView tree = chunk.trees.empty()
                                   ? ConstTensorView{}
                                   : chunk.trees[static_cast<std::size_t>(cache_layer.group)];
  if (begin_call("attention", {q, mixed}, cached_bytes(chunk, cache_layer))) {
    cached_attention(context, {.q = q,
                               .query_offsets = chunk.query_offsets,
                               .cache = chunk.view,
                               .layer_group = cache_layer.group,
                               .layer = cache_layer.index,
                               .positions = chunk.positions,
                               .tree = tree,
                               .tree_starts = chunk.tree_starts,
                               .output = mixed,
                               .scale = d_.attention_scale,
                               .soft_cap = d_.attention_soft_cap,
                               .include_reserved = true});
  }
  project(context, "output", w.output, rows_of(mixed_, rows, d_.heads * d_.head_size), y,
          {.residual = residual});
}

void Layers::mlp(Context& context, std::int64_t rows, std::size_t layer,
                 const ConstTensorView& input, const ConstTensorView& residual,
                 const TensorView& y) {
  const LayerWeights& w = w_.layers[layer];
  const TensorView up = rows_of(up_, rows, d_.ffn_width);
  const Activation kind = activation_of(d_.activation);
  if (w.gate_up.weight.defined() && device_.is_cuda()) {
    project(context, "gate up", w.gate_up, input, up, {.gate = gate_of(kind)});
    project(context, "down", w.down, up, y, {.residual = residual});
    return;
  }
  // The gate is applied to rounded products, as in the fused kernel: the same bits.
  TensorView gate;
  TensorView values = up;
  if (w.gate_up.weight.defined()) {
    const TensorView both = rows_of(gate_up_, rows, 2 * d_.ffn_width);
    project(context, "gate up", w.gate_up, input, both, {});
    const auto half = [&](std::int64_t first) {
      const std::int64_t shape[] = {rows, d_.ffn_width};
      auto* const data = static_cast<std::byte*>(gate_up_.data()) + first * size_of(compute_);
      return with_stride(make_view(static_cast<void*>(data), shape, compute_, device_), 0,
                         2 * d_.ffn_width);
    };
    gate = half(0);
    values = half(d_.ffn_width);
  } else {
    project(context, "gate up", w.up, input, up, {});
    if (d_.gated) {
      gate = rows_of(gate_, rows, d_.ffn_width);
      project(context, "gate up", w.gate, input, gate, {});
    }
  }
  if (d_.gated && begin_call("gate", {gate, values, up})) {
    touchstone::gate(context, {.gate = gate, .up = values, .y = up, .kind = kind});
  } else if (!d_.gated && begin_call("activation", {up, up})) {
    activation(context, {.x = up, .y = up, .kind = kind});
  }
  project(context, "down", w.down, up, y, {.residual = residual});
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
    // Both blocks read x, so the sum of the first goes to another buffer.
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

void Layers::head(Context& context, const ConstTensorView& hidden, const TensorView& logits) {
  project(context, "head", w_.head, hidden, logits, {.soft_cap = d_.final_soft_cap});
}

void Layers::widen(Context& context, const ConstTensorView& x, const TensorView& y) const {
  const std::int64_t rows[] = {x.shape[0]};
  const ConstTensorView all = make_view(counting_.data(), rows, DType::i32, device_);
  embedding(context, {.tokens = all, .weight = x, .y = y});
}

ConstTensorView Layers::gather(Context& context, const ConstTensorView& hidden,
                               const ConstTensorView& from) {
  const TensorView gathered = rows_of(gathered_, from.shape[0], d_.width);
  embedding(context, {.tokens = from, .weight = hidden, .y = gathered});
  return gathered;
}

}  // namespace touchstone::inline v0::model
