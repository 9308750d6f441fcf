#include "io/model/convert_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "io/container/write_gguf.h"
#include "io/model/describe.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::io {
namespace {

// GGUF rounds to f32, and config.json keeps three decimals of the scale's square.
bool near(double a, double b) {
  return std::abs(a - b) <= 1e-5 * std::max(std::abs(a), std::abs(b));
}

bool same_rope(const RopeDescription& a, const RopeDescription& b) {
  if (a.dims != b.dims || a.scaling != b.scaling || !near(a.theta, b.theta)) return false;
  const auto same = [](const std::vector<float>& x, const std::vector<float>& y) {
    return std::ranges::equal(x, y, [](float p, float q) {
      return near(static_cast<double>(p), static_cast<double>(q));
    });
  };
  if (!same(a.factors, b.factors) || !same(a.long_factors, b.long_factors)) return false;
  // Llama 3 is all in its divisors, and linear scaling knows no context.
  if (a.scaling == RopeScaling::none || a.scaling == RopeScaling::llama3) return true;
  if (!near(a.factor, b.factor) || !near(a.attention_factor, b.attention_factor)) return false;
  return a.scaling == RopeScaling::linear ||
         (a.original_context == b.original_context && near(a.beta_fast, b.beta_fast) &&
          near(a.beta_slow, b.beta_slow));
}

// What the two compute differently. Biases and the head are left to the tensors.
class Differences {
 public:
  Differences(const ModelDescription& model, const ModelDescription& written) {
    const ModelDescription& a = model;
    const ModelDescription& b = written;
    compare("family", name_of(a.family), name_of(b.family));
    compare("width", a.width, b.width);
    compare("feed-forward width", a.ffn_width, b.ffn_width);
    compare("heads", a.heads, b.heads);
    compare("key/value heads", a.kv_heads, b.kv_heads);
    compare("head size", a.head_size, b.head_size);
    compare("vocabulary", a.vocabulary, b.vocabulary);
    compare("context", a.context, b.context);
    compare("layers", a.layers.size(), b.layers.size());
    if (a.layers != b.layers) names_.emplace_back("windows and sinks");
    if (a.norm != b.norm) names_.emplace_back("kind of norm");
    compare_near("epsilon of norms", a.norm_epsilon, b.norm_epsilon);
    if (a.qk_norm != b.qk_norm) names_.emplace_back("norms of q and k");
    if (a.post_norms != b.post_norms) names_.emplace_back("norms after blocks");
    if (a.learned_positions != b.learned_positions || !same_rope(a.rope, b.rope)) {
      names_.emplace_back("rotation of positions");
    }
    if (a.local_rope.has_value() != b.local_rope.has_value() ||
        (a.local_rope && !same_rope(*a.local_rope, *b.local_rope))) {
      names_.emplace_back("rotation of positions in windows");
    }
    compare_near("attention scale", a.attention_scale, b.attention_scale);
    compare_near("attention soft cap", a.attention_soft_cap, b.attention_soft_cap);
    compare_near("final soft cap", a.final_soft_cap, b.final_soft_cap);
    compare("activation", name_of(a.activation), name_of(b.activation));
    compare("gate", a.gated, b.gated);
    compare("parallel blocks", a.parallel_blocks, b.parallel_blocks);
    compare_near("embedding scale", a.embedding_scale, b.embedding_scale);
    if (a.eos_tokens != b.eos_tokens) names_.emplace_back("end tokens");
  }

  void refuse(std::string_view target) const {
    if (names_.empty()) return;
    throw Unsupported(
        fmt::format("convert: {} has no key for: {}", target, fmt::join(names_, ", ")));
  }

 private:
  void compare(const char* name, const auto& model, const auto& written) {
    if (model == written) return;
    names_.push_back(fmt::format("{} {} (it would be read as {})", name, model, written));
  }
  void compare_near(const char* name, double model, double written) {
    if (!near(model, written)) compare(name, model, written);
  }

  std::vector<std::string> names_;
};

}  // namespace

void check_gguf(const ModelDescription& model, const GgufMetadata& metadata,
                std::span<const OutputTensor> tensors) {
  // The description reads the names of tensors, the rows of the embedding, and the divisors of
  // frequencies: everything else goes without its values.
  GgufMetadata keys;
  for (const GgufMetadata::Entry& entry : metadata.entries()) {
    if (!entry.key.starts_with("tokenizer.") || entry.key.ends_with("_id") ||
        entry.key.ends_with("_ids")) {
      keys.set(entry);
    }
  }
  std::vector<OutputTensor> names;
  for (const OutputTensor& tensor : tensors) {
    OutputTensor& name = names.emplace_back();
    name.name = tensor.name;
    name.type = "f32";
    name.shape = {tensor.shape.front(), 0};
    name.data = [](std::vector<std::byte>&) { return std::span<const std::byte>(); };
    if (tensor.name.starts_with("rope_")) name = tensor;
  }
  const std::string bytes = gguf_in_memory(keys, names);
  const TensorFile file = TensorFile::from_bytes("convert: GGUF", std::as_bytes(std::span(bytes)));
  Differences(model, describe_gguf(file)).refuse("GGUF");
}

void check_config(const ModelDescription& model, std::string_view config,
                  std::string_view generation) {
  Differences(model, describe_hugging_face(config, generation)).refuse("config.json");
}

}  // namespace touchstone::inline v0::io
