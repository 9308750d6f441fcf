// Where a model keeps its chat template.
#include "io/json_document.h"
#include "io/mapped_file.h"
#include "io/model/model_source.h"
#include "touchstone/core/error.h"
#include "touchstone/io/chat_template.h"
#include "touchstone/io/tensor_file.h"

namespace touchstone::inline v0::io {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxTokenizerConfigBytes = std::size_t{64} << 20;

}  // namespace

std::optional<std::string> chat_template_of_config(const std::string& name, std::string_view text) {
  const JsonDocument config(name, text);
  const std::optional<JsonValue> found = config.root().find("chat_template");
  if (!found || found->is_null()) return std::nullopt;
  if (!found->is_array()) return std::string(found->as_string());
  for (const JsonValue entry : *found) {
    if (entry.at("name").as_string() == "default") {
      return std::string(entry.at("template").as_string());
    }
  }
  throw Unsupported(name + ": chat_template: a list without one named 'default'");
}

namespace {

std::optional<std::string> template_of_folder(const fs::path& folder) {
  std::error_code error;
  if (fs::exists(folder / "chat_template.jinja", error)) {
    return read_text_file(folder / "chat_template.jinja", TemplateLimits{}.max_source_bytes);
  }
  if (!fs::exists(folder / "tokenizer_config.json", error)) return std::nullopt;
  const fs::path config = folder / "tokenizer_config.json";
  return chat_template_of_config(config.string(), read_text_file(config, kMaxTokenizerConfigBytes));
}

}  // namespace

std::optional<std::string> read_chat_template(const fs::path& path) {
  std::error_code error;
  const bool is_folder = fs::is_directory(path, error);
  if (is_folder) {
    if (std::optional<std::string> text = template_of_folder(path)) return text;
  }
  const TensorFile file = TensorFile::open(path);
  if (file.container() == Container::safetensors) {
    return is_folder ? std::nullopt : template_of_folder(path.parent_path());
  }
  const MetadataValue* const stored = file.find_metadata("tokenizer.chat_template");
  if (stored == nullptr) return std::nullopt;
  return std::string(stored->as_string());
}

}  // namespace touchstone::inline v0::io
