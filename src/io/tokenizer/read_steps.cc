// tokenizer.json: the steps around the model.
#include <fmt/format.h>

#include "io/tokenizer/parts.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::io {
namespace {

std::string_view type_of(const JsonValue& value) {
  if (!value.is_object()) value.fail("expected an object");
  return value.at("type").as_string();
}

[[noreturn]] void refuse_type(const JsonValue& value, std::string_view type) {
  refuse(value, fmt::format("the type {} is not known", json_quote(type.substr(0, 60))));
}

Normalizer plain(const JsonValue& value, Normalizer::Kind kind) {
  expect_keys(value, {"type"});
  Normalizer step;
  step.kind = kind;
  return step;
}

Normalizer form(const JsonValue& value, NormalForm form) {
  Normalizer step = plain(value, Normalizer::Kind::form);
  step.form = form;
  return step;
}

Normalizer read_bert(const JsonValue& value) {
  expect_keys(value, {"type", "clean_text", "handle_chinese_chars", "strip_accents", "lowercase"});
  Normalizer step;
  step.kind = Normalizer::Kind::bert;
  step.left = flag_of(value, "clean_text");
  step.right = flag_of(value, "handle_chinese_chars");
  step.lower = flag_of(value, "lowercase");
  step.accents = flag_or(value, "strip_accents", step.lower);
  return step;
}

Split split_of(const JsonValue& value) {
  const std::string_view name = value.as_string();
  if (name == "Removed") return Split::removed;
  if (name == "Isolated") return Split::isolated;
  if (name == "MergedWithPrevious") return Split::merged_with_previous;
  if (name == "MergedWithNext") return Split::merged_with_next;
  if (name == "Contiguous") return Split::contiguous;
  refuse(value, fmt::format("the behavior {}", json_quote(name.substr(0, 60))));
}

PreTokenizer read_split(const JsonValue& value) {
  expect_keys(value, {"type", "pattern", "behavior", "invert"});
  PreTokenizer step;
  step.kind = PreTokenizer::Kind::pattern;
  step.split = split_of(value.at("behavior"));
  step.invert = flag_of(value, "invert");
  const JsonValue pattern = value.at("pattern");
  const auto regex = pattern.find("Regex");
  // These expressions match every character, so that isolating the matches and removing what does
  // not match are the same.
  const bool keeps_all = step.invert ? step.split == Split::removed : step.split == Split::isolated;
  if (regex && pattern.size() == 1 && keeps_all) {
    if (const auto rule = word_rule_of(regex->as_string())) return words_step(*rule);
  }
  step.expression = pattern_of(pattern);
  return step;
}

PreTokenizer read_metaspace(const JsonValue& value) {
  expect_keys(value,
              {"type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"});
  PreTokenizer step;
  step.kind = PreTokenizer::Kind::metaspace;
  step.character = character_of(value, "replacement");
  step.cut = flag_or(value, "split", true);
  if (const auto scheme = value.find("prepend_scheme")) {
    const std::string_view name = scheme->as_string();
    if (name != "always" && name != "first" && name != "never") {
      refuse(*scheme, json_quote(name.substr(0, 60)));
    }
    step.prepend = name == "always"  ? PreTokenizer::Prepend::always
                   : name == "first" ? PreTokenizer::Prepend::first
                                     : PreTokenizer::Prepend::never;
  }
  if (!flag_or(value, "add_prefix_space", true) && step.prepend != PreTokenizer::Prepend::never) {
    value.fail("add_prefix_space does not fit prepend_scheme");
  }
  return step;
}

void read_byte_level(const JsonValue& value, std::vector<PreTokenizer>& steps) {
  expect_keys(value, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
  PreTokenizer step;
  if (flag_of(value, "add_prefix_space")) {
    step.kind = PreTokenizer::Kind::prefix_space;
    steps.push_back(step);
  }
  if (flag_or(value, "use_regex", true)) steps.push_back(words_step(WordRule::gpt2));
  step.kind = PreTokenizer::Kind::byte_characters;
  steps.push_back(step);
}

PreTokenizer by_kind(PreTokenizer::Kind kind, Split split = Split::isolated) {
  PreTokenizer step;
  step.kind = kind;
  step.split = split;
  return step;
}

// The tokens of one special token of a template.
std::vector<TokenId> special_ids(const JsonValue& tokens, const JsonValue& piece,
                                 std::string_view name) {
  const auto found = tokens.find(name);
  if (!found) piece.fail(fmt::format("{} is not a special token", json_quote(name.substr(0, 60))));
  std::vector<TokenId> ids;
  for (const JsonValue id : found->at("ids")) ids.push_back(id_of(id));
  return ids;
}

std::vector<TemplatePart> read_template(const JsonValue& value) {
  expect_keys(value, {"type", "single", "pair", "special_tokens"});
  const JsonValue tokens = value.at("special_tokens");
  if (!tokens.is_object()) tokens.fail("expected an object");
  const JsonValue single = value.at("single");
  if (!single.is_array()) single.fail("expected an array");
  std::vector<TemplatePart> parts;
  for (const JsonValue piece : single) {
    if (const auto sequence = piece.find("Sequence")) {
      if (sequence->at("id").as_string() != "A") refuse(piece, "a second text in 'single'");
      parts.push_back({true, {}});
    } else if (const auto token = piece.find("SpecialToken")) {
      parts.push_back({false, special_ids(tokens, piece, token->at("id").as_string())});
    } else {
      refuse(piece, "neither \"Sequence\" nor \"SpecialToken\"");
    }
  }
  // No part stands for "the text alone", so a template of nothing needs one that says so.
  if (parts.empty()) parts.push_back({false, {}});
  return parts;
}

std::vector<TemplatePart> read_cls_sep(const JsonValue& value) {
  const auto id = [&](std::string_view key) {
    const JsonValue pair = value.at(key);
    if (!pair.is_array() || pair.size() != 2) pair.fail("expected a token and its id");
    auto part = pair.begin();
    (*part).as_string();
    ++part;
    return id_of(*part);
  };
  return {{false, {id("cls")}}, {true, {}}, {false, {id("sep")}}};
}

Decoder decoder_of(Decoder::Kind kind, const JsonValue& value,
                   std::initializer_list<std::string_view> keys) {
  expect_keys(value, keys);
  Decoder decoder;
  decoder.kind = kind;
  return decoder;
}

Decoder read_metaspace_decoder(const JsonValue& value) {
  const PreTokenizer step = read_metaspace(value);
  Decoder decoder;
  decoder.kind = Decoder::Kind::metaspace;
  decoder.character = step.character;
  decoder.keep_first = step.prepend == PreTokenizer::Prepend::never;
  return decoder;
}

Decoder read_simple_decoder(const JsonValue& value, std::string_view type) {
  using Kind = Decoder::Kind;
  if (type == "ByteFallback") return decoder_of(Kind::byte_fallback, value, {"type"});
  if (type == "Fuse") return decoder_of(Kind::fuse, value, {"type"});
  if (type == "ByteLevel") {
    return decoder_of(Kind::byte_level, value,
                      {"type", "add_prefix_space", "trim_offsets", "use_regex"});
  }
  if (type == "BPEDecoder") {
    Decoder decoder = decoder_of(Kind::suffix, value, {"type", "suffix"});
    decoder.text = text_of(value, "suffix");
    return decoder;
  }
  if (type == "WordPiece") {
    Decoder decoder = decoder_of(Kind::word_piece, value, {"type", "prefix", "cleanup"});
    decoder.text = text_of(value, "prefix");
    decoder.cleanup = flag_of(value, "cleanup");
    return decoder;
  }
  if (type == "CTC") {
    Decoder decoder =
        decoder_of(Kind::ctc, value, {"type", "pad_token", "word_delimiter_token", "cleanup"});
    decoder.text = text_of(value, "pad_token");
    decoder.delimiter = text_of(value, "word_delimiter_token");
    decoder.cleanup = flag_of(value, "cleanup");
    return decoder;
  }
  refuse_type(value, type);
}

}  // namespace

PreTokenizer words_step(WordRule rule) {
  PreTokenizer step;
  step.kind = PreTokenizer::Kind::words;
  step.rule = rule;
  return step;
}

PreTokenizer split_step(const std::string& pattern) {
  if (const auto rule = word_rule_of(pattern)) return words_step(*rule);
  PreTokenizer step;
  step.kind = PreTokenizer::Kind::pattern;
  step.expression.regex = std::make_shared<const Regex>(pattern);
  return step;
}

Normalizer replace_step(std::string literal, std::string with) {
  Normalizer step;
  step.kind = Normalizer::Kind::replace;
  step.pattern.literal = std::move(literal);
  step.text = std::move(with);
  return step;
}

Normalizer read_normalizer(const JsonValue& value) {
  using Kind = Normalizer::Kind;
  const std::string_view type = type_of(value);
  if (type == "NFC") return form(value, NormalForm::nfc);
  if (type == "NFD") return form(value, NormalForm::nfd);
  if (type == "NFKC") return form(value, NormalForm::nfkc);
  if (type == "NFKD") return form(value, NormalForm::nfkd);
  if (type == "Lowercase") return plain(value, Kind::lowercase);
  if (type == "StripAccents") return plain(value, Kind::strip_accents);
  if (type == "Nmt") return plain(value, Kind::nmt);
  if (type == "ByteLevel") return plain(value, Kind::byte_level);
  if (type == "BertNormalizer") return read_bert(value);
  Normalizer step;
  if (type == "Sequence") {
    expect_keys(value, {"type", "normalizers"});
    for (const JsonValue part : value.at("normalizers")) step.list.push_back(read_normalizer(part));
  } else if (type == "Strip") {
    expect_keys(value, {"type", "strip_left", "strip_right"});
    step.kind = Kind::strip;
    step.left = flag_of(value, "strip_left");
    step.right = flag_of(value, "strip_right");
  } else if (type == "Prepend") {
    expect_keys(value, {"type", "prepend"});
    step.kind = Kind::prepend;
    step.text = text_of(value, "prepend");
  } else if (type == "Replace") {
    expect_keys(value, {"type", "pattern", "content"});
    step.kind = Kind::replace;
    step.pattern = pattern_of(value.at("pattern"));
    step.text = text_of(value, "content");
  } else if (type == "Precompiled") {
    expect_keys(value, {"type", "precompiled_charsmap"});
    step.kind = Kind::map;
    step.characters =
        std::make_shared<const CharacterMap>(base64_decoded(value.at("precompiled_charsmap")));
  } else {
    refuse_type(value, type);
  }
  return step;
}

void read_pre_tokenizer(const JsonValue& value, std::vector<PreTokenizer>& steps) {
  using Kind = PreTokenizer::Kind;
  const std::string_view type = type_of(value);
  if (type == "Sequence") {
    expect_keys(value, {"type", "pretokenizers"});
    for (const JsonValue part : value.at("pretokenizers")) read_pre_tokenizer(part, steps);
  } else if (type == "ByteLevel") {
    read_byte_level(value, steps);
  } else if (type == "Split") {
    steps.push_back(read_split(value));
  } else if (type == "Metaspace") {
    steps.push_back(read_metaspace(value));
  } else if (type == "Digits") {
    expect_keys(value, {"type", "individual_digits"});
    steps.push_back(by_kind(
        Kind::numeric, flag_of(value, "individual_digits") ? Split::isolated : Split::contiguous));
  } else if (type == "Punctuation") {
    expect_keys(value, {"type", "behavior"});
    const auto behavior = value.find("behavior");
    steps.push_back(by_kind(Kind::punctuation, behavior ? split_of(*behavior) : Split::isolated));
  } else if (type == "Whitespace") {
    expect_keys(value, {"type"});
    steps.push_back(by_kind(Kind::word_runs));
  } else if (type == "WhitespaceSplit") {
    expect_keys(value, {"type"});
    steps.push_back(by_kind(Kind::space));
  } else if (type == "BertPreTokenizer") {
    expect_keys(value, {"type"});
    steps.push_back(by_kind(Kind::space));
    steps.push_back(by_kind(Kind::punctuation));
  } else if (type == "CharDelimiterSplit") {
    expect_keys(value, {"type", "delimiter"});
    PreTokenizer step = by_kind(Kind::delimiter);
    step.character = character_of(value, "delimiter");
    steps.push_back(step);
  } else if (type == "FixedLength") {
    expect_keys(value, {"type", "length"});
    PreTokenizer step = by_kind(Kind::fixed_length);
    step.length = count_of(value, "length");
    if (step.length == 0) value.fail("a length of 0");
    steps.push_back(step);
  } else {
    refuse_type(value, type);
  }
}

std::vector<TemplatePart> read_post_processor(const JsonValue& value) {
  const std::string_view type = type_of(value);
  if (type == "TemplateProcessing") return read_template(value);
  if (type == "ByteLevel") {  // moves offsets only
    expect_keys(value, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
    return {};
  }
  if (type == "BertProcessing") {
    expect_keys(value, {"type", "sep", "cls"});
    return read_cls_sep(value);
  }
  if (type == "RobertaProcessing") {
    expect_keys(value, {"type", "sep", "cls", "trim_offsets", "add_prefix_space"});
    return read_cls_sep(value);
  }
  if (type != "Sequence") refuse_type(value, type);
  expect_keys(value, {"type", "processors"});
  std::vector<TemplatePart> parts;
  for (const JsonValue processor : value.at("processors")) {
    std::vector<TemplatePart> more = read_post_processor(processor);
    if (!more.empty() && !parts.empty()) refuse(value, "two processors that add tokens");
    if (!more.empty()) parts = std::move(more);
  }
  return parts;
}

Decoder read_decoder(const JsonValue& value) {
  const std::string_view type = type_of(value);
  Decoder decoder;
  if (type == "Sequence") {
    decoder = decoder_of(Decoder::Kind::sequence, value, {"type", "decoders"});
    for (const JsonValue part : value.at("decoders")) decoder.list.push_back(read_decoder(part));
  } else if (type == "Metaspace") {
    decoder = read_metaspace_decoder(value);
  } else if (type == "Replace") {
    decoder = decoder_of(Decoder::Kind::replace, value, {"type", "pattern", "content"});
    decoder.pattern = pattern_of(value.at("pattern"));
    decoder.text = text_of(value, "content");
  } else if (type == "Strip") {
    decoder = decoder_of(Decoder::Kind::strip, value, {"type", "content", "start", "stop"});
    decoder.character = character_of(value, "content");
    decoder.start = count_of(value, "start");
    decoder.stop = count_of(value, "stop");
  } else {
    decoder = read_simple_decoder(value, type);
  }
  return decoder;
}

}  // namespace touchstone::inline v0::io
