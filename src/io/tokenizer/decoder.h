// How tokens become text again.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer/normalizer.h"

namespace touchstone::inline v0::io {

struct Decoder {
  enum class Kind : std::uint8_t {
    sequence,
    byte_level,
    metaspace,
    word_piece,
    replace,
    byte_fallback,
    fuse,
    strip,
    suffix,
    ctc
  };
  Kind kind = Kind::fuse;
  std::vector<Decoder> list;  // sequence
  std::string text;           // word_piece: prefix; replace: with what; suffix; ctc: padding
  std::string delimiter;      // ctc: between words
  bool cleanup = false;       // word_piece, ctc
  bool keep_first = false;    // metaspace: the first mark is a space, too
  char32_t character = U' ';  // metaspace, strip
  std::size_t start = 0;      // strip
  std::size_t stop = 0;       // strip
  Pattern pattern;            // replace

  // Unsupported when the text would grow beyond `limit` bytes.
  void apply(std::vector<std::string>& tokens, std::size_t limit) const;
  // The bytes of one token within a text; Unsupported where they depend on its neighbors.
  std::string token_bytes(const std::string& token) const;
};

}  // namespace touchstone::inline v0::io
