// touchstone inspect: what is inside a model file or folder, tensor by tensor.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>

#include "cli/files/inspect_ternary.h"
#include "cli/files/shown.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "touchstone/core/error.h"
#include "touchstone/core/tensor.h"
#include "touchstone/io/chat_template.h"
#include "touchstone/io/model_file.h"
#include "touchstone/io/tensor_file.h"
#include "touchstone/io/tokenizer.h"

namespace touchstone::cli {
namespace {

namespace fs = std::filesystem;

struct InspectOptions {
  std::string path;
  bool json = false;
  bool checksums = false;
  bool metadata = false;
  bool show_template = false;
  bool ternary = false;
};

// Shown with line breaks kept.
std::string shown_lines(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    out += "  " + shown(text.substr(0, end), end) + "\n";
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

std::string value_text(const io::MetadataValue& value, std::size_t most) {
  using Type = io::MetadataValue::Type;
  if (value.is_array()) {
    return fmt::format("{} x {}", value.size(), io::name_of(value.element_type()));
  }
  switch (value.type()) {
    case Type::string:
      return shown(value.as_string(), most);
    case Type::boolean:
      return value.as_bool() ? "true" : "false";
    case Type::f32:
    case Type::f64:
      return fmt::format("{}", value.as_float());
    case Type::u64:
      return "u64";
    default:
      return fmt::format("{}", value.as_int());
  }
}

// u64 beyond the range of int64 is data, not an error.
std::string safe_value_text(const io::MetadataValue& value, std::size_t most) {
  if (value.type() != io::MetadataValue::Type::u64) return value_text(value, most);
  std::uint64_t number = 0;
  std::copy_n(value.data().begin(), sizeof number, reinterpret_cast<std::byte*>(&number));
  return fmt::format("{}", number);
}

std::string checksum_of(const io::TensorInfo& tensor) {
  return fmt::format("{:016x}", tensor.checksum());
}

// What there is of a tokenizer and a chat template. Names come from the file; the tokenizer is read as
// `tokenize` reads it, so that one that would be refused there is named here.
struct Vocabulary {
  std::string model;
  std::string pre;
  std::string description;
  std::string problem;  // why it cannot be used
  std::uint64_t tokens = 0;
  std::uint64_t merges = 0;
  std::string chat_template;
  std::string template_problem;
  bool any = false;
};

void read_tokenizer(const fs::path& path, Vocabulary& facts) {
  try {
    const io::Tokenizer tokenizer = io::Tokenizer::from_file(path);
    facts.description = tokenizer.describe();
    facts.tokens = tokenizer.size();
    facts.merges = tokenizer.merge_count();
  } catch (const Error& error) {
    facts.problem = error.what();
  }
}

void read_template(const fs::path& path, Vocabulary& facts) {
  try {
    facts.chat_template = io::read_chat_template(path).value_or("");
    if (!facts.chat_template.empty()) const io::ChatTemplate parsed(facts.chat_template);
  } catch (const Error& error) {
    facts.template_problem = error.what();
  }
}

Vocabulary vocabulary_of(const io::TensorFile& file, const fs::path& path) {
  Vocabulary facts;
  const auto text = [&](const char* key) -> std::string {
    const auto* const value = file.find_metadata(key);
    return value != nullptr && value->type() == io::MetadataValue::Type::string
               ? shown(value->as_string(), 60)
               : "";
  };
  facts.model = text("tokenizer.ggml.model");
  facts.pre = text("tokenizer.ggml.pre");
  if (file.find_metadata("tokenizer.huggingface.json") != nullptr) {
    facts.model = "tokenizer.huggingface.json";
  }
  std::error_code error;
  if (fs::is_directory(path, error)) {
    for (const char* const name : {"tokenizer.gguf", "tokenizer.json"}) {
      if (fs::exists(path / name, error)) facts.model = name;
    }
  }
  if (!facts.model.empty()) read_tokenizer(path, facts);
  read_template(path, facts);
  facts.any =
      !facts.model.empty() || !facts.chat_template.empty() || !facts.template_problem.empty();
  return facts;
}

void print_vocabulary(const Vocabulary& facts) {
  const auto line = [](const char* key, const std::string& value) {
    print(fmt::format("  {:<22}{}\n", key, value));
  };
  print("\ntokenizer\n");
  if (!facts.model.empty()) {
    line("kind", facts.model + (facts.pre.empty() ? "" : ", " + facts.pre));
  }
  if (!facts.description.empty()) line("steps", shown(facts.description, 200));
  if (!facts.problem.empty()) line("refused", shown(facts.problem, 400));
  if (facts.tokens != 0) line("tokens", std::to_string(facts.tokens));
  if (facts.merges != 0) line("merges", std::to_string(facts.merges));
  line("chat template",
       facts.chat_template.empty() ? "none" : fmt::format("{} bytes", facts.chat_template.size()));
  if (!facts.template_problem.empty()) line("refused", shown(facts.template_problem, 400));
}

struct Inspection {
  explicit Inspection(const fs::path& path)
      : file(io::TensorFile::open(path)), vocabulary(vocabulary_of(file, path)) {
    try {
      const io::ModelFile model = io::ModelFile::open(path);
      description = io::describe(model.description());
      weights = model.weights().size();
    } catch (const Error& error) {
      not_a_model = error.what();
    }
  }

  io::TensorFile file;
  Vocabulary vocabulary;
  std::vector<std::pair<std::string, std::string>> description;
  std::size_t weights = 0;
  std::string not_a_model;  // why there is no description
};

void print_text(const Inspection& inspection, const InspectOptions& options) {
  const io::TensorFile& file = inspection.file;
  print(fmt::format("{}: {}, {} file{}, {}, {} tensors\n", shown(options.path, 200),
                    io::name_of(file.container()), file.files().size(),
                    file.files().size() == 1 ? "" : "s",
                    bytes_string(static_cast<std::int64_t>(file.bytes())), file.tensors().size()));
  if (inspection.not_a_model.empty()) {
    print("\nmodel\n");
    for (const auto& [key, value] : inspection.description) {
      print(fmt::format("  {:<22}{}\n", key, shown(value, 200)));
    }
  } else {
    print(fmt::format("\nno model description: {}\n", shown(inspection.not_a_model, 400)));
  }
  if (inspection.vocabulary.any) print_vocabulary(inspection.vocabulary);
  if (options.show_template && !inspection.vocabulary.chat_template.empty()) {
    print("\nchat template\n" + shown_lines(inspection.vocabulary.chat_template) + "\n");
  }
  if (options.metadata) {
    print("\nmetadata\n");
    for (const io::MetadataValue& value : file.metadata()) {
      print(fmt::format("  {} = {}\n", shown(value.key(), 100), safe_value_text(value, 100)));
    }
  }
  std::map<std::string, std::pair<std::size_t, std::uint64_t>> by_type;
  std::vector<std::string> headings = {"tensor", "type", "shape", ">bytes"};
  if (options.checksums) headings.emplace_back("checksum");
  Table table(headings);
  for (const io::TensorInfo& tensor : file.tensors()) {
    std::vector<std::string> cells = {shown(tensor.name, 100), tensor.type,
                                      shape_string(tensor.shape),
                                      std::to_string(tensor.data.size())};
    if (options.checksums) cells.push_back(checksum_of(tensor));
    table.add(std::move(cells));
    auto& [count, bytes] = by_type[tensor.type];
    ++count;
    bytes += tensor.data.size();
  }
  print("\n" + table.text() + "\n");
  for (const auto& [type, sum] : by_type) {
    print(fmt::format("{:<10}{:>6} tensors {:>12}\n", type, sum.first,
                      bytes_string(static_cast<std::int64_t>(sum.second))));
  }
}

Json metadata_json(const io::MetadataValue& value) {
  using Type = io::MetadataValue::Type;
  Json entry = {{"key", value.key()}, {"type", std::string(io::name_of(value.type()))}};
  if (value.is_array()) {
    entry["element_type"] = std::string(io::name_of(value.element_type()));
    entry["size"] = value.size();
  } else if (value.type() == Type::string) {
    entry["value"] = std::string(value.as_string());
  } else if (value.type() == Type::boolean) {
    entry["value"] = value.as_bool();
  } else if (value.type() == Type::f32 || value.type() == Type::f64) {
    entry["value"] = value.as_float();
  } else {
    entry["value"] = safe_value_text(value, 100);
  }
  return entry;
}

void print_as_json(const Inspection& inspection, const InspectOptions& options) {
  const io::TensorFile& file = inspection.file;
  Json out = Json::object();
  out["path"] = options.path;
  out["container"] = std::string(io::name_of(file.container()));
  out["files"] = Json::array();
  for (const fs::path& path : file.files()) out["files"].push_back(path.string());
  out["bytes"] = file.bytes();
  if (inspection.not_a_model.empty()) {
    out["model"] = Json::object();
    for (const auto& [key, value] : inspection.description) out["model"][key] = value;
  } else {
    out["model"] = nullptr;
    out["model_error"] = inspection.not_a_model;
  }
  const Vocabulary& facts = inspection.vocabulary;
  out["tokenizer"] = {
      {"kind", facts.model},        {"pre", facts.pre},
      {"tokens", facts.tokens},     {"merges", facts.merges},
      {"steps", facts.description}, {"chat_template_bytes", facts.chat_template.size()}};
  if (!facts.problem.empty()) out["tokenizer"]["error"] = facts.problem;
  if (!facts.template_problem.empty()) out["tokenizer"]["template_error"] = facts.template_problem;
  if (options.show_template) out["chat_template"] = facts.chat_template;
  out["metadata"] = Json::array();
  for (const io::MetadataValue& value : file.metadata())
    out["metadata"].push_back(metadata_json(value));
  out["tensors"] = Json::array();
  for (const io::TensorInfo& tensor : file.tensors()) {
    Json entry = {{"name", tensor.name},
                  {"type", tensor.type},
                  {"shape", tensor.shape},
                  {"bytes", tensor.data.size()},
                  {"file", static_cast<std::int64_t>(tensor.file)}};
    if (options.checksums) entry["checksum"] = checksum_of(tensor);
    out["tensors"].push_back(std::move(entry));
  }
  print_json(out);
}

}  // namespace

void add_inspect(Options& app, int& exit_code) {
  auto options = std::make_shared<InspectOptions>();
  Options* verb =
      app.add_verb("inspect", "Show what is in a model file or folder, tensor by tensor");
  verb->add_option("path", options->path, "A safetensors or GGUF file, an index, or a folder")
      ->required();
  verb->add_flag("--checksums", options->checksums, "Read every tensor and print its checksum");
  verb->add_flag("--metadata", options->metadata, "Print the metadata of the file");
  verb->add_flag("--template", options->show_template, "Print the chat template");
  verb->add_flag("--ternary", options->ternary,
                 "Verify every group of ternary weights; fails if a group is not ternary or the "
                 "file has none");
  verb->add_flag("--json", options->json, "Print JSON");
  verb->callback([options, &exit_code] {
    if (options->ternary) {
      exit_code = inspect_ternary_file(options->path, options->json);
      return;
    }
    const Inspection inspection(options->path);
    if (options->json) {
      print_as_json(inspection, *options);
    } else {
      print_text(inspection, *options);
    }
    exit_code = kOk;
  });
}

}  // namespace touchstone::cli
