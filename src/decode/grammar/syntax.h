// A grammar as it is written: rules of expressions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "touchstone/decode/grammar.h"

namespace touchstone::inline v0::decode::grammar {

struct CodeRange {
  char32_t first = 0;
  char32_t last = 0;
  friend bool operator==(const CodeRange&, const CodeRange&) = default;
};

struct Expression {
  enum class Kind : std::uint8_t { literal, set, sequence, choice, repeat, rule };
  Kind kind = Kind::literal;
  std::string text;                 // literal: its bytes
  std::vector<CodeRange> ranges;    // set: ascending, apart from each other
  std::vector<std::int32_t> parts;  // sequence, choice; repeat: one
  std::int32_t min = 0;             // repeat
  std::int32_t max = -1;            // repeat; -1: no end
  std::int32_t rule = -1;           // rule: which
  int line = 0;
  int column = 0;
};

struct Rule {
  std::string name;
  std::int32_t body = -1;
  int line = 0;  // of the definition, or of the first use
  int column = 0;
};

struct Syntax {
  std::vector<Expression> expressions;
  std::vector<Rule> rules;
  std::int32_t root = -1;
};

// GBNF. GrammarError for what is none, rules that are not defined, sizes beyond the limits.
Syntax parse_gbnf(std::string_view text, const GrammarLimits& limits);

}  // namespace touchstone::inline v0::decode::grammar
