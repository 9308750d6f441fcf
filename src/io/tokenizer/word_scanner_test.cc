// The scanners give the words that their expressions give: for every code point between a letter, a
// digit, a space and a newline, and for random strings of what the rules look at.
#include "io/tokenizer/word_scanner.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "io/tokenizer/pre_tokenizer.h"
#include "io/tokenizer/text/regex.h"
#include "io/utf8.h"

namespace touchstone::io {
namespace {

struct Rule {
  WordRule rule;
  std::string_view pattern;
};

const std::vector<Rule>& rules() {
  static const std::vector<Rule> all = {{WordRule::gpt2, kGpt2Pattern},
                                        {WordRule::llama3, kLlama3Pattern},
                                        {WordRule::qwen2, kQwen2Pattern},
                                        {WordRule::qwen35, kQwen35Pattern}};
  return all;
}

// The first word that differs, with what stands around it; "" when there is none.
std::string difference(const Rule& rule, const Regex& regex, const std::string& text) {
  std::vector<Span> expected;
  std::vector<Span> got;
  regex.find_all(text, expected);
  append_words(rule.rule, text, {0, text.size()}, got);
  for (std::size_t i = 0; i < std::max(expected.size(), got.size()); ++i) {
    if (i < std::min(expected.size(), got.size()) && expected[i].begin == got[i].begin &&
        expected[i].end == got[i].end) {
      continue;
    }
    const std::size_t at = i < expected.size() ? expected[i].begin : text.size();
    return "word " + std::to_string(i) + " at byte " + std::to_string(at) +
           " of: " + text.substr(at > 20 ? at - 20 : 0, 60);
  }
  return "";
}

TEST(WordScanner, KnowsItsPatterns) {
  for (const Rule& rule : rules()) EXPECT_EQ(word_rule_of(rule.pattern), rule.rule);
  EXPECT_EQ(word_rule_of("\\s+"), std::nullopt);
}

TEST(WordScanner, EveryCodePointAsPcre2) {
  for (const Rule& rule : rules()) {
    const Regex regex(rule.pattern);
    std::string text;
    for (char32_t code = 0; code < 0x110000; ++code) {
      if (code >= 0xd800 && code <= 0xdfff) continue;
      std::string c;
      append_code(c, code);
      text += "a" + c + "1" + c + " " + c + "\n";
      if (text.size() < 60000) continue;
      ASSERT_EQ(difference(rule, regex, text), "") << std::hex << static_cast<unsigned>(code);
      text.clear();
    }
    ASSERT_EQ(difference(rule, regex, text), "");
  }
}

TEST(WordScanner, RandomStringsAsPcre2) {
  const std::vector<std::string> atoms = {
      "a",  "B",  "z",  "é",      "語", "0",  "1", "٣",      "½", " ",      " ",      "  ",
      "\t", "\n", "\r", "\u00a0", ".",  "'",  "-", "_",      "’", "'s",     "'S",     "'ll",
      "'",  "re", "ve", "T",      "ſ",  "'ſ", "́",  "\u3000", "😀", "\u0085", "\u2028", "$"};
  std::mt19937_64 random(7);  // NOLINT(bugprone-random-generator-seed): the same strings each time
  for (const Rule& rule : rules()) {
    const Regex regex(rule.pattern);
    for (int i = 0; i < 8000; ++i) {
      std::string text;
      const auto count = 1 + random() % 14;
      for (std::uint64_t k = 0; k < count; ++k) text += atoms[random() % atoms.size()];
      ASSERT_EQ(difference(rule, regex, text), "");
    }
  }
}

// How many code points the reference takes for words, in a class and outside.
TEST(RegexTranslation, Words) {
  std::string all;
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code < 0xd800 || code > 0xdfff) append_code(all, code);
  }
  const auto count = [](const char* pattern, const std::string& text) {
    std::vector<Span> found;
    Regex(pattern).find_all(text, found);
    return found.size();
  };
  constexpr std::size_t kAll = 0x110000 - 0x800;
  EXPECT_EQ(count("\\w", all), 144671U);
  EXPECT_EQ(count("[\\w]", all), 144665U);
  EXPECT_EQ(count("\\W", all), kAll - 144671);
  EXPECT_EQ(count("[\\W]", all), kAll - 144665);
  EXPECT_EQ(count("[^\\W]", all), 144665U);
  EXPECT_EQ(count("\\w", "\u00bd\u2160\u24b6"), 3U);
  EXPECT_EQ(count("[\\w]", "\u00bd\u2160\u24b6"), 2U);
  EXPECT_EQ(count("\\b", "##\u2460"), 0U);
  EXPECT_EQ(count("\\b", "##\u00b2"), 2U);
}

}  // namespace
}  // namespace touchstone::io
