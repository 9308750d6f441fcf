// From the text of a template to tokens, with jinja2's rules for white space under trim_blocks and
// lstrip_blocks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/chat_template/ast.h"

namespace touchstone::inline v0::io::chat {

enum class TokenKind : std::uint8_t {
  data,
  block_begin,
  block_end,
  variable_begin,
  variable_end,
  name,
  string,
  integer,
  floating,
  op,
  end,
};

struct Token {
  TokenKind kind;
  Offset at;
  std::string_view text;  // of the source; a string with its quotes
};

// Line breaks become \n, and one at the end is dropped.
std::string normalize_source(std::string_view source);

// TemplateError at the first byte that no token begins with. The tokens point into `source`; the
// last one is `end`.
std::vector<Token> tokenize(std::string_view source);

// The text of a string token, without quotes and escapes.
std::string unescape(std::string_view source, const Token& token);

struct Place {
  int line;
  int column;
};
Place place_of(std::string_view source, Offset at);

}  // namespace touchstone::inline v0::io::chat
