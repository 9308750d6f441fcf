// Vocabularies, masks token by token, and walks through grammars.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "touchstone/decode/grammar.h"

namespace touchstone::decode {

// All bytes, then `texts`, then one token that ends the text.
struct TestVocabulary {
  explicit TestVocabulary(const std::vector<std::string>& texts = {}) {
    for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
    bytes.insert(bytes.end(), texts.begin(), texts.end());
    end = static_cast<std::int32_t>(bytes.size());
    bytes.emplace_back();
    const std::int32_t ends[] = {end};
    vocabulary.emplace_back(bytes, ends);
  }
  const GrammarVocabulary& get() const { return vocabulary[0]; }

  std::vector<std::string> bytes;
  std::int32_t end = 0;
  std::vector<GrammarVocabulary> vocabulary;
};

inline std::vector<std::int32_t> mask_of(const GrammarConstraint& constraint, std::size_t tokens) {
  std::vector<std::int32_t> mask((tokens + 31) / 32, -1);
  constraint.allowed(mask);
  return mask;
}

inline bool has_bit(const std::vector<std::int32_t>& mask, std::int32_t token) {
  const auto bit = static_cast<std::uint32_t>(token);
  return (static_cast<std::uint32_t>(mask[bit / 32]) >> (bit % 32) & 1) != 0;
}

inline std::vector<std::int32_t> tokens_of(const std::vector<std::int32_t>& mask) {
  std::vector<std::int32_t> tokens;
  for (std::int32_t token = 0; token < static_cast<std::int32_t>(mask.size()) * 32; ++token) {
    if (has_bit(mask, token)) tokens.push_back(token);
  }
  return tokens;
}

// A text by tokens drawn from the masks; after `patience` tokens it ends where it can, and prefers what
// closes JSON otherwise. "never ends" where it did not.
inline std::string random_text(GrammarConstraint constraint, const TestVocabulary& vocabulary,
                               std::mt19937& random, int patience) {
  std::string text;
  for (int step = 0; step < 20 * patience; ++step) {
    const std::vector<std::int32_t> allowed =
        tokens_of(mask_of(constraint, vocabulary.bytes.size()));
    if (allowed.empty()) return "nothing allowed after " + text;
    std::int32_t token = allowed[random() % allowed.size()];
    if (step > patience) {
      const std::string_view preferred = random() % 2 == 0 ? "ab" : "}]\"";  // the last one first
      for (const char c : preferred) {
        if (constraint.allows(c) && random() % 4 != 0) token = c;
      }
      if (constraint.can_end()) token = vocabulary.end;
    }
    constraint.accept(token);
    if (token == vocabulary.end) return text;
    text += vocabulary.bytes[static_cast<std::size_t>(token)];
  }
  return "never ends: " + text;
}

}  // namespace touchstone::decode
