#include "train/layers.h"

#include <fmt/format.h>

#include <cmath>

#include "touchstone/ops/attention.h"
#include "touchstone/ops/gate.h"
#include "touchstone/ops/linear.h"
#include "touchstone/ops/rms_norm.h"
#include "touchstone/ops/rope.h"
#include "train/draft/injection.h"

namespace touchstone::inline v0::train {
namespace {

using io::ModelDescription;

std::int64_t query_width(const ModelDescription& d) { return d.heads * d.head_size; }
std::int64_t kv_width(const ModelDescription& d) { return d.kv_heads * d.head_size; }
std::int64_t qkv_width(const ModelDescription& d) { return query_width(d) + 2 * kv_width(d); }

// The shape that attention() expects: packed [N, H, D] with documents, else [rows, length, H, D].
TensorView for_attention(const Pass& pass, const TensorView& heads) {
  if (pass.batch.offsets.defined()) return heads;
  TensorView view = heads;
  const std::int64_t length = pass.tokens / pass.batch.rows;
  view.rank = heads.rank + 1;
  view.shape = {pass.batch.rows, length, heads.shape[1], heads.shape[2]};
  view.stride = {heads.stride[0] * length, heads.stride[0], heads.stride[1], heads.stride[2]};
  return view;
}

// log_sum_exp [N, H] or [rows, length, H].
TensorView sums_for_attention(const Pass& pass, const Tensor& buffer, std::int64_t heads) {
  TensorView view = rows_of(buffer, pass.tokens, heads);
  if (pass.batch.offsets.defined()) return view;
  const std::int64_t length = pass.tokens / pass.batch.rows;
  view.rank = 3;
  view.shape = {pass.batch.rows, length, heads};
  view.stride = {length * heads, heads, 1};
  return view;
}

AttentionOptions attention_options(const Pass& pass, const ModelDescription& d,
                                   std::int64_t layer) {
  const io::LayerDescription& own = d.layers[static_cast<std::size_t>(layer)];
  return {.query_offsets = pass.batch.offsets,
          .key_offsets = pass.batch.offsets,
          .scale = d.attention_scale,
          .window = own.window,
          .sinks = own.window > 0 ? own.sinks : 0,
          .causal = true,
          .dropout = {.probability = pass.attention_dropout,
                      .seed = pass.seed.seed,
                      .step = pass.seed.step,
                      .first_token = pass.seed.first_token,
                      .draw = static_cast<std::uint32_t>(layer) * 4 + 3}};
}

struct QueryKeyValue {
  TensorView q, k, v;  // [tokens, heads, head_size]
};

QueryKeyValue split(const ModelDescription& d, const TensorView& qkv) {
  return {heads_of(columns_of(qkv, 0, query_width(d)), d.head_size),
          heads_of(columns_of(qkv, query_width(d), kv_width(d)), d.head_size),
          heads_of(columns_of(qkv, query_width(d) + kv_width(d), kv_width(d)), d.head_size)};
}

DropoutMask mask_of(const Pass& pass, std::int64_t layer, MaskOf what) {
  return {.probability = pass.dropout,
          .seed = pass.seed.seed,
          .step = pass.seed.step,
          .first_token = pass.seed.first_token,
          .draw = static_cast<std::uint32_t>(layer) * 4 + static_cast<std::uint32_t>(what)};
}

}  // namespace

TensorView columns_of(const TensorView& matrix, std::int64_t first, std::int64_t cols) {
  TensorView view = matrix;
  view.data = static_cast<std::byte*>(view.data) + first * size_of(view.dtype);
  view.shape[1] = cols;
  return view;
}

TensorView heads_of(const TensorView& rows, std::int64_t head_size) {
  TensorView view = rows;
  view.rank = 3;
  view.shape = {rows.shape[0], rows.shape[1] / head_size, head_size};
  view.stride = {rows.stride[0], head_size, 1};
  return view;
}

void drop(const Pass& pass, std::int64_t layer, MaskOf what, const TensorView& x) {
  if (pass.dropout == 0) return;
  dropout(pass.context, {.x = x, .y = x, .mask = mask_of(pass, layer, what)});
}

ConstTensorView drop_gradient(const Pass& pass, std::int64_t layer, MaskOf what,
                              const ConstTensorView& gradient, const TensorView& scratch) {
  if (pass.dropout == 0) return gradient;
  dropout(pass.context, {.x = gradient, .y = scratch, .mask = mask_of(pass, layer, what)});
  return scratch;
}

void LinearLayer::forward(Context& context, const Parameters& parameters, const ConstTensorView& x,
                          const TensorView& y) const {
  linear(context, {.x = x, .weight = parameters.compute(block), .y = y});
}

void LinearLayer::backward(Context& context, const Parameters& parameters,
                           const ConstTensorView& dy, const ConstTensorView& x,
                           const TensorView& dx) const {
  linear_backward(context, {.dy = dy,
                            .x = x,
                            .weight = parameters.compute(block),
                            .dx = dx,
                            .dweight = parameters.gradient(block),
                            .accumulate = true});
}

void RmsNormLayer::forward(Context& context, const Parameters& parameters, const ConstTensorView& x,
                           const ConstTensorView& residual, const TensorView& sum,
                           const TensorView& y, const TensorView& rstd) const {
  rms_norm(context, {.x = x,
                     .residual = residual,
                     .weight = parameters.vector(offset, size),
                     .y = y,
                     .sum = residual.defined() ? sum : TensorView{},
                     .rstd = rstd,
                     .eps = epsilon});
}

void RmsNormLayer::backward(Context& context, const Parameters& parameters,
                            const ConstTensorView& dy, const ConstTensorView& x,
                            const ConstTensorView& rstd, const ConstTensorView& dsum,
                            const TensorView& dx) const {
  rms_norm_backward(context, {.dy = dy,
                              .x = x,
                              .rstd = rstd,
                              .weight = parameters.vector(offset, size),
                              .dsum = dsum,
                              .dx = dx,
                              .dweight = parameters.vector_gradient(offset, size)});
}

LayerActivations::LayerActivations(Context& context, const ModelDescription& d,
                                   const DecoderOptions& options) {
  const std::int64_t n = options.max_tokens;
  const auto buffer = [&](std::int64_t cols) {
    return Tensor::empty({n, cols}, options.compute, context.device());
  };
  const auto sums = [&](std::int64_t cols) {
    return Tensor::empty({n, cols}, wide_of(options.compute), context.device());
  };
  rstd1 = sums(1);
  rstd2 = sums(1);
  normed1 = buffer(d.width);
  normed2 = buffer(d.width);
  sum2 = buffer(d.width);
  qkv = buffer(qkv_width(d));
  if (d.qk_norm) {
    q_raw = buffer(query_width(d));
    q = buffer(query_width(d));
    k_raw = buffer(kv_width(d));
    k = buffer(kv_width(d));
    q_rstd = sums(d.heads);
    k_rstd = sums(d.kv_heads);
  }
  mixed = buffer(query_width(d));
  log_sum_exp = sums(d.heads);
  gate_up = buffer(2 * d.ffn_width);
  hidden = buffer(d.ffn_width);
}

Gradients::Gradients(Context& context, const ModelDescription& d, const DecoderOptions& options) {
  const auto buffer = [&](std::int64_t cols) {
    return Tensor::empty({options.max_tokens, cols}, options.compute, context.device());
  };
  stream = buffer(d.width);
  normed = buffer(d.width);
  if (options.dropout > 0) dropped = buffer(d.width);
  mixed = buffer(query_width(d));
  qkv = buffer(qkv_width(d));
  if (d.qk_norm) {
    q = buffer(query_width(d));
    k = buffer(kv_width(d));
  }
  hidden = buffer(d.ffn_width);
  gate_up = buffer(2 * d.ffn_width);
}

TensorView rows_of(const Tensor& buffer, std::int64_t tokens, std::int64_t cols) {
  const std::int64_t shape[] = {tokens, cols};
  if (buffer.elements() == 0) return {};
  return make_view(const_cast<void*>(buffer.data()), shape, buffer.dtype(), buffer.device());
}

void DecoderLayer::add_matrices(Parameters& parameters) {
  const ModelDescription& d = *description;
  const auto name = [&](const char* part) { return fmt::format("blk.{}.{}.weight", index, part); };
  const double deviation = 0.02;
  // Projections that add to the residual stream start smaller, so that its variance does not grow
  // with depth.
  const double residual = deviation / std::sqrt(2 * static_cast<double>(d.layers.size()));
  qkv.block = parameters.add_matrices({{name("attn_q"), query_width(d)},
                                       {name("attn_k"), kv_width(d)},
                                       {name("attn_v"), kv_width(d)}},
                                      d.width, deviation);
  output.block =
      parameters.add_matrices({{name("attn_output"), d.width}}, query_width(d), residual);
  gate_up.block = parameters.add_matrices(
      {{name("ffn_gate"), d.ffn_width}, {name("ffn_up"), d.ffn_width}}, d.width, deviation);
  down.block = parameters.add_matrices({{name("ffn_down"), d.width}}, d.ffn_width, residual);
}

void DecoderLayer::add_vectors(Parameters& parameters) {
  const ModelDescription& d = *description;
  const auto norm = [&](const char* part, std::int64_t size) {
    return RmsNormLayer{parameters.add_vector(fmt::format("blk.{}.{}.weight", index, part), size),
                        size, d.norm_epsilon};
  };
  attention_norm = norm("attn_norm", d.width);
  if (d.qk_norm) {
    q_norm = norm("attn_q_norm", d.head_size);
    k_norm = norm("attn_k_norm", d.head_size);
  }
  mlp_norm = norm("ffn_norm", d.width);
}

void DecoderLayer::attend(const Pass& pass, const Parameters& parameters,
                          LayerActivations& a) const {
  const ModelDescription& d = *description;
  Context& context = pass.context;
  const std::int64_t n = pass.tokens;
  const TensorView rows = rows_of(a.qkv, n, qkv_width(d));
  auto [q, k, v] = split(d, rows);
  if (d.qk_norm) {
    const auto normalize = [&](const RmsNormLayer& norm, std::int64_t first, const Tensor& raw,
                               const Tensor& rstd, const Tensor& result) {
      const TensorView raw_rows = rows_of(raw, n, raw.sizes()[1]);
      cast(context, {.x = columns_of(rows, first, raw.sizes()[1]), .y = raw_rows});
      const TensorView heads = heads_of(rows_of(result, n, raw.sizes()[1]), d.head_size);
      norm.forward(context, parameters, heads_of(raw_rows, d.head_size), {}, {}, heads,
                   rows_of(rstd, n, rstd.sizes()[1]));
      return heads;
    };
    q = normalize(*q_norm, 0, a.q_raw, a.q_rstd, a.q);
    if (pass.injection == nullptr) {
      k = normalize(*k_norm, query_width(d), a.k_raw, a.k_rstd, a.k);
    }
  }
  const auto rotate = [&](const TensorView& heads) {
    rope(context, {.x = heads,
                   .positions = pass.batch.positions,
                   .frequencies = rotation->frequencies,
                   .y = heads,
                   .scale = rotation->scale});
  };
  rotate(q);
  if (pass.injection == nullptr) rotate(k);
  const TensorView mixed = heads_of(rows_of(a.mixed, n, query_width(d)), d.head_size);
  if (pass.injection != nullptr) {
    pass.injection->forward(pass, parameters, *this,
                            {.rows = rows,
                             .q = q,
                             .mixed = mixed,
                             .log_sum_exp = rows_of(a.log_sum_exp, n, d.heads),
                             .options = attention_options(pass, d, index)});
    return;
  }
  touchstone::attention(context, {.q = for_attention(pass, q),
                                  .k = for_attention(pass, k),
                                  .v = for_attention(pass, v),
                                  .output = for_attention(pass, mixed),
                                  .log_sum_exp = sums_for_attention(pass, a.log_sum_exp, d.heads),
                                  .options = attention_options(pass, d, index)});
}

void DecoderLayer::forward(const Pass& pass, const Parameters& parameters,
                           const ConstTensorView& sum1, LayerActivations& a,
                           const TensorView& delta) const {
  const ModelDescription& d = *description;
  Context& context = pass.context;
  const std::int64_t n = pass.tokens;
  qkv.forward(context, parameters, rows_of(a.normed1, n, d.width), rows_of(a.qkv, n, qkv_width(d)));
  attend(pass, parameters, a);
  output.forward(context, parameters, rows_of(a.mixed, n, query_width(d)), delta);
  drop(pass, index, MaskOf::attention, delta);
  const TensorView normed2 = rows_of(a.normed2, n, d.width);
  TensorView rstd2 = rows_of(a.rstd2, n, 1);
  rstd2.rank = 1;
  mlp_norm.forward(context, parameters, sum1, delta, rows_of(a.sum2, n, d.width), normed2, rstd2);
  const TensorView both = rows_of(a.gate_up, n, 2 * d.ffn_width);
  gate_up.forward(context, parameters, normed2, both);
  const TensorView hidden = rows_of(a.hidden, n, d.ffn_width);
  gate(context, {.gate = columns_of(both, 0, d.ffn_width),
                 .up = columns_of(both, d.ffn_width, d.ffn_width),
                 .y = hidden});
  down.forward(context, parameters, hidden, delta);
  drop(pass, index, MaskOf::mlp, delta);
}

void DecoderLayer::attend_backward(const Pass& pass, const Parameters& parameters,
                                   const LayerActivations& a, Gradients& g) const {
  const ModelDescription& d = *description;
  Context& context = pass.context;
  const std::int64_t n = pass.tokens;
  const TensorView dqkv = rows_of(g.qkv, n, qkv_width(d));
  auto [q, k, v] = split(d, rows_of(a.qkv, n, qkv_width(d)));
  auto [dq, dk, dv] = split(d, dqkv);
  const auto heads = [&](const Tensor& buffer) {
    return heads_of(rows_of(buffer, n, buffer.sizes()[1]), d.head_size);
  };
  if (d.qk_norm) {
    q = heads(a.q);
    k = heads(a.k);
    dq = heads(g.q);
    dk = heads(g.k);
  }
  if (pass.injection != nullptr) {
    pass.injection->backward(pass, parameters, *this,
                             {.rows = dqkv,
                              .q = q,
                              .mixed = heads(a.mixed),
                              .log_sum_exp = rows_of(a.log_sum_exp, n, d.heads),
                              .options = attention_options(pass, d, index)},
                             heads(g.mixed), dq);
  } else {
    touchstone::attention_backward(context,
                                   {.doutput = for_attention(pass, heads(g.mixed)),
                                    .q = for_attention(pass, q),
                                    .k = for_attention(pass, k),
                                    .v = for_attention(pass, v),
                                    .output = for_attention(pass, heads(a.mixed)),
                                    .log_sum_exp = sums_for_attention(pass, a.log_sum_exp, d.heads),
                                    .dq = for_attention(pass, dq),
                                    .dk = for_attention(pass, dk),
                                    .dv = for_attention(pass, dv),
                                    .options = attention_options(pass, d, index)});
  }
  const auto rotate_back = [&](const TensorView& gradient) {
    rope_backward(context, {.dy = gradient,
                            .positions = pass.batch.positions,
                            .frequencies = rotation->frequencies,
                            .dx = gradient,
                            .scale = rotation->scale});
  };
  rotate_back(dq);
  if (pass.injection == nullptr) rotate_back(dk);
  if (!d.qk_norm) return;
  const auto normalize = [&](const RmsNormLayer& norm, std::int64_t first, const TensorView& dy,
                             const Tensor& raw, const Tensor& rstd) {
    norm.backward(context, parameters, dy, heads(raw), rows_of(rstd, n, rstd.sizes()[1]), {}, dy);
    const std::int64_t cols = raw.sizes()[1];
    TensorView rows = dy;
    rows.rank = 2;
    rows.shape = {n, cols};
    rows.stride = {cols, 1};
    cast(context, {.x = rows, .y = columns_of(dqkv, first, cols)});
  };
  normalize(*q_norm, 0, dq, a.q_raw, a.q_rstd);
  if (pass.injection == nullptr) normalize(*k_norm, query_width(d), dk, a.k_raw, a.k_rstd);
}

void DecoderLayer::backward(const Pass& pass, const Parameters& parameters,
                            const ConstTensorView& sum1, const LayerActivations& a,
                            Gradients& g) const {
  const ModelDescription& d = *description;
  Context& context = pass.context;
  const std::int64_t n = pass.tokens;
  const TensorView stream = rows_of(g.stream, n, d.width);
  const TensorView scratch = rows_of(g.dropped, n, d.width);
  const TensorView normed = rows_of(g.normed, n, d.width);
  const auto rstd_of = [&](const Tensor& buffer) {
    TensorView view = rows_of(buffer, n, 1);
    view.rank = 1;
    return view;
  };
  // The MLP.
  const TensorView dhidden = rows_of(g.hidden, n, d.ffn_width);
  down.backward(context, parameters, drop_gradient(pass, index, MaskOf::mlp, stream, scratch),
                rows_of(a.hidden, n, d.ffn_width), dhidden);
  const TensorView both = rows_of(a.gate_up, n, 2 * d.ffn_width);
  const TensorView dboth = rows_of(g.gate_up, n, 2 * d.ffn_width);
  gate_backward(context, {.dy = dhidden,
                          .gate = columns_of(both, 0, d.ffn_width),
                          .up = columns_of(both, d.ffn_width, d.ffn_width),
                          .dgate = columns_of(dboth, 0, d.ffn_width),
                          .dup = columns_of(dboth, d.ffn_width, d.ffn_width)});
  gate_up.backward(context, parameters, dboth, rows_of(a.normed2, n, d.width), normed);
  mlp_norm.backward(context, parameters, normed, rows_of(a.sum2, n, d.width), rstd_of(a.rstd2),
                    stream, stream);
  // Attention.
  output.backward(context, parameters,
                  drop_gradient(pass, index, MaskOf::attention, stream, scratch),
                  rows_of(a.mixed, n, query_width(d)), rows_of(g.mixed, n, query_width(d)));
  attend_backward(pass, parameters, a, g);
  qkv.backward(context, parameters, rows_of(g.qkv, n, qkv_width(d)), rows_of(a.normed1, n, d.width),
               normed);
  attention_norm.backward(context, parameters, normed, sum1, rstd_of(a.rstd1), stream, stream);
}

}  // namespace touchstone::inline v0::train
