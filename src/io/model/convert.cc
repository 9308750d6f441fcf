#include "touchstone/io/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "io/container/gguf_types.h"
#include "io/container/storage_types.h"
#include "io/container/tensor_file_state.h"
#include "io/json_document.h"
#include "io/mapped_file.h"
#include "io/model/convert_check.h"
#include "io/model/convert_metadata.h"
#include "io/model/convert_ternary.h"
#include "io/model/model_source.h"
#include "touchstone/core/error.h"
#include "touchstone/io/chat_template.h"
#include "touchstone/io/model_file.h"
#include "touchstone/io/ternary_file.h"

namespace touchstone::inline v0::io {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxTokenizerBytes = std::size_t{256} << 20;
constexpr std::int64_t kRowsAtOnce = 64;

bool is_gguf_path(const fs::path& path) { return path.extension() == ".gguf"; }

void add_note(ConvertReport& report, const std::string& note) {
  if (std::find(report.notes.begin(), report.notes.end(), note) == report.notes.end()) {
    report.notes.push_back(note);
  }
}

// The format of a matrix with rows of `columns`.
const WeightFormat& matrix_format(const std::string& tensor, const WeightFormat& source,
                                  std::int64_t columns, Container container,
                                  const ConvertOptions& options, ConvertReport& report) {
  const auto held = [&](const WeightFormat& format) {
    const StorageType* const type = storage_type_named(format.name);
    return type != nullptr &&
           (container == Container::gguf ? type->gguf >= 0 : !type->safetensors.empty());
  };
  const WeightFormat* wanted = options.format != nullptr ? options.format : &source;
  if (!held(*wanted)) {
    if (options.format != nullptr) {
      throw InvalidArgument(
          fmt::format("convert: format: {} has no {}", name_of(container), wanted->name));
    }
    // Blocks in safetensors, fp8 in GGUF: values are kept.
    wanted = &weight_format(wanted->block_elements > 1 ? WeightFormatId::f32 : WeightFormatId::f16);
    add_note(report, fmt::format("{} becomes {}: {} has no {}", source.name, wanted->name,
                                 name_of(container), source.name));
  }
  if (wanted->ternary && columns % wanted->block_elements != 0) {
    throw InvalidArgument(
        fmt::format("convert: tensor '{}': rows of {} are no whole groups of {} for {}", tensor,
                    columns, wanted->block_elements, wanted->name));
  }
  for (const WeightFormatId id : {wanted->id, WeightFormatId::q8_0, WeightFormatId::f16}) {
    const WeightFormat& format = weight_format(id);
    if (columns % format.block_elements != 0) continue;
    if (id != wanted->id) {
      add_note(report,
               fmt::format("matrices with rows of {} become {}: blocks of {} do not divide them",
                           columns, format.name, wanted->name));
    }
    return format;
  }
  return source;
}

// What messages of encode_weights begin with.
constexpr std::string_view kEncoder = "encode_weights: from: ";

// Rows of a weight in another format, a few at a time.
void convert_rows(const std::string& tensor, const Weight& weight, const WeightFormat& to,
                  float shift, std::optional<TernaryScaleRule> project, std::byte* out) {
  const std::int64_t columns = weight.shape.size() == 1 ? weight.shape[0] : weight.shape[1];
  const std::int64_t rows = weight.shape.size() == 1 ? 1 : weight.shape[0];
  if (weight.format->id == to.id && shift == 0) {
    if (!weight.data.empty()) std::memcpy(out, weight.data.data(), weight.data.size());
    return;
  }
  const auto from_bytes = static_cast<std::size_t>(weight_bytes(*weight.format, columns));
  const auto to_bytes = static_cast<std::size_t>(weight_bytes(to, columns));
  std::vector<float> values;
  for (std::int64_t row = 0; row < rows; row += kRowsAtOnce) {
    const auto count = static_cast<std::size_t>(std::min(kRowsAtOnce, rows - row));
    values.resize(count * static_cast<std::size_t>(columns));
    const auto at = static_cast<std::size_t>(row);
    decode_weights(*weight.format, weight.data.subspan(at * from_bytes, count * from_bytes),
                   values);
    if (shift != 0) {
      for (float& value : values) value += shift;
    }
    const std::span<std::byte> bytes(out + at * to_bytes, count * to_bytes);
    if (to.ternary) {
      encode_ternary_rows(tensor, to, columns, row, values, project, bytes);
      continue;
    }
    try {
      encode_weights(to, values, bytes);
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(fmt::format("convert: tensor '{}': rows from {} on: {}", tensor, row,
                                        std::string_view(error.what()).substr(kEncoder.size())));
    }
  }
}

// Vectors go to safetensors in the type of the matrices where that loses nothing, so that a model
// that came from there gets its bytes back.
const WeightFormat& vector_format(const Weight& weight, float shift, const WeightFormat& matrices) {
  const WeightFormat& f32 = weight_format(WeightFormatId::f32);
  if (matrices.id != WeightFormatId::bf16 && matrices.id != WeightFormatId::f16) return f32;
  std::vector<float> values(static_cast<std::size_t>(weight.shape[0]));
  decode_weights(*weight.format, weight.data, values);
  for (float& value : values) value += shift;
  std::vector<std::byte> bytes(values.size() * 2);
  // Not by encode_weights: what becomes infinite is not refused here, it is no such vector.
  matrices.encode(values.data(), std::ssize(values), bytes.data());
  std::vector<float> back(values.size());
  decode_weights(matrices, bytes, back);
  return std::memcmp(values.data(), back.data(), values.size() * 4) == 0 ? matrices : f32;
}

// The tensors of a model in the layout of a container.
class Output {
 public:
  Output(const ModelFile& model, Container container, const ConvertOptions& options,
         ConvertReport& report)
      : model_(model), container_(container), options_(options), report_(report) {
    const ModelFamily family = model.description().family;
    const TensorRules rules = tensor_rules(family, container, known_prefixes(family)[0]);
    matrices_ = model.load("blk.0.attn_q.weight").format;
    for (const TensorRule& rule : rules.global) add(rule, "", rule.stored);
    for (std::size_t layer = 0; layer < model.description().layers.size(); ++layer) {
      for (const TensorRule& rule : rules.layer) {
        add(rule, fmt::format("blk.{}.", layer),
            fmt::format(fmt::runtime(rules.layer_prefix), layer) + rule.stored);
      }
    }
    if (container == Container::gguf) add_rope_factors();
  }

  std::vector<OutputTensor> tensors;
  std::string torch_dtype() const {
    const std::string_view type = matrix_type_;
    return type == "bf16"  ? "bfloat16"
           : type == "f16" ? "float16"
           : type == "f64" ? "float64"
                           : "float32";
  }

 private:
  void add(const TensorRule& rule, const std::string& prefix, const std::string& stored) {
    const std::string first = prefix + rule.parts[0];
    if (!model_.has(first)) return;  // an optional bias, or a tied head
    std::vector<std::string> parts;
    std::vector<std::int64_t> shape;
    for (const std::string& part : rule.parts) {
      const auto part_shape = canonical_shape(model_.description(), part);
      if (shape.empty()) {
        shape = part_shape;
      } else {
        shape[0] += part_shape[0];
      }
      parts.push_back(prefix + part);
    }
    const bool vector = shape.size() == 1;
    const float shift = rule.op == TensorOp::minus_one ? -1.0F : 0.0F;
    const WeightFormat& format = format_of(rule, parts[0], shape, vector, shift);
    const RowLayout layout =
        layout_of(rule, model_.description(), format, shape[0], vector ? 1 : shape[1]);
    OutputTensor tensor;
    tensor.name = stored;
    tensor.type = format.name;
    tensor.shape = shape;
    if (rule.op == TensorOp::transposed) std::swap(tensor.shape[0], tensor.shape[1]);
    const auto bytes = static_cast<std::size_t>(shape[0] * layout.row_bytes);
    report_.bytes += bytes;
    const ModelFile* const model = &model_;
    const auto project = options_.project;
    tensor.data = [=, &format](std::vector<std::byte>& scratch) -> std::span<const std::byte> {
      scratch.resize(bytes);
      std::vector<std::byte> part_bytes;
      std::int64_t begin = 0;
      std::int64_t index = 0;
      for (const std::string& part : parts) {
        const Weight weight = model->load(part);
        part_bytes.resize(static_cast<std::size_t>(weight.shape[0] * layout.row_bytes));
        convert_rows(part, weight, format, shift, project, part_bytes.data());
        store_rows(layout, scratch, index++, begin, weight.shape[0], part_bytes.data());
        begin += weight.shape[0];
      }
      return scratch;
    };
    tensors.push_back(std::move(tensor));
  }

  const WeightFormat& format_of(const TensorRule& rule, const std::string& part,
                                const std::vector<std::int64_t>& shape, bool vector, float shift) {
    if (vector) {
      if (container_ == Container::gguf) return weight_format(WeightFormatId::f32);
      const WeightFormat& wanted = options_.format != nullptr ? *options_.format : *matrices_;
      return vector_format(model_.load(part), shift, wanted);
    }
    (void)rule;
    const WeightFormat* const stored = model_.load(part).format;
    const WeightFormat& format =
        matrix_format(part, *stored, shape[1], container_, options_, report_);
    matrix_type_ = format.name;
    return format;
  }

  // Factors that readers of GGUF expect as tensors.
  void add_rope_factors() {
    const RopeDescription& rope = model_.description().rope;
    const auto one = [&](const char* name, const std::vector<float>& values) {
      OutputTensor tensor;
      tensor.name = name;
      tensor.type = "f32";
      tensor.shape = {static_cast<std::int64_t>(values.size())};
      tensor.data = [&values](std::vector<std::byte>&) { return std::as_bytes(std::span(values)); };
      tensors.push_back(std::move(tensor));
    };
    if (rope.scaling == RopeScaling::llama3) one("rope_freqs.weight", rope.factors);
    if (rope.scaling == RopeScaling::longrope) {
      one("rope_factors_long.weight", rope.long_factors);
      one("rope_factors_short.weight", rope.factors);
    }
  }

  const ModelFile& model_;
  Container container_;
  const ConvertOptions& options_;
  ConvertReport& report_;
  const WeightFormat* matrices_ = nullptr;
  std::string_view matrix_type_ = "f32";
};

GgufMetadata metadata_for_gguf(const ModelFile& model, const fs::path& in, ConvertReport& report) {
  if (model.file().container() == Container::gguf) {
    GgufMetadata out;
    for (const MetadataValue& value : model.file().metadata()) {
      // Said of the old tensors.
      if (value.key() == "general.alignment" || value.key() == "general.file_type" ||
          value.key() == kGgufQ2_0Block || value.key().starts_with("ternary.") ||
          value.key().starts_with("split.")) {
        continue;
      }
      out.set(value);
    }
    return out;
  }
  GgufMetadata out = gguf_metadata(model.description());
  const fs::path folder = model_folder(in);
  std::error_code error;
  if (fs::exists(folder / "tokenizer.json", error)) {
    out.set("tokenizer.huggingface.json",
            std::string_view(read_text_file(folder / "tokenizer.json", kMaxTokenizerBytes)));
    report.notes.push_back(
        "the vocabulary is kept as tokenizer.huggingface.json, which not every reader of GGUF "
        "knows");
  } else if (fs::exists(folder / "tokenizer.gguf", error)) {
    const TensorFile vocabulary = TensorFile::open(folder / "tokenizer.gguf");
    const GgufMetadata keys = std::exchange(out, {});
    for (const GgufMetadata::Entry& entry : keys.entries()) {
      if (!entry.key.starts_with("tokenizer.")) out.set(entry);
    }
    for (const MetadataValue& value : vocabulary.metadata()) {
      if (value.key().starts_with("tokenizer.")) out.set(value);
    }
    return out;
  } else {
    report.notes.push_back("no tokenizer.json beside the model: no vocabulary in the file");
  }
  if (const std::optional<std::string> text = read_chat_template(in)) {
    out.set("tokenizer.chat_template", std::string_view(*text));
  }
  return out;
}

// The vocabulary of a GGUF file for a folder.
void write_vocabulary(const TensorFile& file, const fs::path& out, ConvertReport& report) {
  if (const MetadataValue* const text = file.find_metadata("tokenizer.chat_template")) {
    write_text_file(out / "chat_template.jinja", text->as_string());
  }
  if (const MetadataValue* const json = file.find_metadata("tokenizer.huggingface.json")) {
    write_text_file(out / "tokenizer.json", json->as_string());
    return;
  }
  GgufMetadata vocabulary;
  for (const MetadataValue& value : file.metadata()) {
    if (value.key().starts_with("tokenizer.") || value.key() == "general.architecture" ||
        value.key() == "general.name") {
      vocabulary.set(value);
    }
  }
  if (file.find_metadata("tokenizer.ggml.tokens") == nullptr) return;
  write_gguf(out / "tokenizer.gguf", vocabulary, {});
  report.notes.push_back("the vocabulary is kept as tokenizer.gguf, without tensors");
}

constexpr std::string_view kVocabularyFiles[] = {
    "tokenizer.json",  "tokenizer_config.json", "special_tokens_map.json",
    "tokenizer.model", "chat_template.jinja",   "vocab.json",
    "merges.txt",      "tokenizer.gguf"};

void copy_vocabulary(const fs::path& in, const fs::path& out) {
  for (const std::string_view name : kVocabularyFiles) {
    std::error_code error;
    if (fs::exists(in / name, error))
      write_text_file(out / name, read_text_file(in / name, kMaxTokenizerBytes));
  }
}

// The folder that a conversion makes. What is in it when it ends without finish() is removed, and
// so are the folders that were made for it.
class OutputFolder {
 public:
  explicit OutputFolder(fs::path out) : out_(std::move(out)) {
    check();
    std::error_code error;
    fs::path path = fs::absolute(out_, error).lexically_normal();
    if (!path.has_filename()) path = path.parent_path();  // written with a slash at its end
    // A link that leads nowhere is there, too.
    while (!fs::exists(fs::symlink_status(path, error)) && path != path.parent_path()) {
      made_.push_back(path);
      path = path.parent_path();
    }
    fs::create_directories(out_, error);
    if (!error) return;
    const std::string reason = error.message();
    remove_made();
    throw FileError(out_.string() + ": " + reason);
  }
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;
  ~OutputFolder() {
    if (finished_) return;
    // Names that a conversion writes: the folder may have got others meanwhile.
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(out_, ignored)) {
      const std::string name = entry.path().filename().string();
      const bool weights = name.starts_with("model") && (name.ends_with(".safetensors") ||
                                                         name.ends_with(".safetensors.index.json"));
      if (weights || name == "config.json" || name == "generation_config.json" ||
          std::ranges::find(kVocabularyFiles, name) != std::end(kVocabularyFiles)) {
        fs::remove(entry.path(), ignored);
      }
    }
    remove_made();
  }
  void finish() { finished_ = true; }

 private:
  void check() const;
  void remove_made() const {
    std::error_code ignored;
    for (const fs::path& path : made_) fs::remove(path, ignored);  // not where something is in it
  }

  fs::path out_;
  std::vector<fs::path> made_;  // the innermost first
  bool finished_ = false;
};

void OutputFolder::check() const {
  const fs::path& out = out_;
  for (const char* const ending :
       {".safetensors", ".bin", ".pt", ".pth", ".json", ".onnx", ".GGUF"}) {
    if (out.extension() == ending) {
      throw InvalidArgument(fmt::format(
          "convert: out: expected NAME.gguf, or a folder for safetensors, got {}", out.string()));
    }
  }
  std::error_code error;
  if (fs::exists(out, error) && (!fs::is_directory(out, error) || !fs::is_empty(out, error))) {
    throw InvalidArgument(fmt::format(
        "convert: out: {} is there already; expected a new or empty folder", out.string()));
  }
}

// A file of tensors that is no model.
ConvertReport convert_tensors(const TensorFile& file, const fs::path& out,
                              const ConvertOptions& options) {
  ConvertReport report;
  const Container container = is_gguf_path(out) ? Container::gguf : Container::safetensors;
  if (container == Container::safetensors && out.extension() != ".safetensors") {
    throw InvalidArgument(
        "convert: out: of tensors that are no model expected *.safetensors or *.gguf");
  }
  if (options.max_shard_bytes != 0) {
    throw InvalidArgument(
        "convert: shards: expected a model, tensors that are none go to one file");
  }
  std::vector<OutputTensor> tensors;
  for (const TensorInfo& tensor : file.tensors()) {
    OutputTensor output;
    output.name = tensor.name;
    output.type = tensor.type;
    output.shape = tensor.shape;
    const WeightFormat* format = tensor.format;
    if (format != nullptr && tensor.shape.size() >= 2) {
      format =
          &matrix_format(tensor.name, *format, tensor.shape.back(), container, options, report);
      output.type = format->name;
    }
    output.data = [&tensor, format, project = options.project](
                      std::vector<std::byte>& scratch) -> std::span<const std::byte> {
      if (format == tensor.format || format == nullptr) return tensor.data;
      if (tensor.elements() == 0) return {};
      Weight weight{tensor.format,
                    {tensor.elements() / tensor.shape.back(), tensor.shape.back()},
                    tensor.data,
                    nullptr};
      scratch.resize(static_cast<std::size_t>(weight_bytes(*format, tensor.elements())));
      convert_rows(tensor.name, weight, *format, 0, project, scratch.data());
      return scratch;
    };
    report.bytes += format == nullptr
                        ? tensor.data.size()
                        : static_cast<std::uint64_t>(weight_bytes(*format, tensor.elements()));
    tensors.push_back(std::move(output));
  }
  report.tensors = tensors.size();
  report.notes.push_back("no config.json and no general.architecture: tensors keep their names");
  if (container == Container::gguf) {
    GgufMetadata metadata;
    state_ternary(tensors, metadata);
    write_gguf(out, metadata, tensors, {.progress = options.progress});
  } else {
    SafetensorsOptions written;
    written.progress = options.progress;
    write_safetensors(out, tensors, written);
  }
  return report;
}

bool is_model(const TensorFile& file, const fs::path& in) {
  if (file.container() == Container::gguf)
    return file.find_metadata("general.architecture") != nullptr;
  std::error_code error;
  return fs::exists(model_folder(in) / "config.json", error);
}

}  // namespace

ConvertReport convert_model(const fs::path& in, const fs::path& out,
                            const ConvertOptions& options) {
  if (options.project && (options.format == nullptr || !options.format->ternary)) {
    throw InvalidArgument("convert: project: expected a ternary format");
  }
  if (options.format != nullptr && options.format->encode == nullptr) {
    throw InvalidArgument(
        fmt::format("convert: format: {} is read, not written", options.format->name));
  }
  if (is_gguf_path(out) && options.max_shard_bytes != 0) {
    throw InvalidArgument("convert: shards: expected a folder for safetensors, a GGUF is one file");
  }
  std::error_code error;
  if (fs::equivalent(in, out, error)) throw InvalidArgument("convert: out: is the same file as in");
  {
    const TensorFile file = TensorFile::open(in);
    if (!is_model(file, in)) return convert_tensors(file, out, options);
  }
  const ModelFile model = ModelFile::open(in);
  ConvertReport report;
  if (is_gguf_path(out)) {
    const Output output(model, Container::gguf, options, report);
    report.tensors = output.tensors.size();
    GgufMetadata metadata = metadata_for_gguf(model, in, report);
    state_ternary(output.tensors, metadata);
    check_gguf(model.description(), metadata, output.tensors);
    write_gguf(out, metadata, output.tensors, {.progress = options.progress});
    return report;
  }
  const Output output(model, Container::safetensors, options, report);
  report.tensors = output.tensors.size();
  const std::string config = config_json(model.description(), output.torch_dtype());
  const std::string generation = generation_json(model.description());
  check_config(model.description(), config, generation);
  OutputFolder folder(out);
  SafetensorsOptions written;
  written.metadata = {{"format", "pt"}};
  written.max_shard_bytes = options.max_shard_bytes;
  written.progress = options.progress;
  write_safetensors(
      out / (options.max_shard_bytes == 0 ? "model.safetensors" : "model.safetensors.index.json"),
      output.tensors, written);
  write_text_file(out / "config.json", config);
  write_text_file(out / "generation_config.json", generation);
  if (model.file().container() == Container::gguf) {
    write_vocabulary(model.file(), out, report);
  } else {
    copy_vocabulary(model_folder(in), out);
  }
  folder.finish();
  return report;
}

}  // namespace touchstone::inline v0::io
