// The pre-tokenizer expressions that most models share, by hand: one pass, no backtracking, and the
// same words as the expressions give (word_scanner_test.cc compares with PCRE2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace touchstone::inline v0::io {

enum class WordRule : std::uint8_t {
  gpt2,    // 's|'t|... | ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  llama3,  // (?i:'s|'t|...)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|...
  qwen2,   // the same with \p{N}
  qwen35,  // qwen2 with marks among the letters
};

extern const std::string_view kGpt2Pattern;
extern const std::string_view kLlama3Pattern;
extern const std::string_view kQwen2Pattern;
extern const std::string_view kQwen35Pattern;

// The rule that does what the expression does; none where there is none.
std::optional<WordRule> word_rule_of(std::string_view pattern);

// The end of the word that begins at `p`; p < end, valid UTF-8.
template <WordRule kRule>
const char* word_end(const char* p, const char* end);

}  // namespace touchstone::inline v0::io

#include "io/tokenizer/word_scanner-inl.h"
