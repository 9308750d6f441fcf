// How a text is cut into the words that the model encodes one by one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer/model/token_table.h"
#include "io/tokenizer/normalizer.h"
#include "io/tokenizer/word_scanner.h"

namespace touchstone::inline v0::io {

struct Piece {
  std::size_t begin;
  std::size_t end;
  TokenId id = kNoToken;  // of an added token; such a piece is not cut any further
  bool front = false;     // begins where the original text begins
};

// A text in pieces, which are in its order and do not overlap.
struct Pieces {
  std::string_view text;
  std::string owned;  // the memory of `text` where it is not the caller's
  std::vector<Piece> list;

  std::string_view of(const Piece& piece) const {
    return text.substr(piece.begin, piece.end - piece.begin);
  }
};

// The treatment of the matches of a pattern.
enum class Split : std::uint8_t {
  removed,
  isolated,
  merged_with_previous,
  merged_with_next,
  contiguous
};

struct PreTokenizer {
  enum class Kind : std::uint8_t {
    prefix_space,     // a space before every piece that does not begin with one
    words,            // one of the known expressions
    byte_characters,  // bytes as GPT-2's characters
    pattern,
    numeric,
    punctuation,
    space,
    word_runs,  // \w+|[^\w\s]+
    delimiter,
    fixed_length,
    metaspace,
  };
  enum class Prepend : std::uint8_t { always, first, never };

  Kind kind = Kind::words;
  WordRule rule = WordRule::gpt2;
  Pattern expression;  // pattern
  bool invert = false;
  Split split = Split::isolated;
  char32_t character = U' ';  // delimiter; metaspace: what stands for a space
  Prepend prepend = Prepend::always;
  bool cut = true;         // metaspace: into words
  std::size_t length = 0;  // fixed_length, in characters

  void apply(Pieces& pieces) const;
};

// Appends the words of [begin, end) of `text`, as spans of `text`.
void append_words(WordRule rule, std::string_view text, Span part, std::vector<Span>& words);

}  // namespace touchstone::inline v0::io
