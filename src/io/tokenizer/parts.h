// A tokenizer as its file describes it, before it is put together.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "io/json_document.h"
#include "io/tokenizer/added_tokens.h"
#include "io/tokenizer/decoder.h"
#include "io/tokenizer/model/bpe.h"
#include "io/tokenizer/model/unigram.h"
#include "io/tokenizer/normalizer.h"
#include "io/tokenizer/pre_tokenizer.h"
#include "touchstone/io/tokenizer.h"

namespace touchstone::inline v0::io {

struct WordLevel {
  TokenTable vocabulary;
  TokenId unknown;
};

using Model = std::variant<Bpe, Unigram, WordPiece, WordLevel>;

// A part of the ids of a text: the text itself, or a token around it.
struct TemplatePart {
  bool text = false;
  std::vector<TokenId> ids;
};

struct TokenizerParts {
  std::string name;  // of the file, for messages
  std::optional<Normalizer> normalizer;
  std::vector<PreTokenizer> pre_tokenizers;
  std::optional<Model> model;
  std::vector<AddedToken> added;   // in the order of the file; ids as declared
  std::vector<TemplatePart> post;  // empty: the text alone
  std::optional<Decoder> decoder;
};

// The bound of ids in a vocabulary of `tokens`: files have unused ids, but not many.
constexpr std::size_t id_limit(std::size_t tokens) { return 4 * tokens + 65536; }

TokenizerParts read_tokenizer_json(const std::string& name, std::string_view text);
TokenizerParts read_vocabulary(const TokenizerVocabulary& vocabulary);

// Steps of a tokenizer.json.
Normalizer read_normalizer(const JsonValue& value);
void read_pre_tokenizer(const JsonValue& value, std::vector<PreTokenizer>& steps);
Decoder read_decoder(const JsonValue& value);
std::vector<TemplatePart> read_post_processor(const JsonValue& value);
Model read_model(const JsonValue& value);
std::string base64_decoded(const JsonValue& value);

// The word rule of an expression, or the expression itself.
PreTokenizer split_step(const std::string& pattern);
PreTokenizer words_step(WordRule rule);
Normalizer replace_step(std::string literal, std::string with);

// Reading helpers: CorruptData for a value of another kind, Unsupported for a key that is not known.
void expect_keys(const JsonValue& value, std::initializer_list<std::string_view> keys);
bool flag_of(const JsonValue& value, std::string_view key);
bool flag_or(const JsonValue& value, std::string_view key, bool otherwise);
std::string text_of(const JsonValue& value, std::string_view key);
char32_t character_of(const JsonValue& value, std::string_view key);
std::size_t count_of(const JsonValue& value, std::string_view key);
Pattern pattern_of(const JsonValue& value);
TokenId id_of(const JsonValue& value);
[[noreturn]] void refuse(const JsonValue& value, const std::string& what);  // Unsupported

}  // namespace touchstone::inline v0::io
