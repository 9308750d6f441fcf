#include "cli/training/settings.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>

#include "cli/arguments.h"
#include "touchstone/core/error.h"
#include "touchstone/core/ternary.h"

namespace touchstone::cli {
namespace {

struct Setting {
  const char* name;
  const char* otherwise;
  const char* help;
};

constexpr Setting kSettings[] = {
    {"layers", "6", "Layers of a new model"},
    {"width", "384", "Width of the residual stream"},
    {"heads", "6", "Query heads"},
    {"kv_heads", "0", "Key/value heads; 0 = as many as query heads"},
    {"head_size", "0", "Size of a head; 0 = width / heads"},
    {"ffn", "0", "Width of the MLP; 0 = 8/3 of the width, up to a multiple of 128"},
    {"qk_norm", "0", "1: norms of q and k (Qwen3); 0: none (Llama)"},
    {"tied", "1", "1: the head is the embedding"},
    {"theta", "10000", "Base of the rotary embedding"},
    {"context", "0", "Context length of the model; 0 = the length of a row"},
    {"tokenizer", "characters",
     "characters, a vocabulary size (byte-level BPE), or a tokenizer.json"},
    {"steps", "1000", "Number of steps"},
    {"rows", "16", "Rows (sequences) per step"},
    {"rows_at_once", "0", "Rows per forward and backward pass; gradients are accumulated. 0 = all"},
    {"length", "256", "Tokens per row"},
    {"schedule", "cosine", "constant, cosine, linear or two_phase"},
    {"learning_rate", "1e-3", "Peak of the learning rate"},
    {"final_rate", "1e-4", "Learning rate at the end (cosine, linear)"},
    {"second_rate", "6e-4", "Learning rate of the second phase (two_phase)"},
    {"warm_up", "100", "Steps of linear warm-up"},
    {"weight_decay", "0.1", "Weight decay of the matrices"},
    {"beta1", "0.9", "Of AdamW"},
    {"beta2", "0.99", "Of AdamW"},
    {"epsilon", "1e-8", "Of AdamW"},
    {"clip", "1", "Gradient clipping: largest norm; 0 = none"},
    {"dropout", "0", "Dropout probability at the inputs of the residual stream"},
    {"attention_dropout", "0", "Dropout probability of attention weights; slow on the CPU"},
    {"average_decay", "0", "Decay of the weight average that is evaluated and written; 0 = none"},
    {"seed", "1", "Seed of weights, data order and dropout"},
    {"compute", "f32", "Dtype of activations: f32, bf16, f16"},
    {"checkpoint_activations", "0", "1: activation checkpointing, one tensor per layer is kept"},
    {"group", "128", "Ternary: tensor, row, or the size of a group"},
    {"scale", "mean", "Ternary: mean, absmax or least_squares"},
    {"teacher_weight", "0.5", "Weight of the distillation loss"},
    {"teacher_temperature", "1", "Distillation temperature"},
    {"block", "8", "Draft: positions of a block, the known token included"},
    {"taps", "5", "Draft: layers of the target whose outputs it reads, spread evenly"},
    {"anchors", "16", "Draft: blocks of a row in a step"},
    {"decay", "0", "Draft: position k of a block weighs exp(-(k - 1) / decay); 0 = half a block"},
    {"mask_token", "rarest", "Draft: token of the positions to fill; by default the text's rarest"},
    {"feature_memory", "1024", "Draft: MiB of the target's states that are kept in memory"},
    {"feature_disk", "0", "Draft: MiB of them that are kept in a file beside"},
    {"validation_share", "0.1", "Share of the text that is held out without --validation"},
    {"evaluate_every", "250", "Steps between evaluations"},
    {"evaluate_rows", "0", "Rows of an evaluation; 0 = the whole validation text"},
    {"patience", "0", "Early stopping: evaluations without improvement; 0 = never"},
    {"samples", "1", "Samples generated at every evaluation"},
    {"sample_tokens", "160", "Tokens per sample"},
    {"sample_temperature", "0.8", "Temperature of samples"},
    {"sample_prompt", "\n", "Prompt of the samples"},
};

const Setting& setting(const std::string& name) {
  for (const Setting& s : kSettings) {
    if (s.name == name) return s;
  }
  throw InvalidArgument(fmt::format("train: config: unknown key '{}'", name));
}

constexpr std::int64_t kMostMiB = std::int64_t{1} << 40;  // 2^60 bytes

std::string option_name(std::string name) {
  for (char& c : name) c = c == '_' ? '-' : c;
  return "--" + name;
}

}  // namespace

void TrainSettings::add_options(Options& verb) {
  for (const Setting& s : kSettings) {
    verb.add_option(option_name(s.name), given_[s.name],
                    fmt::format("{} [{}]", s.help, s.otherwise[0] == '\n' ? "\\n" : s.otherwise));
  }
}

void TrainSettings::read_config(const std::string& path) {
  Json json;
  try {
    json = Json::parse(read_whole_file(path));
  } catch (const Json::exception& error) {
    throw InvalidArgument(fmt::format("{}: {}", path, error.what()));
  }
  if (!json.is_object()) throw InvalidArgument(fmt::format("{}: expected an object", path));
  for (const auto& [key, value] : json.items()) {
    values_[setting(key).name] = value.is_string()    ? value.get<std::string>()
                                 : value.is_boolean() ? (value.get<bool>() ? "1" : "0")
                                                      : value.dump();
  }
}

const std::string& TrainSettings::text(const std::string& name) const {
  static const std::map<std::string, std::string> kDefaults = [] {
    std::map<std::string, std::string> defaults;
    for (const Setting& s : kSettings) defaults[s.name] = s.otherwise;
    return defaults;
  }();
  if (const auto found = given_.find(name); found != given_.end() && !found->second.empty()) {
    return found->second;
  }
  if (const auto found = values_.find(name); found != values_.end()) return found->second;
  return kDefaults.at(name);
}

bool TrainSettings::given(const std::string& name) const {
  const auto found = given_.find(name);
  return (found != given_.end() && !found->second.empty()) || values_.contains(name);
}

std::vector<std::string> TrainSettings::unused(const Parts& parts) const {
  struct Group {
    bool used;
    const char* reason;
    std::vector<std::string> names;
  };
  const Group groups[] = {
      {!parts.from,
       "the model of --from has its own",
       {"layers", "width", "heads", "kv_heads", "head_size", "ffn", "qk_norm", "tied", "theta",
        "tokenizer"}},
      {parts.teacher, "there is no --teacher", {"teacher_weight", "teacher_temperature"}},
      {parts.ternary, "not --ternary", {"group", "scale"}},
      {parts.dflash,
       "there is no --dflash",
       {"block", "taps", "anchors", "decay", "mask_token", "feature_memory", "feature_disk"}}};
  std::vector<std::string> lines;
  for (const Group& group : groups) {
    std::string options;
    for (const std::string& name : group.names) {
      const auto found = given_.find(name);
      if (group.used || found == given_.end() || found->second.empty()) continue;
      options += (options.empty() ? "" : ", ") + option_name(name);
    }
    if (options.empty()) continue;
    lines.push_back(fmt::format("train: {}: not used, {}", options, group.reason));
  }
  return lines;
}

double TrainSettings::number(const std::string& name) const {
  const std::string& value = text(name);
  double result = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
  if (error != std::errc() || end != value.data() + value.size() || !std::isfinite(result)) {
    throw InvalidArgument(fmt::format("train: {}: expected a number, got '{}'", name, value));
  }
  return result;
}

std::int64_t TrainSettings::integer(const std::string& name) const {
  const double value = number(name);
  if (value < 0 || value != std::floor(value) || value > 9e15) {  // exact in a double
    throw InvalidArgument(
        fmt::format("train: {}: expected a whole number from 0 to 9e15, got {}", name, text(name)));
  }
  return static_cast<std::int64_t>(value);
}

void TrainSettings::at_most(const std::string& name, std::int64_t most) const {
  if (integer(name) <= most) return;
  throw InvalidArgument(
      fmt::format("train: {}: expected at most {}, got {}", name, most, text(name)));
}

bool TrainSettings::flag(const std::string& name) const {
  const std::int64_t value = integer(name);
  if (value > 1)
    throw InvalidArgument(fmt::format("train: {}: expected 0 or 1, got {}", name, value));
  return value == 1;
}

DType TrainSettings::compute() const {
  const std::string& name = text("compute");
  if (name != "f32" && name != "bf16" && name != "f16") {
    throw InvalidArgument(fmt::format("train: compute: expected f32, bf16 or f16, got '{}'", name));
  }
  return parse_dtype(name);
}

void TrainSettings::check(bool new_model) const {
  train::check_options(training());
  parse_ternary_geometry(text("group"));
  parse_ternary_scale_rule(text("scale"));
  if (new_model) description(1);
  for (const char* const name : {"evaluate_every", "taps"}) {
    if (integer(name) > 0) continue;
    throw InvalidArgument(fmt::format("train: {}: expected at least 1, got 0", name));
  }
  for (const char* const name : {"evaluate_rows", "patience", "sample_tokens"}) {
    integer(name);
  }
  at_most("samples", 4096);
  if (given("mask_token")) at_most("mask_token", std::numeric_limits<std::int32_t>::max());
  for (const char* const name : {"feature_memory", "feature_disk"}) at_most(name, kMostMiB);
  if (number("sample_temperature") < 0) {
    throw InvalidArgument(fmt::format("train: sample_temperature: expected at least 0, got {}",
                                      number("sample_temperature")));
  }
}

Json TrainSettings::json() const {
  Json json = Json::object();
  for (const Setting& s : kSettings) json[s.name] = text(s.name);
  return json;
}

train::TrainingOptions TrainSettings::training() const {
  return {.steps = integer("steps"),
          .rows = integer("rows"),
          .rows_at_once = integer("rows_at_once"),
          .length = integer("length"),
          .schedule = train::parse_schedule(text("schedule")),
          .learning_rate = number("learning_rate"),
          .final_rate = number("final_rate"),
          .second_rate = number("second_rate"),
          .warm_up = integer("warm_up"),
          .weight_decay = number("weight_decay"),
          .beta1 = number("beta1"),
          .beta2 = number("beta2"),
          .epsilon = number("epsilon"),
          .clip = number("clip"),
          .dropout = number("dropout"),
          .attention_dropout = number("attention_dropout"),
          .average_decay = number("average_decay"),
          .seed = integer("seed"),
          .compute = compute(),
          .checkpoint_activations = flag("checkpoint_activations"),
          .teacher_weight = number("teacher_weight"),
          .teacher_temperature = number("teacher_temperature")};
}

io::ModelDescription TrainSettings::description(std::int64_t vocabulary) const {
  io::ModelDescription d;
  d.qk_norm = flag("qk_norm");
  d.family = d.qk_norm ? io::ModelFamily::qwen3 : io::ModelFamily::llama;
  d.width = integer("width");
  d.heads = integer("heads");
  if (d.width < 1 || d.heads < 1) throw InvalidArgument("train: width, heads: expected at least 1");
  d.kv_heads = integer("kv_heads") > 0 ? integer("kv_heads") : d.heads;
  d.head_size = integer("head_size") > 0 ? integer("head_size") : d.width / d.heads;
  if (d.heads % d.kv_heads != 0 || d.head_size < 2 || d.head_size % 2 != 0) {
    throw InvalidArgument(fmt::format(
        "train: heads: expected a multiple of kv_heads with an even size, got {} / {} of size {}",
        d.heads, d.kv_heads, d.head_size));
  }
  d.ffn_width = integer("ffn") > 0 ? integer("ffn") : (d.width * 8 / 3 + 127) / 128 * 128;
  d.vocabulary = vocabulary;
  d.context = integer("context") > 0 ? integer("context") : integer("length");
  const std::int64_t layers = integer("layers");
  if (layers < 1 || layers > 1 << 14) {
    throw InvalidArgument(fmt::format("train: layers: expected 1 to 16384, got {}", layers));
  }
  d.layers.resize(static_cast<std::size_t>(layers));
  d.norm_epsilon = 1e-5;
  d.rope.dims = d.head_size;
  d.rope.theta = number("theta");
  d.attention_scale = 1 / std::sqrt(static_cast<double>(d.head_size));
  d.tied_head = flag("tied");
  return d;
}

}  // namespace touchstone::cli
