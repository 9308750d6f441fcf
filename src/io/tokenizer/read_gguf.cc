// The vocabulary of a GGUF file, out of its metadata.
#include <fmt/format.h>

#include "io/tokenizer/parts.h"
#include "touchstone/core/error.h"
#include "touchstone/io/tensor_file.h"

namespace touchstone::inline v0::io {
namespace {

class Keys {
 public:
  explicit Keys(const TensorFile& file) : file_(file) {}

  const MetadataValue* find(const char* key) const {
    return file_.find_metadata(std::string("tokenizer.ggml.") + key);
  }
  std::string text(const char* key) const {
    const MetadataValue* value = find(key);
    return value == nullptr ? "" : std::string(value->as_string());
  }
  std::optional<Token> token(const char* key) const {
    const MetadataValue* value = find(key);
    if (value == nullptr) return std::nullopt;
    const std::int64_t id = value->as_int();
    // "No such token" in files of old converters.
    if (id == -1 || id == 0xffffffffLL) return std::nullopt;
    if (id < 0 || id > 0x7fffffff) {
      throw CorruptData(fmt::format("{}: expected a token id, got {}", value->key(), id));
    }
    return static_cast<Token>(id);
  }
  std::optional<bool> flag(const char* key) const {
    const MetadataValue* value = find(key);
    return value == nullptr ? std::nullopt : std::optional(value->as_bool());
  }
  std::vector<std::string> texts(const char* key) const {
    const MetadataValue* value = find(key);
    if (value == nullptr) return {};
    const std::vector<std::string_view> views = value->strings();
    return {views.begin(), views.end()};
  }

 private:
  const TensorFile& file_;
};

}  // namespace

TokenizerVocabulary read_tokenizer_vocabulary(const TensorFile& file) {
  const Keys keys(file);
  if (keys.find("model") == nullptr || keys.find("tokens") == nullptr) {
    throw Unsupported(fmt::format("{}: no tokenizer in it: tokenizer.ggml.{} is missing",
                                  file.files().empty() ? "GGUF" : file.files()[0].string(),
                                  keys.find("model") == nullptr ? "model" : "tokens"));
  }
  TokenizerVocabulary out;
  const auto general = [&](const char* key) -> std::string {
    const MetadataValue* const value = file.find_metadata(key);
    return value == nullptr ? "" : std::string(value->as_string());
  };
  out.name = general("general.name");
  out.architecture = general("general.architecture");
  out.model = keys.text("model");
  out.pre = keys.text("pre");
  out.tokens = keys.texts("tokens");
  out.merges = keys.texts("merges");
  if (const MetadataValue* scores = keys.find("scores")) out.scores = scores->floats();
  if (const MetadataValue* types = keys.find("token_type")) {
    for (const std::int64_t type : types->integers()) {
      // What is out of range is refused with the rest of the checks.
      out.types.push_back(type < 0 || type > 100 ? 0 : static_cast<std::int32_t>(type));
    }
  }
  out.bos = keys.token("bos_token_id");
  out.eos = keys.token("eos_token_id");
  out.unknown = keys.token("unknown_token_id");
  out.separator = keys.token("seperator_token_id");  // as the format spells it
  out.padding = keys.token("padding_token_id");
  out.mask = keys.token("mask_token_id");
  out.cls = keys.token("cls_token_id");
  out.add_bos = keys.flag("add_bos_token");
  out.add_eos = keys.flag("add_eos_token");
  out.add_space_prefix = keys.flag("add_space_prefix");
  out.remove_extra_spaces = keys.flag("remove_extra_whitespaces");
  if (const MetadataValue* map = keys.find("precompiled_charsmap")) {
    if (!map->is_array() || (map->element_type() != MetadataValue::Type::u8 &&
                             map->element_type() != MetadataValue::Type::i8)) {
      throw CorruptData(fmt::format("{}: expected an array of bytes", map->key()));
    }
    const std::span<const std::byte> bytes = map->data();
    out.characters_map.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return out;
}

}  // namespace touchstone::inline v0::io
