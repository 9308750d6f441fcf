#include "model/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/copy.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::model {
namespace {

bool linear_runs_from(const WeightFormat& format, Device device) {
  return device.is_cuda() ? format.linear_cuda : format.linear_cpu;
}

// Bytes of a weight as a tensor: plain formats in their dtype, blocks as bytes.
ConstTensorView view_of(const WeightFormat& format, std::span<const std::int64_t> shape,
                        const void* data, Device device) {
  if (format.dtype) return make_view(data, shape, *format.dtype, device);
  const std::int64_t bytes[] = {shape[0], weight_bytes(format, shape[1])};
  return make_view(data, bytes, DType::u8, device);
}

std::int64_t bytes_of(const ConstTensorView& view) { return view.elements() * size_of(view.dtype); }

}  // namespace

LoadedWeights::LoadedWeights(Context& context, const io::ModelFile& file)
    : context_(context), file_(file) {
  weights_.embedding = table("token_embd.weight");
  if (file.description().learned_positions) weights_.positions = table("position_embd.weight");
  const auto layers = static_cast<std::int64_t>(file.description().layers.size());
  for (std::int64_t i = 0; i < layers; ++i) weights_.layers.push_back(layer(i));
  weights_.final_norm = norm("output_norm");
  if (file.description().tied_head) {
    // One copy of the matrix, in the memory of the embedding.
    weights_.head = weights_.embedding;
    weights_.matrix_bytes += bytes_of(weights_.head.weight);
    if (file.has("output.bias")) weights_.head.bias = vector("output.bias");
  } else {
    weights_.head = matrix("output");
  }
}

LoadedWeights::Stored LoadedWeights::store(const std::string& name) {
  const io::Weight weight = file_.load(name);
  const Device device = context_.device();
  const WeightFormat* format = weight.format;
  const void* data = weight.data.data();
  std::int64_t bytes = std::ssize(weight.data);
  Tensor narrowed;
  if (!linear_runs_from(*format, device)) {
    const std::int64_t elements = bytes / format->block_bytes * format->block_elements;
    narrowed = Tensor::empty({elements}, DType::f32);
    decode_weights(*format, weight.data, narrowed.values<float>());
    format = &weight_format(WeightFormatId::f32);
    data = narrowed.data();
    bytes = narrowed.bytes();
  }
  if (device.is_cuda()) {
    Tensor& copy = copies_.emplace_back(Tensor::empty({bytes}, DType::u8, device));
    const StreamLocation here{device, context_.stream()};
    queue_copy(here, copy.data(), {}, data, bytes);
    wait_for(here);
    data = copy.data();
  } else if (narrowed.elements() > 0) {
    data = copies_.emplace_back(std::move(narrowed)).data();
  } else {
    mapped_.push_back(weight);
  }
  return {view_of(*format, weight.shape, data, device),
          format->dtype ? std::string() : std::string(format->name)};
}

ConstTensorView LoadedWeights::vector(const std::string& name) { return store(name).view; }

Matrix LoadedWeights::matrix(const std::string& name) {
  const Stored stored = store(name + ".weight");
  Matrix matrix{.weight = stored.view, .format = stored.format};
  weights_.matrix_bytes += bytes_of(stored.view);
  if (file_.has(name + ".bias")) matrix.bias = vector(name + ".bias");
  return matrix;
}

NormWeights LoadedWeights::norm(const std::string& name) {
  NormWeights norm;
  if (!file_.has(name + ".weight")) return norm;
  norm.weight = vector(name + ".weight");
  if (file_.has(name + ".bias")) norm.bias = vector(name + ".bias");
  return norm;
}

Matrix LoadedWeights::table(const std::string& name) {
  const Stored stored = store(name);
  return {.weight = stored.view, .format = stored.format};
}

LayerWeights LoadedWeights::layer(std::int64_t index) {
  const std::string prefix = fmt::format("blk.{}.", index);
  LayerWeights layer;
  layer.attention_norm = norm(prefix + "attn_norm");
  layer.mlp_norm = norm(prefix + "ffn_norm");
  layer.post_attention_norm = norm(prefix + "post_attention_norm");
  layer.post_mlp_norm = norm(prefix + "post_ffw_norm");
  layer.q_norm = norm(prefix + "attn_q_norm");
  layer.k_norm = norm(prefix + "attn_k_norm");
  layer.q = matrix(prefix + "attn_q");
  layer.k = matrix(prefix + "attn_k");
  layer.v = matrix(prefix + "attn_v");
  layer.output = matrix(prefix + "attn_output");
  if (file_.description().gated) layer.gate = matrix(prefix + "ffn_gate");
  layer.up = matrix(prefix + "ffn_up");
  layer.down = matrix(prefix + "ffn_down");
  return layer;
}

std::string first_nonfinite_weight(const io::ModelFile& file) {
  std::vector<float> values;
  for (const io::WeightInfo& info : file.weights()) {
    const io::Weight weight = file.load(info.name);
    const WeightFormat& format = *weight.format;
    const std::int64_t blocks = std::ssize(weight.data) / format.block_bytes;
    constexpr std::int64_t kBlocks = 4096;
    values.resize(static_cast<std::size_t>(kBlocks * format.block_elements));
    for (std::int64_t first = 0; first < blocks; first += kBlocks) {
      const std::int64_t count = std::min(kBlocks, blocks - first);
      format.decode(weight.data.data() + first * format.block_bytes, count, values.data());
      const auto end = values.begin() + count * format.block_elements;
      if (std::any_of(values.begin(), end, [](float value) { return !std::isfinite(value); })) {
        return info.name;
      }
    }
  }
  return "";
}

}  // namespace touchstone::inline v0::model
