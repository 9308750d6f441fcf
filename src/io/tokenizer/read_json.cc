// tokenizer.json: the file as a whole, its models and added tokens.
#include <fmt/format.h>

#include <algorithm>

#include "io/tokenizer/parts.h"
#include "io/utf8.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::io {

void refuse(const JsonValue& value, const std::string& what) {
  throw Unsupported(fmt::format("tokenizer: {}: {}", value.path(), what));
}

void expect_keys(const JsonValue& value, std::initializer_list<std::string_view> keys) {
  if (!value.is_object()) value.fail("expected an object");
  for (const JsonValue member : value) {
    if (std::ranges::find(keys, member.key()) != keys.end()) continue;
    refuse(value, fmt::format("the key {} is not known", json_quote(member.key().substr(0, 60))));
  }
}

bool flag_of(const JsonValue& value, std::string_view key) { return value.at(key).as_bool(); }

bool flag_or(const JsonValue& value, std::string_view key, bool otherwise) {
  const auto found = value.find(key);
  return found && !found->is_null() ? found->as_bool() : otherwise;
}

std::string text_of(const JsonValue& value, std::string_view key) {
  return std::string(value.at(key).as_string());
}

char32_t character_of(const JsonValue& value, std::string_view key) {
  const JsonValue member = value.at(key);
  const std::string_view text = member.as_string();
  if (text.empty() || utf8_length(text[0]) != text.size()) member.fail("expected one character");
  const char* p = text.data();
  return next_code(p);
}

std::size_t count_of(const JsonValue& value, std::string_view key) {
  const JsonValue member = value.at(key);
  const std::int64_t count = member.as_int();
  if (count < 0) member.fail(fmt::format("expected a count, got {}", count));
  return static_cast<std::size_t>(count);
}

TokenId id_of(const JsonValue& value) {
  const std::int64_t id = value.as_int();
  if (id < 0 || id > 0x7fffffff)
    value.fail(fmt::format("expected an id from 0 to 2^31 - 1, got {}", id));
  return static_cast<TokenId>(id);
}

Pattern pattern_of(const JsonValue& value) {
  if (value.size() != 1) value.fail("expected one of \"String\" and \"Regex\"");
  const JsonValue inner = *value.begin();
  Pattern pattern;
  if (inner.key() == "String") {
    pattern.literal = inner.as_string();
    if (pattern.literal.empty()) refuse(value, "an empty pattern");
  } else if (inner.key() == "Regex") {
    try {
      pattern.regex = std::make_shared<const Regex>(inner.as_string());
    } catch (const Unsupported& error) {
      refuse(value, error.what());
    }
  } else {
    refuse(value, fmt::format("a pattern of kind {}", json_quote(inner.key().substr(0, 60))));
  }
  return pattern;
}

std::string base64_decoded(const JsonValue& value) {
  std::string_view text = value.as_string();
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string out;
  out.reserve(text.size() / 4 * 3 + 3);
  std::uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const int digit = c >= 'A' && c <= 'Z'   ? c - 'A'
                      : c >= 'a' && c <= 'z' ? c - 'a' + 26
                      : c >= '0' && c <= '9' ? c - '0' + 52
                      : c == '+'             ? 62
                      : c == '/'             ? 63
                                             : -1;
    if (digit < 0) value.fail("not base64");
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out += static_cast<char>(bits >> count & 0xff);
  }
  return out;
}

namespace {

TokenTable read_vocabulary_object(const JsonValue& value) {
  if (!value.is_object()) value.fail("expected an object of tokens and ids");
  TokenTable table(value.size(), id_limit(value.size()));
  for (const JsonValue member : value) {
    const TokenId id = id_of(member);
    if (table.add(member.key(), id)) continue;
    if (table.text(id)) value.fail(fmt::format("the id {} is there twice", id));
    value.fail(fmt::format("the id {} among {} tokens, at most {}", id, value.size(),
                           id_limit(value.size())));
  }
  return table;
}

Bpe::Merges read_merges(const JsonValue& value) {
  if (!value.is_array()) value.fail("expected an array");
  Bpe::Merges merges;
  merges.reserve(value.size());
  for (const JsonValue merge : value) {
    if (merge.is_array()) {
      if (merge.size() != 2) merge.fail("expected two tokens");
      auto part = merge.begin();
      const std::string_view left = (*part).as_string();
      ++part;
      merges.emplace_back(left, (*part).as_string());
      continue;
    }
    const std::string_view line = merge.as_string();
    if (line.starts_with("#version")) continue;
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
      merge.fail("expected two tokens with one space between them");
    }
    merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  }
  return merges;
}

std::string optional_text(const JsonValue& value, std::string_view key) {
  const auto found = value.find(key);
  return found && !found->is_null() ? std::string(found->as_string()) : std::string();
}

Model read_bpe(const JsonValue& value) {
  expect_keys(value,
              {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
               "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
  const auto dropout = value.find("dropout");
  if (dropout && !dropout->is_null() && dropout->as_double() != 0) {
    refuse(*dropout, "random merges (dropout)");
  }
  BpeOptions options;
  const auto unknown = value.find("unk_token");
  if (unknown && !unknown->is_null()) options.unknown = std::string(unknown->as_string());
  options.prefix = optional_text(value, "continuing_subword_prefix");
  options.suffix = optional_text(value, "end_of_word_suffix");
  options.fuse_unknown = flag_or(value, "fuse_unk", false);
  options.byte_fallback = flag_or(value, "byte_fallback", false);
  options.ignore_merges = flag_or(value, "ignore_merges", false);
  const JsonValue merges = value.at("merges");
  return Bpe(read_vocabulary_object(value.at("vocab")), read_merges(merges), std::move(options));
}

Model read_unigram(const JsonValue& value) {
  expect_keys(value, {"type", "unk_id", "vocab", "byte_fallback"});
  const JsonValue list = value.at("vocab");
  if (!list.is_array()) list.fail("expected an array of tokens and scores");
  TokenTable table(list.size(), list.size());
  std::vector<double> scores;
  scores.reserve(list.size());
  for (const JsonValue entry : list) {
    if (!entry.is_array() || entry.size() != 2) entry.fail("expected a token and its score");
    auto part = entry.begin();
    table.add((*part).as_string(), static_cast<TokenId>(scores.size()));
    ++part;
    scores.push_back((*part).as_double());
  }
  std::optional<TokenId> unknown;
  const auto declared = value.find("unk_id");
  if (declared && !declared->is_null()) {
    unknown = id_of(*declared);
    if (*unknown >= scores.size()) declared->fail("not an id of the vocabulary");
  }
  return Unigram(std::move(table), std::move(scores), unknown,
                 flag_or(value, "byte_fallback", false));
}

TokenId unknown_of(const JsonValue& value, const TokenTable& table, std::string_view otherwise) {
  const auto found = value.find("unk_token");
  const std::string_view token = found ? found->as_string() : otherwise;
  const TokenId id = table.find(token);
  if (id == kNoToken) {
    value.fail(fmt::format("the unknown token {} is not in the vocabulary",
                           json_quote(token.substr(0, 60))));
  }
  return id;
}

Model read_word_piece(const JsonValue& value) {
  expect_keys(value, {"type", "unk_token", "continuing_subword_prefix", "max_input_chars_per_word",
                      "vocab"});
  TokenTable table = read_vocabulary_object(value.at("vocab"));
  const TokenId unknown = unknown_of(value, table, "[UNK]");
  const auto prefix = value.find("continuing_subword_prefix");
  const std::size_t most =
      value.find("max_input_chars_per_word") ? count_of(value, "max_input_chars_per_word") : 100;
  return WordPiece(std::move(table), unknown, prefix ? prefix->as_string() : "##", most);
}

Model read_word_level(const JsonValue& value) {
  expect_keys(value, {"type", "unk_token", "vocab"});
  TokenTable table = read_vocabulary_object(value.at("vocab"));
  const TokenId unknown = unknown_of(value, table, "<unk>");
  return WordLevel{std::move(table), unknown};
}

// Files of the first years do not say what they are.
std::string_view guessed_type(const JsonValue& value) {
  if (value.find("merges")) return "BPE";
  const auto vocab = value.find("vocab");
  if (vocab && vocab->is_array()) return "Unigram";
  return value.find("continuing_subword_prefix") ? "WordPiece" : "WordLevel";
}

std::vector<AddedToken> read_added(const JsonValue& value) {
  std::vector<AddedToken> added;
  if (!value.is_array()) value.fail("expected an array");
  for (const JsonValue entry : value) {
    expect_keys(entry,
                {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    added.push_back({.text = text_of(entry, "content"),
                     .id = id_of(entry.at("id")),
                     .single_word = flag_of(entry, "single_word"),
                     .left_strip = flag_of(entry, "lstrip"),
                     .right_strip = flag_of(entry, "rstrip"),
                     .normalized = flag_of(entry, "normalized"),
                     .special = flag_of(entry, "special")});
  }
  return added;
}

}  // namespace

Model read_model(const JsonValue& value) {
  if (!value.is_object()) value.fail("expected an object");
  const auto declared = value.find("type");
  const std::string_view type = declared ? declared->as_string() : guessed_type(value);
  if (type == "BPE") return read_bpe(value);
  if (type == "Unigram") return read_unigram(value);
  if (type == "WordPiece") return read_word_piece(value);
  if (type == "WordLevel") return read_word_level(value);
  refuse(value, fmt::format("a model of type {}", json_quote(type.substr(0, 60))));
}

TokenizerParts read_tokenizer_json(const std::string& name, std::string_view text) {
  const JsonDocument document(name, text);
  const JsonValue root = document.root();
  expect_keys(root, {"version", "truncation", "padding", "added_tokens", "normalizer",
                     "pre_tokenizer", "post_processor", "decoder", "model"});
  const auto version = root.find("version");
  if (version && version->as_string() != "1.0") {
    refuse(*version, fmt::format("version {}", json_quote(version->as_string().substr(0, 60))));
  }
  TokenizerParts parts;
  parts.name = name;
  const auto present = [&](std::string_view key) {
    auto found = root.find(key);
    if (found && found->is_null()) found.reset();
    return found;
  };
  if (const auto value = present("normalizer")) parts.normalizer = read_normalizer(*value);
  if (const auto value = present("pre_tokenizer")) {
    read_pre_tokenizer(*value, parts.pre_tokenizers);
  }
  parts.model.emplace(read_model(root.at("model")));
  if (const auto value = present("added_tokens")) parts.added = read_added(*value);
  if (const auto value = present("post_processor")) parts.post = read_post_processor(*value);
  if (const auto value = present("decoder")) parts.decoder = read_decoder(*value);
  return parts;
}

}  // namespace touchstone::inline v0::io
