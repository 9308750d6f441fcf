// Normalization of a text, before it is cut into words.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/tokenizer/text/regex.h"
#include "io/tokenizer/text/unicode.h"

namespace touchstone::inline v0::io {

// A bound on the output of the steps for a text of `bytes`: no real step makes 64 bytes of one, and
// a hostile file could grow a text without end by replacing again and again.
constexpr std::size_t grown_limit(std::size_t bytes) { return 64 * bytes + (std::size_t{1} << 20); }

// A text, and whether characters were removed from its front (a word that begins there is not at the
// beginning of the original any more).
struct Normalized {
  std::string text;
  bool front_removed = false;
  std::size_t limit = grown_limit(0);  // bytes that the text may grow to
};

// SentencePiece's compiled map of characters: a double array of prefixes and the replacements.
class CharacterMap {
 public:
  explicit CharacterMap(std::string_view bytes);  // CorruptData
  // The replacement for the shortest beginning of `text` that the map knows.
  std::optional<std::string_view> find(std::string_view text) const;

 private:
  std::vector<std::uint32_t> units_;
  std::string replacements_;  // each ends with NUL
};

// A string, or an expression, to look for.
struct Pattern {
  std::string literal;  // when there is no expression
  std::shared_ptr<const Regex> regex;
  // Matches one after another, in `text`.
  void find_all(std::string_view text, std::vector<Span>& matches) const;
};

struct Normalizer {
  enum class Kind : std::uint8_t {
    sequence,
    form,
    strip,
    strip_accents,
    lowercase,
    nmt,
    prepend,
    replace,
    bert,
    byte_level,
    map
  };
  Kind kind = Kind::sequence;
  std::vector<Normalizer> list;                    // sequence
  NormalForm form = NormalForm::nfc;               // form
  bool left = true;                                // strip; of bert: clean_text
  bool right = true;                               // strip; of bert: handle_chinese_chars
  bool accents = false;                            // bert: strip_accents
  bool lower = false;                              // bert
  std::string text;                                // prepend; replace: with what
  Pattern pattern;                                 // replace
  std::shared_ptr<const CharacterMap> characters;  // map

  void apply(Normalized& text) const;
};

}  // namespace touchstone::inline v0::io
