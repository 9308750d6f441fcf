#include "train/draft/injection.h"

#include "touchstone/ops/embedding.h"
#include "touchstone/ops/linear.h"
#include "touchstone/ops/rope.h"
#include "touchstone/train/operators.h"
#include "train/layers.h"

namespace touchstone::inline v0::train {
namespace {

TensorView rows_from(const TensorView& matrix, std::int64_t first, std::int64_t count) {
  TensorView view = matrix;
  view.data = static_cast<std::byte*>(view.data) + first * view.stride[0] * size_of(view.dtype);
  view.shape[0] = count;
  return view;
}

// The rows of k and v in the matrix of q, k and v.
MatrixBlock kv_block(const MatrixBlock& qkv, std::int64_t kv_width) {
  const std::int64_t first = qkv.rows - 2 * kv_width;
  return {.offset = qkv.offset + first * qkv.cols, .rows = 2 * kv_width, .cols = qkv.cols};
}

}  // namespace

Injection::Injection(Context& context, const io::ModelDescription& d, const InjectionSizes& sizes)
    : kv_width_(d.kv_heads * d.head_size) {
  const auto buffer = [&](std::int64_t rows, std::int64_t cols, DType dtype) {
    return Tensor::empty({rows, cols}, dtype, context.device());
  };
  const DType wide = wide_of(sizes.compute);
  const std::int64_t all = sizes.max_context + sizes.max_tokens;
  for (std::size_t i = 0; i < d.layers.size(); ++i) {
    layers_.push_back({.k_raw = buffer(all, kv_width_, sizes.compute),
                       .k_rstd = buffer(all, d.kv_heads, wide),
                       .k = buffer(all, kv_width_, sizes.compute),
                       .v = buffer(all, kv_width_, sizes.compute)});
  }
  for (Tensor* const tensor : {&gathered_k_, &gathered_v_, &dgathered_k_, &dgathered_v_}) {
    *tensor = buffer(sizes.max_keys, kv_width_, sizes.compute);
  }
  dk_ = buffer(all, kv_width_, wide);
  dv_ = buffer(all, kv_width_, wide);
  dk_rows_ = buffer(all, kv_width_, sizes.compute);
  projected_ = buffer(sizes.max_context, 2 * kv_width_, sizes.compute);
  dprojected_ = buffer(sizes.max_context, 2 * kv_width_, sizes.compute);
  dinput_ = buffer(sizes.max_context, d.width, sizes.compute);
  if (wide != sizes.compute) dinput_wide_ = buffer(sizes.max_context, d.width, wide);
}

void Injection::gather(Context& context, const Layer& tables) {
  const std::int64_t rows = positions.shape[0];
  const auto pick = [&](const Tensor& table, const Tensor& picked) {
    embedding(context, {.tokens = keys,
                        .weight = rows_of(table, rows, kv_width_),
                        .y = rows_of(picked, keys.shape[0], kv_width_)});
  };
  pick(tables.k, gathered_k_);
  pick(tables.v, gathered_v_);
}

void Injection::forward(const Pass& pass, const Parameters& parameters, const DecoderLayer& layer,
                        const Rows& at) {
  Context& context = pass.context;
  const Layer& tables = layers_[static_cast<std::size_t>(layer.index)];
  const std::int64_t before = features.shape[0];
  const std::int64_t all = before + pass.tokens;
  const std::int64_t head_size = layer.description->head_size;
  const TensorView projected = rows_of(projected_, before, 2 * kv_width_);
  linear(context, {.x = features,
                   .weight = parameters.compute(kv_block(layer.qkv.block, kv_width_)),
                   .y = projected});
  const TensorView k_raw = rows_of(tables.k_raw, all, kv_width_);
  const TensorView v = rows_of(tables.v, all, kv_width_);
  const std::int64_t first_k = at.rows.shape[1] - 2 * kv_width_;
  const auto copy = [&](const ConstTensorView& x, const TensorView& y) {
    cast(context, {.x = x, .y = y});
  };
  copy(columns_of(projected, 0, kv_width_), rows_from(k_raw, 0, before));
  copy(columns_of(projected, kv_width_, kv_width_), rows_from(v, 0, before));
  copy(columns_of(at.rows, first_k, kv_width_), rows_from(k_raw, before, pass.tokens));
  copy(columns_of(at.rows, first_k + kv_width_, kv_width_), rows_from(v, before, pass.tokens));
  const TensorView k = heads_of(rows_of(tables.k, all, kv_width_), head_size);
  layer.k_norm->forward(context, parameters, heads_of(k_raw, head_size), {}, {}, k,
                        rows_of(tables.k_rstd, all, k.shape[1]));
  rope(context, {.x = k,
                 .positions = positions,
                 .frequencies = layer.rotation->frequencies,
                 .y = k,
                 .scale = layer.rotation->scale});
  gather(context, tables);
  AttentionOptions options = at.options;
  options.query_offsets = query_offsets;
  options.key_offsets = key_offsets;
  options.causal = false;
  attention(context, {.q = at.q,
                      .k = heads_of(rows_of(gathered_k_, keys.shape[0], kv_width_), head_size),
                      .v = heads_of(rows_of(gathered_v_, keys.shape[0], kv_width_), head_size),
                      .output = at.mixed,
                      .log_sum_exp = at.log_sum_exp,
                      .options = options});
}

void Injection::backward(const Pass& pass, const Parameters& parameters, const DecoderLayer& layer,
                         const Rows& at, const ConstTensorView& dmixed, const TensorView& dq) {
  Context& context = pass.context;
  const Layer& tables = layers_[static_cast<std::size_t>(layer.index)];
  const std::int64_t before = features.shape[0];
  const std::int64_t all = before + pass.tokens;
  const std::int64_t count = keys.shape[0];
  const std::int64_t head_size = layer.description->head_size;
  gather(context, tables);
  AttentionOptions options = at.options;
  options.query_offsets = query_offsets;
  options.key_offsets = key_offsets;
  options.causal = false;
  const auto heads = [&](const Tensor& buffer) {
    return heads_of(rows_of(buffer, count, kv_width_), head_size);
  };
  attention_backward(context, {.doutput = dmixed,
                               .q = at.q,
                               .k = heads(gathered_k_),
                               .v = heads(gathered_v_),
                               .output = at.mixed,
                               .log_sum_exp = at.log_sum_exp,
                               .dq = dq,
                               .dk = heads(dgathered_k_),
                               .dv = heads(dgathered_v_),
                               .options = options});
  const auto add_up = [&](const Tensor& picked, const Tensor& table) {
    const TensorView sums = rows_of(table, all, kv_width_);
    embedding_backward(context,
                       {.tokens = keys, .dy = rows_of(picked, count, kv_width_), .dweight = sums});
    return sums;
  };
  const TensorView dv = add_up(dgathered_v_, dv_);
  const TensorView dk_rows = rows_of(dk_rows_, all, kv_width_);
  const auto copy = [&](const ConstTensorView& x, const TensorView& y) {
    cast(context, {.x = x, .y = y});
  };
  copy(add_up(dgathered_k_, dk_), dk_rows);
  const TensorView dk = heads_of(dk_rows, head_size);
  rope_backward(context, {.dy = dk,
                          .positions = positions,
                          .frequencies = layer.rotation->frequencies,
                          .dx = dk,
                          .scale = layer.rotation->scale});
  layer.k_norm->backward(context, parameters, dk,
                         heads_of(rows_of(tables.k_raw, all, kv_width_), head_size),
                         rows_of(tables.k_rstd, all, dk.shape[1]), {}, dk);
  const std::int64_t first_k = at.rows.shape[1] - 2 * kv_width_;
  copy(rows_from(dk_rows, before, pass.tokens), columns_of(at.rows, first_k, kv_width_));
  copy(rows_from(dv, before, pass.tokens), columns_of(at.rows, first_k + kv_width_, kv_width_));
  if (before == 0) return;
  const TensorView dprojected = rows_of(dprojected_, before, 2 * kv_width_);
  copy(rows_from(dk_rows, 0, before), columns_of(dprojected, 0, kv_width_));
  copy(rows_from(dv, 0, before), columns_of(dprojected, kv_width_, kv_width_));
  const TensorView dinput = rows_of(dinput_, before, dfeatures.shape[1]);
  LinearLayer{kv_block(layer.qkv.block, kv_width_)}.backward(context, parameters, dprojected,
                                                             features, dinput);
  TensorView wide = dinput;
  if (dinput_wide_.elements() > 0) {
    wide = rows_of(dinput_wide_, before, dfeatures.shape[1]);
    copy(dinput, wide);
  }
  add_to(context, {.x = wide, .y = dfeatures});
}

}  // namespace touchstone::inline v0::train
