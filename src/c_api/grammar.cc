// Grammars and token masks.
#include "touchstone/decode/grammar.h"

#include <string>
#include <vector>

#include "c_api/border.h"
#include "c_api/grammar_handle.h"
#include "c_api/tokenizer_handle.h"

struct ts_grammar {
  touchstone::decode::Grammar value;
};

struct ts_grammar_vocabulary {
  touchstone::decode::GrammarVocabulary value;
};

using touchstone::c_api::checked;
using touchstone::c_api::guarded;
using touchstone::c_api::list;

ts_status ts_grammar_from_gbnf(const char* text, size_t bytes, ts_grammar** grammar) {
  return guarded([&] {
    ts_grammar*& place = checked(grammar, "grammar_from_gbnf: grammar");
    const auto source = list(text, static_cast<int64_t>(bytes), "grammar_from_gbnf: text");
    place = new ts_grammar{touchstone::decode::Grammar::from_gbnf({source.data(), source.size()})};
  });
}

ts_status ts_grammar_from_json_schema(const char* schema, size_t bytes, int32_t whitespace,
                                      ts_grammar** grammar) {
  return guarded([&] {
    ts_grammar*& place = checked(grammar, "grammar_from_json_schema: grammar");
    const auto source =
        list(schema, static_cast<int64_t>(bytes), "grammar_from_json_schema: schema");
    if (whitespace < TS_JSON_NO_SPACE || whitespace > TS_JSON_ANY_SPACE) {
      throw touchstone::InvalidArgument(
          "grammar_from_json_schema: whitespace: expected 0 to 2, got " +
          std::to_string(whitespace));
    }
    touchstone::decode::JsonSchemaOptions options;
    options.whitespace = static_cast<touchstone::decode::JsonWhitespace>(whitespace);
    place = new ts_grammar{
        touchstone::decode::Grammar::from_json_schema({source.data(), source.size()}, options)};
  });
}

void ts_grammar_destroy(ts_grammar* grammar) { delete grammar; }

ts_status ts_grammar_vocabulary_create(const char* const* bytes, const size_t* sizes, int64_t count,
                                       const int32_t* end_tokens, int64_t end_count,
                                       ts_grammar_vocabulary** vocabulary) {
  return guarded([&] {
    ts_grammar_vocabulary*& place = checked(vocabulary, "grammar_vocabulary_create: vocabulary");
    const auto texts = list(bytes, count, "grammar_vocabulary_create: bytes");
    const auto lengths = list(sizes, count, "grammar_vocabulary_create: sizes");
    const auto ends = list(end_tokens, end_count, "grammar_vocabulary_create: end_tokens");
    std::vector<std::string> tokens;
    tokens.reserve(texts.size());
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const auto token =
          list(texts[i], static_cast<int64_t>(lengths[i]), "grammar_vocabulary_create: bytes");
      tokens.emplace_back(token.data(), token.size());
    }
    place = new ts_grammar_vocabulary{touchstone::decode::GrammarVocabulary(tokens, ends)};
  });
}

ts_status ts_grammar_vocabulary_from_tokenizer(const ts_tokenizer* tokenizer, int64_t size,
                                               const int32_t* end_tokens, int64_t end_count,
                                               ts_grammar_vocabulary** vocabulary) {
  return guarded([&] {
    ts_grammar_vocabulary*& place =
        checked(vocabulary, "grammar_vocabulary_from_tokenizer: vocabulary");
    const ts_tokenizer& from = checked(tokenizer, "grammar_vocabulary_from_tokenizer: tokenizer");
    const auto ends = list(end_tokens, end_count, "grammar_vocabulary_from_tokenizer: end_tokens");
    if (size < 0 || size > int64_t{1} << 24) {
      throw touchstone::InvalidArgument(
          "grammar_vocabulary_from_tokenizer: size: expected 0 to 16777216, got " +
          std::to_string(size));
    }
    place = new ts_grammar_vocabulary{touchstone::decode::GrammarVocabulary(
        from.tokenizer.token_bytes(static_cast<std::size_t>(size)), ends)};
  });
}

void ts_grammar_vocabulary_destroy(ts_grammar_vocabulary* vocabulary) { delete vocabulary; }

ts_status ts_grammar_state_create(const ts_grammar* grammar,
                                  const ts_grammar_vocabulary* vocabulary,
                                  ts_grammar_state** state) {
  return guarded([&] {
    ts_grammar_state*& place = checked(state, "grammar_state_create: state");
    place = new ts_grammar_state{touchstone::decode::GrammarConstraint(
        checked(grammar, "grammar_state_create: grammar").value,
        checked(vocabulary, "grammar_state_create: vocabulary").value)};
  });
}

ts_status ts_grammar_state_copy(const ts_grammar_state* state, ts_grammar_state** copy) {
  return guarded([&] {
    ts_grammar_state*& place = checked(copy, "grammar_state_copy: copy");
    place = new ts_grammar_state{checked(state, "grammar_state_copy: state").value};
  });
}

void ts_grammar_state_destroy(ts_grammar_state* state) { delete state; }

ts_status ts_grammar_state_allowed(const ts_grammar_state* state, int32_t* mask, int64_t words) {
  return guarded([&] {
    checked(state, "grammar_state_allowed: state")
        .value.allowed(list(mask, words, "grammar_state_allowed: mask"));
  });
}

ts_status ts_grammar_state_accept(ts_grammar_state* state, int32_t token) {
  return guarded([&] { checked(state, "grammar_state_accept: state").value.accept(token); });
}

ts_status ts_grammar_state_can_end(const ts_grammar_state* state, int32_t* can_end) {
  return guarded([&] {
    int32_t& place = checked(can_end, "grammar_state_can_end: can_end");
    place = checked(state, "grammar_state_can_end: state").value.can_end() ? 1 : 0;
  });
}
