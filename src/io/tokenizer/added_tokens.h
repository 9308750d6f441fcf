// Tokens that are found in a text before anything else looks at it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "io/tokenizer/model/token_table.h"
#include "io/tokenizer/text/regex.h"

namespace touchstone::inline v0::io {

struct AddedToken {
  std::string text;
  TokenId id = kNoToken;
  bool single_word = false;
  bool left_strip = false;
  bool right_strip = false;
  bool normalized = true;
  bool special = false;
};

// Finds the leftmost and there the longest of its tokens, one after another.
class TokenFinder {
 public:
  struct Found {
    Span span;
    TokenId id;  // kNoToken: the text between tokens
  };
  // `text` stands for the token in the text that is searched; nothing for an empty one.
  void add(std::string_view text, const AddedToken& token);
  bool empty() const { return tokens_.empty(); }
  // Cuts `text` into tokens and the rest; without the special ones where `special` is false.
  void cut(std::string_view text, bool special, std::vector<Found>& found) const;

 private:
  const AddedToken* longest_at(std::string_view text, std::size_t at, std::size_t& end) const;

  Trie trie_;
  std::vector<AddedToken> tokens_;
  std::array<bool, 256> begins_{};
  std::string first_bytes_;  // those that are in begins_
};

}  // namespace touchstone::inline v0::io
