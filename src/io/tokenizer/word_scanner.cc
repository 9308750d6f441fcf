#include "io/tokenizer/word_scanner.h"

#include <utility>

namespace touchstone::inline v0::io {

const std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kQwen35Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::optional<WordRule> word_rule_of(std::string_view pattern) {
  const std::pair<std::string_view, WordRule> known[] = {{kGpt2Pattern, WordRule::gpt2},
                                                         {kLlama3Pattern, WordRule::llama3},
                                                         {kQwen2Pattern, WordRule::qwen2},
                                                         {kQwen35Pattern, WordRule::qwen35}};
  for (const auto& [text, rule] : known) {
    if (text == pattern) return rule;
  }
  return std::nullopt;
}

}  // namespace touchstone::inline v0::io
