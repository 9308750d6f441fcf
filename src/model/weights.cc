#include "model/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/copy.h"
#include "core/index.h"
#include "touchstone/core/convert.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::model {
namespace {

// Size of an allocation that weights share: several huge pages, which Tensor requests with madvise.
constexpr std::int64_t kChunkBytes = std::int64_t{32} << 20;

// f64 weights are multiplied with f64 activations alone, and those of a model never are.
bool model_runs_from(const WeightFormat& format, Device device) {
  if (format.id == WeightFormatId::f64) return false;
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

LoadedWeights::LoadedWeights(Context& context, const io::ModelFile& file,
                             std::optional<DType> expanded, bool copied)
    : context_(context), file_(&file), expanded_(expanded), copied_(copied) {
  load_all(file.description());
}

LoadedWeights::LoadedWeights(Context& context, const io::ModelDescription& description,
                             std::vector<io::UploadedWeight> weights)
    : context_(context), file_(nullptr) {
  const auto fail = [](const std::string& name, const std::string& problem) {
    throw InvalidArgument(fmt::format("model: weight '{}': {}", name, problem));
  };
  for (io::UploadedWeight& weight : weights) {
    const std::string name = weight.info.name;
    if (weight.data.device() != context.device()) {
      fail(name, fmt::format("expected on {}, got {}", name_of(context.device()),
                             name_of(weight.data.device())));
    }
    if (!given_.emplace(name, std::move(weight)).second) fail(name, "given twice");
  }
  const auto expected = io::weights_of(description, weight_format(WeightFormatId::f32));
  for (const io::WeightInfo& info : expected) {
    const auto found = given_.find(info.name);
    if (found == given_.end()) fail(info.name, "is missing");
    const io::WeightInfo& given = found->second.info;
    if (given.shape != info.shape) {
      fail(info.name, fmt::format("expected shape {}, got {}", shape_string(info.shape),
                                  shape_string(given.shape)));
    }
    if (info.shape.size() == 1 && given.format->id != WeightFormatId::f32) {
      fail(info.name, fmt::format("expected f32, got {}", given.format->name));
    }
    if (!model_runs_from(*given.format, context.device())) {
      throw Unsupported(fmt::format("model: weight '{}': models do not run from {} on {}",
                                    info.name, given.format->name, name_of(context.device())));
    }
  }
  for (const auto& [name, weight] : given_) {
    if (std::ranges::find(expected, name, &io::WeightInfo::name) == expected.end()) {
      fail(name, "is not part of the model");
    }
  }
  load_all(description);
}

void LoadedWeights::load_all(const io::ModelDescription& description) {
  weights_.embedding = table("token_embd.weight");
  if (description.learned_positions) weights_.positions = table("position_embd.weight");
  for (std::int64_t i = 0; i < std::ssize(description.layers); ++i) {
    weights_.layers.push_back(layer(i, description.gated));
  }
  weights_.final_norm = norm("output_norm");
  if (description.tied_head) {
    // One copy of the matrix, in the memory of the embedding.
    weights_.head = weights_.embedding;
    weights_.matrix_bytes += bytes_of(weights_.head.weight);
    if (has("output.bias")) weights_.head.bias = vector("output.bias");
  } else {
    weights_.head = matrix("output");
  }
}

bool LoadedWeights::has(const std::string& name) const {
  return file_ != nullptr ? file_->has(name) : given_.contains(name);
}

const WeightFormat* LoadedWeights::format_of(const std::string& name) const {
  if (file_ == nullptr) return given_.at(name).info.format;
  const WeightFormat* const stored = file_->load(name).format;
  if (expanded_ && !stored->dtype) return weight_format(*expanded_);
  const bool runs = model_runs_from(*stored, context_.device());
  return runs ? stored : &weight_format(WeightFormatId::f32);
}

LoadedWeights::Piece LoadedWeights::piece(const std::string& name) {
  Piece piece;
  if (file_ == nullptr) {
    io::UploadedWeight& given = given_.at(name);
    piece = {.format = given.info.format,
             .shape = given.info.shape,
             .data = given.data.data(),
             .bytes = given.data.bytes(),
             .device = given.data.device()};
    piece.owned = std::move(given.data);
    return piece;
  }
  piece.mapped = file_->load(name);
  piece.format = piece.mapped.format;
  piece.shape = piece.mapped.shape;
  piece.data = piece.mapped.data.data();
  piece.bytes = std::ssize(piece.mapped.data);
  const WeightFormat& wanted = *format_of(name);
  if (wanted.id == piece.format->id) return piece;
  const std::int64_t elements =
      piece.bytes / piece.format->block_bytes * piece.format->block_elements;
  Tensor values = Tensor::empty({elements}, DType::f32);
  decode_weights(*piece.format, piece.mapped.data, values.values<float>());
  piece.owned = Tensor::empty({elements}, *wanted.dtype);
  visit_float_dtype(*wanted.dtype, [&]<class T>() {
    std::ranges::transform(values.values<float>(), piece.owned.values<T>().begin(),
                           [](float value) { return convert<T>(value); });
  });
  piece.mapped = {};
  piece.format = &wanted;
  piece.data = piece.owned.data();
  piece.bytes = piece.owned.bytes();
  return piece;
}

LoadedWeights::Stored LoadedWeights::store(Piece piece) {
  const Device device = context_.device();
  if (piece.device != device) {
    std::vector<Piece> one;
    one.push_back(std::move(piece));
    return stack(std::move(one));
  }
  const bool owned = piece.owned.elements() > 0;
  const bool moved = !device.is_cuda() && (owned ? piece.bytes < kChunkBytes : copied_);
  if (moved) {
    std::byte* const to = allocate(piece.bytes);
    std::memcpy(to, piece.data, at(piece.bytes));
    piece.data = to;
  }
  const Stored stored{view_of(*piece.format, piece.shape, piece.data, device),
                      piece.format->dtype ? std::string() : std::string(piece.format->name)};
  if (moved) return stored;
  if (owned) {
    copies_.push_back(std::move(piece.owned));
  } else {
    mapped_.push_back(std::move(piece.mapped));
  }
  return stored;
}

std::byte* LoadedWeights::allocate(std::int64_t bytes) {
  constexpr std::int64_t kAlignment = 64;
  const std::int64_t whole = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (std::ssize(unused_) < whole) {
    Tensor& chunk = copies_.emplace_back(Tensor::empty({std::max(whole, kChunkBytes)}, DType::u8));
    unused_ = {static_cast<std::byte*>(chunk.data()), at(chunk.bytes())};
  }
  std::byte* const begin = unused_.data();
  unused_ = unused_.subspan(at(whole));
  return begin;
}

LoadedWeights::Stored LoadedWeights::stack(std::vector<Piece> pieces) {
  std::int64_t bytes = 0;
  std::vector<std::int64_t> shape = pieces[0].shape;
  shape[0] = 0;
  for (const Piece& piece : pieces) {
    bytes += piece.bytes;
    shape[0] += piece.shape[0];
  }
  const Device device = context_.device();
  const StreamLocation here{device, context_.stream()};
  std::byte* const all =
      device.is_cuda() ? static_cast<std::byte*>(
                             copies_.emplace_back(Tensor::empty({bytes}, DType::u8, device)).data())
                       : allocate(bytes);
  std::byte* to = all;
  for (const Piece& piece : pieces) {
    queue_copy(here, to, piece.device.is_cuda() ? here : StreamLocation{}, piece.data, piece.bytes);
    to += piece.bytes;
  }
  wait_for(here);
  const WeightFormat& format = *pieces[0].format;
  return {view_of(format, shape, all, device),
          format.dtype ? std::string() : std::string(format.name)};
}

ConstTensorView LoadedWeights::vector(const std::string& name) { return store(piece(name)).view; }

Matrix LoadedWeights::matrix(const std::string& name) {
  const Stored stored = store(piece(name + ".weight"));
  Matrix matrix{.weight = stored.view, .format = stored.format};
  weights_.matrix_bytes += bytes_of(stored.view);
  if (has(name + ".bias")) matrix.bias = vector(name + ".bias");
  return matrix;
}

// A file that is mapped on the CPU stays where it is.
Matrix LoadedWeights::stacked(const std::vector<std::string>& names) {
  if (!context_.device().is_cuda() && file_ != nullptr && !copied_) return {};
  for (const std::string& name : names) {
    if (format_of(name + ".weight") != format_of(names[0] + ".weight") ||
        has(name + ".bias") != has(names[0] + ".bias")) {
      return {};
    }
  }
  const auto pieces = [&](const char* ending) {
    std::vector<Piece> list;
    for (const std::string& name : names) list.push_back(piece(name + ending));
    return list;
  };
  const Stored stored = stack(pieces(".weight"));
  Matrix matrix{.weight = stored.view, .format = stored.format};
  weights_.matrix_bytes += bytes_of(stored.view);
  if (has(names[0] + ".bias")) matrix.bias = stack(pieces(".bias")).view;
  return matrix;
}

NormWeights LoadedWeights::norm(const std::string& name) {
  NormWeights norm;
  if (!has(name + ".weight")) return norm;
  norm.weight = vector(name + ".weight");
  if (has(name + ".bias")) norm.bias = vector(name + ".bias");
  return norm;
}

Matrix LoadedWeights::table(const std::string& name) {
  const Stored stored = store(piece(name));
  return {.weight = stored.view, .format = stored.format};
}

LayerWeights LoadedWeights::layer(std::int64_t index, bool gated) {
  const std::string prefix = fmt::format("blk.{}.", index);
  LayerWeights layer;
  layer.attention_norm = norm(prefix + "attn_norm");
  layer.mlp_norm = norm(prefix + "ffn_norm");
  layer.post_attention_norm = norm(prefix + "post_attention_norm");
  layer.post_mlp_norm = norm(prefix + "post_ffw_norm");
  layer.q_norm = norm(prefix + "attn_q_norm");
  layer.k_norm = norm(prefix + "attn_k_norm");
  // On the CPU the norm of heads is rms_norm, whose rows have one stride: that of heads or that of
  // tokens.
  if (context_.device().is_cuda() || !layer.q_norm.weight.defined()) {
    layer.qkv = stacked({prefix + "attn_q", prefix + "attn_k", prefix + "attn_v"});
  }
  if (!layer.qkv.weight.defined()) {
    layer.q = matrix(prefix + "attn_q");
    layer.k = matrix(prefix + "attn_k");
    layer.v = matrix(prefix + "attn_v");
  }
  layer.output = matrix(prefix + "attn_output");
  if (gated) layer.gate_up = stacked({prefix + "ffn_gate", prefix + "ffn_up"});
  if (!layer.gate_up.weight.defined()) {
    if (gated) layer.gate = matrix(prefix + "ffn_gate");
    layer.up = matrix(prefix + "ffn_up");
  }
  layer.down = matrix(prefix + "ffn_down");
  return layer;
}

LoadedWeights load_weights(Context& context, const io::ModelFile& file,
                           const ModelOptions& options) {
  const bool as_stored =
      !options.expand_weights && std::ranges::all_of(file.weights(), [&](const auto& info) {
        return model_runs_from(*info.format, context.device());
      });
  if (context.device().is_cuda() && as_stored) {
    return {context, file.description(), io::upload_weights(context, file, options.load_progress)};
  }
  return {context, file, options.expand_weights ? std::optional(options.compute) : std::nullopt,
          options.copy_weights};
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
