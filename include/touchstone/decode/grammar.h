// Constrained output: a grammar decides which tokens may follow.
//
//   const Grammar grammar = Grammar::from_json_schema(R"({"type": "object", ...})");
//   const GrammarVocabulary vocabulary(tokenizer.token_bytes(), end_tokens);
//   request.constraint = std::make_shared<GrammarConstraint>(grammar, vocabulary);
//
// A grammar is a pushdown automaton over bytes; a token may follow where its bytes lead on. So
// every text that ends is in the language of the grammar, and every beginning that the tokens can
// spell stays possible. Grammars come from GBNF or from JSON Schema (docs/grammars.md has both
// subsets); what is not understood is refused by its name.
//
// Grammars may be hostile: sizes, nesting and parallel readings have limits (GrammarLimits), left
// recursion and rules that never end are refused. Masks are the same in every run and on any number
// of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "touchstone/core/error.h"
#include "touchstone/core/export.h"
#include "touchstone/decode/request.h"

namespace touchstone::inline v0::decode {

namespace grammar {
class Automaton;
class MaskCache;
class TokenTrie;
}  // namespace grammar

// "grammar:3:7: the rule 'item' is not defined". Line and column count from 1, columns in bytes.
class TOUCHSTONE_API GrammarError : public CorruptData {
 public:
  GrammarError(int line, int column, const std::string& problem);
  int line() const { return line_; }
  int column() const { return column_; }

 private:
  int line_;
  int column_;
};

struct GrammarLimits {
  std::size_t max_source_bytes = std::size_t{1} << 20;
  std::int32_t max_rules = 2048;
  std::int32_t max_nodes = 1 << 18;  // of the automaton, repetitions written out
  std::int32_t max_depth = 512;      // of calls: deeper nesting is not allowed by the masks
  std::int32_t max_readings = 4096;  // of one text at once; InvalidArgument beyond
  std::size_t max_cache_bytes = std::size_t{256} << 20;  // states and masks that are kept
};

enum class JsonWhitespace : std::uint8_t {
  none,    // {"a":1,"b":2}
  single,  // {"a": 1, "b": 2}
  any,     // up to 20 characters between any two symbols
};

struct JsonSchemaOptions {
  JsonWhitespace whitespace = JsonWhitespace::single;
  std::int32_t max_digits = 15;  // of a number before and after the point; 1 to 1000
};

// The GBNF of a JSON Schema, rule `root`. CorruptData for what is no schema, Unsupported with path
// and name for a keyword outside the subset.
TOUCHSTONE_API std::string json_schema_to_gbnf(std::string_view schema,
                                               const JsonSchemaOptions& options = {});

class TOUCHSTONE_API Grammar {
 public:
  // GrammarError with the place of what is refused.
  static Grammar from_gbnf(std::string_view text, const GrammarLimits& limits = {});
  static Grammar from_json_schema(std::string_view schema, const JsonSchemaOptions& options = {},
                                  const GrammarLimits& limits = {});

  bool matches(std::string_view text) const;    // the whole text
  bool can_begin(std::string_view text) const;  // a text that can still become one
  std::int32_t nodes() const;                   // of the automaton

 private:
  friend class GrammarConstraint;
  explicit Grammar(std::shared_ptr<const grammar::Automaton> automaton);
  std::shared_ptr<const grammar::Automaton> automaton_;
};

// The bytes of the tokens as a trie. Copies share it.
class TOUCHSTONE_API GrammarVocabulary {
 public:
  // Token i is bytes[i]; empty: it has no text and is never allowed. `end_tokens` end the text and
  // are allowed where it may end; their own bytes do not count. InvalidArgument for an end token
  // outside.
  GrammarVocabulary(std::span<const std::string> bytes, std::span<const std::int32_t> end_tokens);
  std::int64_t size() const;

 private:
  friend class GrammarConstraint;
  std::shared_ptr<const grammar::TokenTrie> trie_;
};

// A text under construction. What is computed for a grammar and a vocabulary (states, masks) is
// kept and shared by everything that start() and copies make, within max_cache_bytes.
class TOUCHSTONE_API GrammarConstraint final : public TokenConstraint {
 public:
  GrammarConstraint(const Grammar& grammar, const GrammarVocabulary& vocabulary);
  GrammarConstraint(const GrammarConstraint& other);
  GrammarConstraint& operator=(const GrammarConstraint& other);
  ~GrammarConstraint() override;

  std::unique_ptr<TokenConstraint> start() const override;
  std::unique_ptr<TokenConstraint> copy() const override;
  // InvalidArgument for another number of words than the vocabulary takes, or too many readings.
  void allowed(std::span<std::int32_t> mask) const override;
  // InvalidArgument for a token that is not allowed; the state stays.
  void accept(std::int32_t token) override;
  bool complete() const override { return ended_ || can_end(); }

  bool allows(std::int32_t token) const;
  bool can_end() const;  // an end token would be allowed
  bool ended() const { return ended_; }

 private:
  std::int32_t current() const;

  std::shared_ptr<grammar::MaskCache> cache_;
  std::string text_;  // accepted so far: what a state is rebuilt from when the cache began anew
  mutable std::int64_t generation_ = -1;
  mutable std::int32_t state_ = -1;
  bool ended_ = false;
};

}  // namespace touchstone::inline v0::decode
