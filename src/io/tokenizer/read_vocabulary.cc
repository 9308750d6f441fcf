// The vocabularies of GGUF files.
#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "io/tokenizer/gguf_names.h"
#include "io/tokenizer/parts.h"
#include "io/utf8.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::io {
namespace {

using Type = TokenizerVocabulary::Type;
constexpr const char* kMark = "\xe2\x96\x81";  // U+2581 stands for a space

std::string key_name(const char* key) { return std::string("tokenizer: tokenizer.ggml.") + key; }

[[noreturn]] void fail(const char* key, const std::string& problem) {
  throw CorruptData(fmt::format("{}: {}", key_name(key), problem));
}

Type type_of(const TokenizerVocabulary& in, std::size_t i) {
  return in.types.empty() ? Type::normal : static_cast<Type>(in.types[i]);
}

bool is_byte_token(std::string_view token) {
  const auto is_digit = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'F') || (c >= 'a' && c <= 'f');
  };
  return token.size() == 6 && token.starts_with("<0x") && token.ends_with('>') &&
         is_digit(token[3]) && is_digit(token[4]);
}

void check(const TokenizerVocabulary& in) {
  const std::size_t count = in.tokens.size();
  if (count == 0 || count > 0x7fffffff) fail("tokens", fmt::format("{} tokens", count));
  if (!in.types.empty() && in.types.size() != count) {
    fail("token_type", fmt::format("{} types for {} tokens", in.types.size(), count));
  }
  if (!in.scores.empty() && in.scores.size() != count) {
    fail("scores", fmt::format("{} scores for {} tokens", in.scores.size(), count));
  }
  for (std::size_t i = 0; i < in.types.size(); ++i) {
    if (in.types[i] < 1 || in.types[i] > 6) {
      fail("token_type", fmt::format("{} at {}, expected 1 to 6", in.types[i], i));
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (find_invalid_utf8(in.tokens[i]) != std::string_view::npos) {
      fail("tokens", fmt::format("token {} is not UTF-8", i));
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (type_of(in, i) == Type::byte && !is_byte_token(in.tokens[i])) {
      fail("tokens", fmt::format("token {} is a byte, and {} is not <0x00> to <0xFF>", i,
                                 json_quote(in.tokens[i].substr(0, 60))));
    }
  }
  const auto check_id = [&](const char* key, std::optional<Token> id) {
    if (id && (*id < 0 || static_cast<std::size_t>(*id) >= count)) {
      fail(key, fmt::format("{}, expected an id below {}", *id, count));
    }
  };
  check_id("bos_token_id", in.bos);
  check_id("eos_token_id", in.eos);
  check_id("unknown_token_id", in.unknown);
  check_id("seperator_token_id", in.separator);
  check_id("cls_token_id", in.cls);
}

TokenTable table_of(const std::vector<std::string>& tokens) {
  TokenTable table(tokens.size(), tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i) table.add(tokens[i], static_cast<TokenId>(i));
  return table;
}

// Phi 3 takes the white space behind its tokens away, which GGUF has no key for: readers go by the name
// of the model.
bool strips_right(const TokenizerVocabulary& in, std::string_view token) {
  std::string name = in.name;
  std::ranges::transform(name, name.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
  if (name.find("phi-3") == std::string::npos && name.find("phi3") == std::string::npos)
    return false;
  return token != "<unk>" && token != "<s>" && token != "<|endoftext|>";
}

bool strips_left(const TokenizerVocabulary& in, std::string_view token) {
  const auto is_any = [](std::string_view text, std::initializer_list<std::string_view> names) {
    return std::ranges::any_of(
        names, [&](std::string_view name) { return text.find(name) != std::string_view::npos; });
  };
  return token == "<mask>" && (is_any(in.pre, {"jina-v2-de", "jina-v2-es", "jina-v2-code"}) ||
                               is_any(in.architecture, {"nomic-bert-moe", "jina-bert-v3"}));
}

// Tokens that are looked for in the text: control tokens, and those that the user defined.
void add_tokens(const TokenizerVocabulary& in, TokenizerParts& parts) {
  const TokenTable table = table_of(in.tokens);
  for (std::size_t i = 0; i < in.tokens.size(); ++i) {
    const Type type = type_of(in, i);
    const bool special = type == Type::control || type == Type::unknown;
    if (!special && type != Type::user_defined) continue;
    // Of a text that is there twice, the id by which it is found.
    if (table.find(in.tokens[i]) != i) continue;
    parts.added.push_back({.text = in.tokens[i],
                           .id = static_cast<TokenId>(i),
                           .left_strip = strips_left(in, in.tokens[i]),
                           .right_strip = strips_right(in, in.tokens[i]),
                           .normalized = false,
                           .special = special});
  }
}

void add_template(const TokenizerVocabulary& in, bool add_bos, bool add_eos,
                  TokenizerParts& parts) {
  add_bos = in.add_bos.value_or(add_bos);
  add_eos = in.add_eos.value_or(add_eos);
  if (add_bos && !in.bos) fail("add_bos_token", "true, and there is no bos_token_id");
  if (add_eos && !in.eos) fail("add_eos_token", "true, and there is no eos_token_id");
  if (!add_bos && !add_eos) return;
  if (add_bos) parts.post.push_back({false, {static_cast<TokenId>(*in.bos)}});
  parts.post.push_back({true, {}});
  if (add_eos) parts.post.push_back({false, {static_cast<TokenId>(*in.eos)}});
}

Bpe::Merges merges_of(const TokenizerVocabulary& in) {
  Bpe::Merges merges;
  merges.reserve(in.merges.size());
  for (std::size_t i = 0; i < in.merges.size(); ++i) {
    const std::string_view line = in.merges[i];
    const std::size_t space = line.find(' ', 1);
    if (find_invalid_utf8(line) != std::string_view::npos || space == std::string_view::npos) {
      fail("merges", fmt::format("merge {} is not two tokens in UTF-8", i));
    }
    merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  }
  return merges;
}

Normalizer form_step(NormalForm form) {
  Normalizer step;
  step.kind = Normalizer::Kind::form;
  step.form = form;
  return step;
}

TokenizerParts read_gpt2(const TokenizerVocabulary& in) {
  NamedPreTokenizer pre = named_pre_tokenizer(in.pre);
  TokenizerParts parts;
  if (pre.nfc) parts.normalizer = form_step(NormalForm::nfc);
  parts.pre_tokenizers = std::move(pre.steps);
  BpeOptions options;
  options.ignore_merges = pre.ignore_merges;
  parts.model = Bpe(table_of(in.tokens), merges_of(in), std::move(options));
  add_template(in, pre.add_bos, false, parts);
  parts.decoder.emplace().kind = Decoder::Kind::byte_level;
  return parts;
}

// SentencePiece BPE knows scores of tokens instead of merges: the pair with the best score merges
// first. As a list of pairs that is: by score, then by the lengths of both sides, longest first.
struct ScoredMerge {
  float score;
  std::string_view left;
  std::string_view right;
  TokenId left_id;
  TokenId right_id;
  std::size_t left_length;
  std::size_t right_length;
};

Bpe::Merges merges_of_scores(const TokenizerVocabulary& in, const TokenTable& table) {
  constexpr std::size_t kMaxTokenLength = 1024;  // of the quadratic search below
  const auto length = [](std::string_view text) {
    return static_cast<std::size_t>(
        std::ranges::count_if(text, [](char c) { return !is_utf8_tail(c); }));
  };
  std::vector<ScoredMerge> list;
  std::vector<ScoredMerge> local;
  for (std::size_t i = 0; i < in.tokens.size(); ++i) {
    const std::string_view token = in.tokens[i];
    if (token.size() > kMaxTokenLength) {
      throw Unsupported(fmt::format("{}: token {} has {} bytes, at most {}", key_name("tokens"), i,
                                    token.size(), kMaxTokenLength));
    }
    local.clear();
    for (std::size_t at = 1; at < token.size(); ++at) {
      if (is_utf8_tail(token[at])) continue;
      const std::string_view left = token.substr(0, at);
      const std::string_view right = token.substr(at);
      const TokenId a = table.find(left);
      const TokenId b = a == kNoToken ? kNoToken : table.find(right);
      if (b == kNoToken) continue;
      local.push_back({in.scores[i], left, right, a, b, length(left), length(right)});
    }
    std::ranges::sort(local, [](const ScoredMerge& a, const ScoredMerge& b) {
      return std::tie(a.left_id, a.right_id) < std::tie(b.left_id, b.right_id);
    });
    list.insert(list.end(), local.begin(), local.end());
  }
  std::ranges::stable_sort(list, [](const ScoredMerge& a, const ScoredMerge& b) {
    return std::tie(a.score, a.left_length, a.right_length) >
           std::tie(b.score, b.left_length, b.right_length);
  });
  Bpe::Merges merges;
  merges.reserve(list.size());
  for (const ScoredMerge& merge : list) merges.emplace_back(merge.left, merge.right);
  return merges;
}

Decoder decoder_with_spaces(bool strip_first) {
  Decoder all;
  all.kind = Decoder::Kind::sequence;
  Decoder& spaces = all.list.emplace_back();
  spaces.kind = Decoder::Kind::replace;
  spaces.pattern.literal = kMark;
  spaces.text = " ";
  all.list.emplace_back().kind = Decoder::Kind::byte_fallback;
  all.list.emplace_back().kind = Decoder::Kind::fuse;
  if (!strip_first) return all;
  Decoder& strip = all.list.emplace_back();
  strip.kind = Decoder::Kind::strip;
  strip.start = 1;
  return all;
}

TokenizerParts read_sentence_piece(const TokenizerVocabulary& in, bool has_merges) {
  TokenizerParts parts;
  const bool prefix = in.add_space_prefix.value_or(!has_merges);
  Normalizer& all = parts.normalizer.emplace();
  if (prefix) {
    Normalizer& step = all.list.emplace_back();
    step.kind = Normalizer::Kind::prepend;
    step.text = kMark;
  }
  all.list.push_back(replace_step(" ", kMark));
  BpeOptions options;
  options.byte_fallback = true;
  options.fuse_unknown = true;
  if (in.unknown) options.unknown = in.tokens[static_cast<std::size_t>(*in.unknown)];
  TokenTable table = table_of(in.tokens);
  if (!has_merges && in.scores.empty()) fail("scores", "missing");
  const Bpe::Merges merges = has_merges ? merges_of(in) : merges_of_scores(in, table);
  parts.model = Bpe(std::move(table), merges, std::move(options));
  add_template(in, true, false, parts);
  parts.decoder = decoder_with_spaces(prefix);
  return parts;
}

// Its tokens are written as in SentencePiece: a mark where a word begins, nothing where it goes on.
TokenizerParts read_bert(const TokenizerVocabulary& in, std::vector<std::string>& tokens) {
  if (in.pre != "bert-bge" && in.pre != "default" && !in.pre.empty()) {
    throw Unsupported(
        fmt::format("{}: {} is not known", key_name("pre"), json_quote(in.pre.substr(0, 60))));
  }
  for (std::string& token : tokens) {
    if (token.starts_with(kMark)) {
      token.erase(0, std::char_traits<char>::length(kMark));
    } else if (!(token.starts_with('[') && token.ends_with(']'))) {
      token.insert(0, "##");
    }
  }
  if (!in.unknown) fail("unknown_token_id", "missing");
  TokenizerParts parts;
  Normalizer& normalizer = parts.normalizer.emplace();
  normalizer.kind = Normalizer::Kind::bert;
  normalizer.accents = true;
  normalizer.lower = true;
  PreTokenizer step;
  step.kind = PreTokenizer::Kind::space;
  parts.pre_tokenizers.push_back(step);
  step.kind = PreTokenizer::Kind::punctuation;
  parts.pre_tokenizers.push_back(step);
  parts.model = WordPiece(table_of(tokens), static_cast<TokenId>(*in.unknown), "##", 100);
  const std::optional<Token> cls = in.cls ? in.cls : in.bos;
  const std::optional<Token> end = in.separator ? in.separator : in.eos;
  if (cls && in.add_bos.value_or(true)) {
    parts.post.push_back({false, {static_cast<TokenId>(*cls)}});
  }
  parts.post.push_back({true, {}});
  if (end && in.add_eos.value_or(true)) {
    parts.post.push_back({false, {static_cast<TokenId>(*end)}});
  }
  Decoder& decoder = parts.decoder.emplace();
  decoder.kind = Decoder::Kind::word_piece;
  decoder.text = "##";
  decoder.cleanup = true;
  return parts;
}

TokenizerParts read_unigram(const TokenizerVocabulary& in) {
  if (in.scores.empty()) fail("scores", "missing");
  TokenizerParts parts;
  Normalizer& all = parts.normalizer.emplace();
  if (!in.characters_map.empty()) {
    Normalizer& step = all.list.emplace_back();
    step.kind = Normalizer::Kind::map;
    step.characters = std::make_shared<const CharacterMap>(in.characters_map);
  }
  PreTokenizer step;
  if (in.remove_extra_spaces.value_or(true)) {
    step.kind = PreTokenizer::Kind::space;
    parts.pre_tokenizers.push_back(step);
  }
  step.kind = PreTokenizer::Kind::metaspace;
  step.character = U'▁';
  step.prepend = in.add_space_prefix.value_or(true) ? PreTokenizer::Prepend::always
                                                    : PreTokenizer::Prepend::never;
  parts.pre_tokenizers.push_back(step);
  std::optional<TokenId> unknown;
  if (in.unknown) unknown = static_cast<TokenId>(*in.unknown);
  const bool bytes = std::ranges::any_of(
      in.types, [](std::int32_t type) { return static_cast<Type>(type) == Type::byte; });
  parts.model = Unigram(table_of(in.tokens), {in.scores.begin(), in.scores.end()}, unknown, bytes);
  add_template(in, false, true, parts);
  Decoder& decoder = parts.decoder.emplace();
  decoder.kind = Decoder::Kind::metaspace;
  decoder.character = U'▁';
  return parts;
}

}  // namespace

TokenizerParts read_vocabulary(const TokenizerVocabulary& in) {
  check(in);
  TokenizerParts parts;
  TokenizerVocabulary renamed;  // for the added tokens of BERT, which has its own spelling
  if (in.model == "gpt2") {
    parts = read_gpt2(in);
  } else if (in.model == "llama") {
    parts = read_sentence_piece(in, false);
  } else if (in.model == "gemma4") {
    parts = read_sentence_piece(in, true);
  } else if (in.model == "bert") {
    renamed.tokens = in.tokens;
    renamed.types = in.types;
    renamed.pre = in.pre;
    renamed.name = in.name;
    renamed.architecture = in.architecture;
    parts = read_bert(in, renamed.tokens);
  } else if (in.model == "t5") {
    parts = read_unigram(in);
  } else {
    throw Unsupported(
        fmt::format("{}: {} is not known", key_name("model"), json_quote(in.model.substr(0, 60))));
  }
  parts.name = "GGUF";
  add_tokens(renamed.tokens.empty() ? in : renamed, parts);
  return parts;
}

}  // namespace touchstone::inline v0::io
