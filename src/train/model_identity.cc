#include "train/model_identity.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <vector>

#include "core/checksum.h"
#include "touchstone/core/error.h"
#include "touchstone/model/model.h"

namespace touchstone::inline v0::train {
namespace {

template <class T>
std::uint64_t sum_of(const std::vector<T>& values) {
  return checksum(std::as_bytes(std::span(values)));
}

std::string rope_text(const io::RopeDescription& r) {
  std::string text = fmt::format("theta {} of {}", r.theta, r.dims);
  if (r.scaling == io::RopeScaling::none) return text;
  return text + fmt::format(" {} {} {} {} {} {} {:016x} {:016x}", name_of(r.scaling), r.factor,
                            r.original_context, r.attention_factor, r.beta_fast, r.beta_slow,
                            sum_of(r.factors), sum_of(r.long_factors));
}

const io::ModelFile* file_of(const model::Model& model) {
  try {
    return &model.file();
  } catch (const InvalidArgument&) {  // of weights that were uploaded
    return nullptr;
  }
}

std::uint64_t weights_checksum(const io::ModelFile& file) {
  std::vector<std::uint64_t> sums;
  for (const io::WeightInfo& info : file.weights()) {
    const io::Weight weight = file.load(info.name);
    sums.push_back(checksum(std::as_bytes(std::span(std::string_view(info.name)))));
    sums.push_back(checksum(std::as_bytes(std::span(std::string_view(weight.format->name)))));
    sums.push_back(checksum(weight.data));
  }
  return sum_of(sums);
}

}  // namespace

std::string architecture_text(const io::ModelDescription& d) {
  std::vector<std::string> layers;
  for (const io::LayerDescription& layer : d.layers) {
    std::string text = fmt::format("{}{}", layer.window, layer.local_rope ? "l" : "");
    if (layer.sinks > 0) text += fmt::format("+{}", layer.sinks);
    layers.push_back(std::move(text));
  }
  const bool windows = std::ranges::any_of(layers, [](const std::string& l) { return l != "0"; });
  std::string text = fmt::format(
      "{} layers {} width {} ffn {} heads {}/{} of {} vocabulary {} {} epsilon {} {} {} scale {} "
      "caps {} {} embedding {} {}",
      name_of(d.family), d.layers.size(), d.width, d.ffn_width, d.heads, d.kv_heads, d.head_size,
      d.vocabulary, d.tied_head ? "tied" : "untied", d.norm_epsilon,
      d.qk_norm ? "qk_norm" : "no qk_norm", name_of(d.activation), d.attention_scale,
      d.attention_soft_cap, d.final_soft_cap, d.embedding_scale, rope_text(d.rope));
  if (d.local_rope) text += fmt::format(" local {}", rope_text(*d.local_rope));
  if (windows) {
    text += fmt::format(" windows {}", fmt::join(layers, " "));
  }
  return text;
}

std::string identity_text(const decode::Scorer& scorer) {
  const auto* const model = dynamic_cast<const model::Model*>(&scorer);
  const io::ModelFile* const file = model == nullptr ? nullptr : file_of(*model);
  if (file == nullptr) {
    const decode::ScorerShape& shape = scorer.shape();
    return fmt::format("layers {} width {} vocabulary {}", shape.layers, shape.hidden_size,
                       shape.vocabulary);
  }
  const model::ModelOptions& o = model->options();
  const auto cached = [](const std::optional<QuantFormat>& format) {
    return format ? fmt::format("{}/{}{}", format_name(format->dtype), format->group_size,
                                format->asymmetric ? "a" : "")
                  : std::string("plain");
  };
  return fmt::format("weights {:016x} compute {} cache {} {}{}{}", weights_checksum(*file),
                     name_of(o.compute), cached(o.keys), cached(o.values),
                     o.int8_activations ? " int8" : "", o.expand_weights ? " expanded" : "");
}

}  // namespace touchstone::inline v0::train
