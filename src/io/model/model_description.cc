#include "touchstone/io/model_description.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <system_error>

#include "io/model/describe.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::io {

std::string_view name_of(ModelFamily family) {
  constexpr std::string_view kNames[] = {"llama",  "qwen2", "qwen3", "gemma2",
                                         "gemma3", "phi3",  "gpt2",  "gpt_neox"};
  return kNames[static_cast<std::size_t>(family)];
}

std::string_view name_of(ActivationKind activation) {
  constexpr std::string_view kNames[] = {"silu", "gelu", "gelu_tanh", "relu"};
  return kNames[static_cast<std::size_t>(activation)];
}

std::string_view name_of(RopeScaling scaling) {
  constexpr std::string_view kNames[] = {"none", "linear", "dynamic", "yarn", "llama3", "longrope"};
  return kNames[static_cast<std::size_t>(scaling)];
}

double decimal_of_f32(double x) {
  const std::string text = fmt::format("{}", static_cast<float>(x));
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  return result.ec == std::errc() ? value : x;  // NaN and infinity are refused later
}

std::vector<float> llama3_factors(const RopeDescription& rope, double low_factor,
                                  double high_factor) {
  std::vector<float> factors;
  const auto context = static_cast<double>(rope.original_context);
  for (std::int64_t i = 0; i < rope.dims / 2; ++i) {
    const double exponent = 2 * static_cast<double>(i) / static_cast<double>(rope.dims);
    const double wave = 2 * M_PI * std::pow(rope.theta, exponent);
    double factor = 1;
    if (wave > context / low_factor) {
      factor = rope.factor;
    } else if (wave >= context / high_factor) {
      const double smooth = (context / wave - low_factor) / (high_factor - low_factor);
      factor = 1 / ((1 - smooth) / rope.factor + smooth);
    }
    factors.push_back(static_cast<float>(factor));
  }
  return factors;
}

namespace {

void check_rope(const std::string& file, const RopeDescription& rope, std::int64_t head_size) {
  if (rope.dims < 2 || rope.dims % 2 != 0 || rope.dims > head_size) {
    throw CorruptData(
        fmt::format("{}: rotated dimensions: expected an even number up to {}, got {}", file,
                    head_size, rope.dims));
  }
  const auto positive = [](double x) { return std::isfinite(x) && x > 0; };
  bool fine = positive(rope.theta) && positive(rope.factor) && positive(rope.attention_factor);
  for (const float x : rope.factors) fine = fine && positive(static_cast<double>(x));
  for (const float x : rope.long_factors) fine = fine && positive(static_cast<double>(x));
  if (!fine) throw CorruptData(file + ": rope: expected positive finite theta and factors");
}

}  // namespace

void check_description(const std::string& file, const ModelDescription& d) {
  const auto fail = [&](const std::string& problem) { throw CorruptData(file + ": " + problem); };
  for (const auto& [name, value] : {std::pair{"width", d.width},
                                    {"heads", d.heads},
                                    {"kv heads", d.kv_heads},
                                    {"head size", d.head_size},
                                    {"feed-forward width", d.ffn_width},
                                    {"vocabulary", d.vocabulary},
                                    {"context", d.context},
                                    {"layers", static_cast<std::int64_t>(d.layers.size())}}) {
    if (value < 1) fail(fmt::format("{}: expected 1 or more, got {}", name, value));
  }
  if (d.heads % d.kv_heads != 0) {
    fail(fmt::format("{} kv heads do not divide {} heads", d.kv_heads, d.heads));
  }
  if ((d.family == ModelFamily::gpt2 || d.family == ModelFamily::gpt_neox) &&
      (d.heads * d.head_size != d.width || d.kv_heads != d.heads)) {
    fail(fmt::format("{} heads do not divide the width {}", d.heads, d.width));
  }
  if (d.head_size > kMaxWidth / d.heads) fail("heads times head size is out of range");
  if (!(d.norm_epsilon >= 0) || !(d.norm_epsilon < 1)) {
    fail(fmt::format("epsilon of norms: expected 0 to 1, got {}", d.norm_epsilon));
  }
  if (!std::isfinite(d.attention_scale) || !(d.attention_scale > 0)) {
    fail("attention scale: expected a positive number");
  }
  for (const double cap : {d.attention_soft_cap, d.final_soft_cap}) {
    if (!std::isfinite(cap) || cap < 0) fail("soft cap: expected 0 or a positive number");
  }
  if (!d.learned_positions) check_rope(file, d.rope, d.head_size);
  if (d.local_rope) check_rope(file, *d.local_rope, d.head_size);
  if (d.bos_token && (*d.bos_token < 0 || *d.bos_token >= d.vocabulary)) {
    fail(fmt::format("begin token {} is not in the vocabulary", *d.bos_token));
  }
  for (const std::int64_t token : d.eos_tokens) {
    if (token < 0 || token >= d.vocabulary)
      fail(fmt::format("end token {} is not in the vocabulary", token));
  }
}

namespace {

std::string describe_rope(const RopeDescription& rope) {
  std::string text = fmt::format("{} dimensions, theta {}", rope.dims, rope.theta);
  if (rope.scaling != RopeScaling::none) {
    text += fmt::format(", {} factor {:.6g}", name_of(rope.scaling), rope.factor);
  }
  if (rope.original_context != 0) text += fmt::format(", trained for {}", rope.original_context);
  return text;
}

std::string describe_windows(const ModelDescription& d) {
  std::int64_t window = 0;
  std::size_t windowed = 0;
  for (const LayerDescription& layer : d.layers) {
    if (layer.window == 0) continue;
    window = layer.window;
    ++windowed;
  }
  return windowed == 0
             ? "none"
             : fmt::format("{} positions in {} of {} layers", window, windowed, d.layers.size());
}

}  // namespace

std::vector<std::pair<std::string, std::string>> describe(const ModelDescription& d) {
  std::vector<std::pair<std::string, std::string>> lines;
  const auto add = [&](const char* key, std::string value) {
    lines.emplace_back(key, std::move(value));
  };
  if (!d.name.empty()) add("name", d.name);
  add("family", std::string(name_of(d.family)));
  add("layers", std::to_string(d.layers.size()));
  add("width", std::to_string(d.width));
  add("heads", fmt::format("{} query, {} key/value, of {}", d.heads, d.kv_heads, d.head_size));
  add("mlp", fmt::format("{}{}, width {}{}", name_of(d.activation), d.gated ? " with gate" : "",
                         d.ffn_width, d.mlp_bias ? ", bias" : ""));
  add("vocabulary", std::to_string(d.vocabulary));
  add("context", std::to_string(d.context));
  add("norm", fmt::format("{}, epsilon {:.6g}{}{}", d.norm == NormKind::rms ? "rms" : "layer",
                          d.norm_epsilon, d.qk_norm ? ", q and k too" : "",
                          d.post_norms ? ", after blocks too" : ""));
  add("positions", d.learned_positions ? "learned" : "rope: " + describe_rope(d.rope));
  if (d.local_rope) add("positions in windows", "rope: " + describe_rope(*d.local_rope));
  add("windows", describe_windows(d));
  if (d.qkv_bias || d.attention_output_bias) {
    add("attention bias",
        d.attention_output_bias ? (d.qkv_bias ? "q, k, v, output" : "output") : "q, k, v");
  }
  if (d.attention_soft_cap > 0)
    add("attention soft cap", fmt::format("{:g}", d.attention_soft_cap));
  if (d.final_soft_cap > 0) add("final soft cap", fmt::format("{:g}", d.final_soft_cap));
  if (d.parallel_blocks) add("blocks", "parallel");
  if (d.embedding_scale != 1) add("embedding scale", fmt::format("{:.9g}", d.embedding_scale));
  add("head", d.tied_head ? "tied to the embedding" : "its own");
  if (d.bos_token) add("begin token", std::to_string(*d.bos_token));
  add("end tokens", fmt::format("{}", fmt::join(d.eos_tokens, ", ")));
  return lines;
}

}  // namespace touchstone::inline v0::io
