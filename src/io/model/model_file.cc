#include "touchstone/io/model_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "io/container/tensor_file_state.h"
#include "io/mapped_file.h"
#include "io/model/describe.h"
#include "io/model/model_source.h"
#include "io/model/tensor_layout.h"
#include "io/model/tensor_rules.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::io {
namespace {

namespace fs = std::filesystem;

// Where a canonical weight lies.
struct Source {
  const TensorInfo* tensor = nullptr;
  RowLayout layout;
  std::int64_t part = 0;
  std::int64_t begin = 0;  // its first row in the concatenation of all parts
};

}  // namespace

struct ModelFile::State {
  explicit State(TensorFile opened) : file(std::move(opened)) {}
  // Finds the source of every weight; the tensors decide what has a bias.
  void collect(const std::string& name, const std::string& prefix);

  TensorFile file;
  ModelDescription description;
  std::vector<WeightInfo> weights;
  std::vector<Source> sources;
  std::map<std::string, std::size_t, std::less<>> by_name;
};

fs::path model_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error) ? path : path.parent_path();
}

RowLayout layout_of(const TensorRule& rule, const ModelDescription& description,
                    const WeightFormat& format, std::int64_t stored_rows, std::int64_t columns) {
  RowLayout layout;
  layout.op = rule.op;
  layout.element_bytes = format.block_bytes;
  layout.row_bytes = columns / format.block_elements * format.block_bytes;
  layout.head_size = description.head_size;
  layout.heads = description.heads;
  layout.stored_rows = stored_rows;
  return layout;
}

namespace {

// Fills the state from the rules: every canonical weight gets its source.
class Collector {
 public:
  Collector(std::string name, const TensorFile& file, ModelDescription& description)
      : name_(std::move(name)), file_(file), description_(description) {}

  void run(const TensorRules& rules) {
    for (const TensorRule& rule : rules.global) add_global(rule);
    for (const TensorRule& rule : rules.layer) add_layers(rules.layer_prefix, rule);
    for (const TensorInfo& tensor : file_.tensors()) {
      if (used_.contains(tensor.name) || is_ignored_tensor(tensor.name)) continue;
      fail(tensor.name,
           fmt::format("is not part of a model of family {}", name_of(description_.family)));
    }
  }

  std::vector<WeightInfo> weights;
  std::vector<Source> sources;

 private:
  [[noreturn]] void fail(std::string_view tensor, const std::string& problem) const {
    throw CorruptData(fmt::format("{}: tensor '{}': {}", name_, printable(tensor), problem));
  }

  void add_global(const TensorRule& rule) {
    const TensorInfo* const tensor = file_.find(rule.stored);
    if (rule.parts[0] == "output.weight" && description_.tied_head) {
      if (tensor != nullptr) used_.insert(tensor->name);  // a second copy of the embedding
      return;
    }
    if (tensor == nullptr && rule.optional) return;
    add(rule, "", rule.stored);
  }

  void add_layers(const std::string& prefix, const TensorRule& rule) {
    const auto stored = [&](std::size_t layer) {
      return fmt::format(fmt::runtime(prefix), layer) + rule.stored;
    };
    if (rule.optional && file_.find(stored(0)) == nullptr) return;
    for (std::size_t layer = 0; layer < description_.layers.size(); ++layer) {
      add(rule, fmt::format("blk.{}.", layer), stored(layer));
    }
  }

  void add(const TensorRule& rule, const std::string& prefix, const std::string& stored) {
    const TensorInfo* const tensor = file_.find(stored);
    if (tensor == nullptr) fail(stored, "is missing");
    if (tensor->format == nullptr) fail(stored, fmt::format("holds {}, no weights", tensor->type));
    std::int64_t rows = 0;
    std::int64_t columns = 0;
    for (const std::string& part : rule.parts) {
      const std::vector<std::int64_t> shape = canonical_shape(description_, part);
      rows += shape[0];
      columns = shape.size() == 1 ? 0 : shape[1];
    }
    std::vector<std::int64_t> expected = {rows};
    if (columns != 0) expected.push_back(columns);
    if (rule.op == TensorOp::transposed) std::swap(expected[0], expected[1]);
    if (tensor->shape != expected) {
      fail(stored, fmt::format("expected shape {}, got {}", shape_string(expected),
                               shape_string(tensor->shape)));
    }
    if (tensor->format->block_elements > 1 && (columns == 0 || rule.op == TensorOp::transposed)) {
      fail(stored, fmt::format("cannot be {}", tensor->type));
    }
    used_.insert(tensor->name);
    std::int64_t begin = 0;
    std::int64_t index = 0;
    for (const std::string& part : rule.parts) {
      WeightInfo info{prefix + part, tensor->format, canonical_shape(description_, part)};
      if (info.shape.size() == 1) info.format = &weight_format(WeightFormatId::f32);
      sources.push_back(
          {tensor, layout_of(rule, description_, *tensor->format, rows, columns == 0 ? 1 : columns),
           index++, begin});
      begin += info.shape[0];
      weights.push_back(std::move(info));
    }
  }

  std::string name_;
  const TensorFile& file_;
  ModelDescription& description_;
  std::set<std::string_view> used_;
};

std::string find_prefix(const std::string& name, const TensorFile& file, ModelFamily family) {
  for (const std::string_view prefix : known_prefixes(family)) {
    if (file.find(std::string(prefix) + std::string(embedding_name(family))) != nullptr) {
      return std::string(prefix);
    }
  }
  throw CorruptData(
      fmt::format("{}: no tensor '{}{}'", name, known_prefixes(family)[0], embedding_name(family)));
}

bool is_aligned(const std::byte* data, const WeightFormat& format) {
  const auto alignment =
      static_cast<std::uintptr_t>(format.block_elements == 1 ? format.block_bytes : 1);
  return reinterpret_cast<std::uintptr_t>(data) % alignment == 0;
}

}  // namespace

std::vector<WeightInfo> weights_of(const ModelDescription& d, const WeightFormat& format) {
  const TensorRules rules = tensor_rules(d.family, Container::gguf, "");
  std::vector<WeightInfo> weights;
  const auto wanted = [&](const std::string& name) {
    if (name == "output.weight") return !d.tied_head;
    if (!name.ends_with(".bias")) return true;
    if (name == "output.bias") return d.head_bias;
    if (name == "attn_output.bias") return d.attention_output_bias;
    if (name.starts_with("ffn_norm") || name.ends_with("_norm.bias")) return d.norm_bias;
    return name.starts_with("ffn_") ? d.mlp_bias : d.qkv_bias;
  };
  const auto add = [&](const std::string& prefix, const TensorRule& rule) {
    for (const std::string& part : rule.parts) {
      if (!wanted(part)) continue;
      std::vector<std::int64_t> shape = canonical_shape(d, part);
      const bool vector = shape.size() == 1;
      weights.push_back({prefix + part, vector ? &weight_format(WeightFormatId::f32) : &format,
                         std::move(shape)});
    }
  };
  for (const TensorRule& rule : rules.global) add("", rule);
  for (std::size_t layer = 0; layer < d.layers.size(); ++layer) {
    for (const TensorRule& rule : rules.layer) add(fmt::format("blk.{}.", layer), rule);
  }
  return weights;
}

ModelFile::ModelFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
ModelFile::ModelFile(ModelFile&&) noexcept = default;
ModelFile& ModelFile::operator=(ModelFile&&) noexcept = default;
ModelFile::~ModelFile() = default;

ModelFile ModelFile::open(const fs::path& path) {
  TensorFile file = TensorFile::open(path);
  if (file.container() == Container::gguf) return from_gguf(std::move(file));
  auto state = std::make_unique<State>(std::move(file));
  const fs::path folder = model_folder(path);
  const std::string config = read_text_file(folder / "config.json", kMaxConfigBytes);
  std::error_code error;
  const fs::path generation = folder / "generation_config.json";
  state->description = describe_hugging_face(
      config, fs::exists(generation, error) ? read_text_file(generation, kMaxConfigBytes) : "");
  const std::string prefix = find_prefix(path.string(), state->file, state->description.family);
  state->collect(path.string(), prefix);
  return ModelFile(std::move(state));
}

ModelFile ModelFile::from_gguf(TensorFile file) {
  if (file.container() != Container::gguf) {
    throw InvalidArgument("from_gguf: file: expected a GGUF file");
  }
  auto state = std::make_unique<State>(std::move(file));
  state->description = describe_gguf(state->file);
  state->collect(state->file.files().front().string(), "");
  return ModelFile(std::move(state));
}

void ModelFile::State::collect(const std::string& name, const std::string& prefix) {
  Collector collector(name, file, description);
  collector.run(tensor_rules(description.family, file.container(), prefix));
  weights = std::move(collector.weights);
  sources = std::move(collector.sources);
  for (std::size_t i = 0; i < weights.size(); ++i) by_name[weights[i].name] = i;
  description.norm_bias = by_name.contains("output_norm.bias");
  description.qkv_bias = by_name.contains("blk.0.attn_q.bias");
  description.attention_output_bias = by_name.contains("blk.0.attn_output.bias");
  description.mlp_bias = by_name.contains("blk.0.ffn_up.bias");
  description.head_bias = by_name.contains("output.bias");
}

const ModelDescription& ModelFile::description() const { return state_->description; }
const TensorFile& ModelFile::file() const { return state_->file; }
std::span<const WeightInfo> ModelFile::weights() const { return state_->weights; }

bool ModelFile::has(std::string_view name) const { return state_->by_name.contains(name); }

Weight ModelFile::load(std::string_view name) const {
  auto found = state_->by_name.find(name);
  if (found == state_->by_name.end() && name == "output.weight" && state_->description.tied_head) {
    found = state_->by_name.find("token_embd.weight");
  }
  if (found == state_->by_name.end()) {
    throw InvalidArgument(fmt::format("load: name: the model has no weight '{}'", printable(name)));
  }
  const WeightInfo& info = state_->weights[found->second];
  const Source& source = state_->sources[found->second];
  const WeightFormat& stored = *source.tensor->format;
  Weight weight{info.format, info.shape, {}, nullptr};
  const std::int64_t rows = info.shape[0];
  const std::int64_t bytes = rows * source.layout.row_bytes;
  const bool vector = info.shape.size() == 1;
  const bool in_place =
      source.layout.op == TensorOp::none || source.layout.op == TensorOp::minus_one;
  const std::byte* const begin =
      source.tensor->data.data() + (in_place ? source.begin * source.layout.row_bytes : 0);
  if (source.layout.op != TensorOp::minus_one && in_place && stored.id == info.format->id &&
      is_aligned(begin, stored)) {
    weight.data = {begin, static_cast<std::size_t>(bytes)};
    return weight;
  }
  auto rows_in_order = std::make_shared<std::byte[]>(static_cast<std::size_t>(bytes));
  load_rows(source.layout, source.tensor->data, source.part, source.begin, rows,
            rows_in_order.get());
  if (!vector) {
    weight.data = {rows_in_order.get(), static_cast<std::size_t>(bytes)};
    weight.owner = std::move(rows_in_order);
    return weight;
  }
  auto values = std::make_shared<std::byte[]>(static_cast<std::size_t>(rows) * 4);
  auto* const floats = reinterpret_cast<float*>(values.get());
  stored.decode(rows_in_order.get(), rows, floats);
  if (source.layout.op == TensorOp::minus_one) {
    for (std::int64_t i = 0; i < rows; ++i) floats[i] += 1.0F;
  }
  weight.data = {values.get(), static_cast<std::size_t>(rows) * 4};
  weight.owner = std::move(values);
  return weight;
}

ConstTensorView Weight::view() const {
  if (!format->dtype) {
    throw InvalidArgument(fmt::format("view: {} is a format of blocks", format->name));
  }
  return make_view(static_cast<const void*>(data.data()), shape, *format->dtype);
}

}  // namespace touchstone::inline v0::io
