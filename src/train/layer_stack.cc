// The layers of a model one after the other.
#include <algorithm>

#include "train/layers.h"

namespace touchstone::inline v0::train {
namespace {

TensorView rstd(const Tensor& buffer, std::int64_t tokens) {
  TensorView view = rows_of(buffer, tokens, 1);
  view.rank = 1;
  return view;
}

}  // namespace

void LayerStack::add_matrices(const io::ModelDescription& d, const model::Rotation& rotation,
                              Parameters& parameters) {
  layers.resize(d.layers.size());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    layers[i].index = static_cast<std::int64_t>(i);
    layers[i].description = &d;
    layers[i].rotation = &rotation;
    layers[i].add_matrices(parameters);
  }
}

void LayerStack::add_vectors(const io::ModelDescription& d, Parameters& parameters) {
  for (DecoderLayer& layer : layers) layer.add_vectors(parameters);
  final_norm = {parameters.add_vector("output_norm.weight", d.width), d.width, d.norm_epsilon};
}

void LayerStack::allocate(Context& context, const io::ModelDescription& d,
                          const DecoderOptions& options) {
  const auto buffer = [&] {
    return Tensor::empty({options.max_tokens, d.width}, options.compute, context.device());
  };
  for (std::size_t i = 0; i <= layers.size(); ++i) sums.push_back(buffer());
  const std::size_t kept = options.checkpoint_activations ? 1 : layers.size();
  for (std::size_t i = 0; i < kept; ++i) activations.emplace_back(context, d, options);
  delta = buffer();
  final_normed = buffer();
  final_rstd = Tensor::empty({options.max_tokens, 1}, wide_of(options.compute), context.device());
  gradients = Gradients(context, d, options);
}

LayerActivations& LayerStack::activations_of(std::size_t layer) {
  return activations[std::min(layer, activations.size() - 1)];
}

TensorView LayerStack::rows(const Tensor& buffer, std::int64_t tokens) const {
  return rows_of(buffer, tokens, final_norm.size);
}

void LayerStack::forward(const Pass& pass, const Parameters& parameters) {
  Context& context = pass.context;
  const std::int64_t n = pass.tokens;
  const TensorView entry = rows(sums[0], n);
  const TensorView added = rows(delta, n);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    LayerActivations& a = activations_of(i);
    const TensorView normed = rows(a.normed1, n);
    const TensorView rstd1 = rstd(a.rstd1, n);
    if (i == 0) {
      layers[i].attention_norm.forward(context, parameters, entry, {}, {}, normed, rstd1);
    } else {
      layers[i].attention_norm.forward(context, parameters, rows(activations_of(i - 1).sum2, n),
                                       added, rows(sums[i], n), normed, rstd1);
    }
    layers[i].forward(pass, parameters, rows(sums[i], n), a, added);
  }
  final_norm.forward(context, parameters, rows(activations_of(layers.size() - 1).sum2, n), added,
                     rows(sums.back(), n), rows(final_normed, n), rstd(final_rstd, n));
}

void LayerStack::backward(const Pass& pass, const Parameters& parameters) {
  Context& context = pass.context;
  const std::int64_t n = pass.tokens;
  final_norm.backward(context, parameters, rows(gradients.normed, n), rows(sums.back(), n),
                      rstd(final_rstd, n), {}, rows(gradients.stream, n));
  for (std::size_t i = layers.size(); i-- > 0;) {
    LayerActivations& a = activations_of(i);
    const TensorView entry = rows(sums[i], n);
    if (activations.size() < layers.size() && i + 1 != layers.size()) {
      layers[i].attention_norm.forward(context, parameters, entry, {}, {}, rows(a.normed1, n),
                                       rstd(a.rstd1, n));
      layers[i].forward(pass, parameters, entry, a, rows(delta, n));
    }
    layers[i].backward(pass, parameters, entry, a, gradients);
  }
}

}  // namespace touchstone::inline v0::train
