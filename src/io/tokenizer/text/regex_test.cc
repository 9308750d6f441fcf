// Expressions mean the same characters as in Oniguruma, and what would not is refused.
#include "io/tokenizer/text/regex.h"

#include <gtest/gtest.h>

#include <ctime>
#include <string>
#include <vector>

#include "io/tokenizer/gguf_names.h"
#include "io/tokenizer/text/unicode.h"
#include "io/tokenizer/word_scanner.h"
#include "io/utf8.h"
#include "touchstone/core/error.h"

namespace touchstone::io {
namespace {

std::vector<std::string> matches(std::string_view pattern, std::string_view text) {
  std::vector<Span> spans;
  Regex(pattern).find_all(text, spans);
  std::vector<std::string> found;
  for (const Span& span : spans) found.emplace_back(text.substr(span.begin, span.end - span.begin));
  return found;
}

const std::string& every_code_point() {
  static const std::string all = [] {
    std::string text;
    for (char32_t code = 0; code < 0x110000; ++code) {
      if (code < 0xd800 || code > 0xdfff) append_code(text, code);
    }
    return text;
  }();
  return all;
}

// Bytes of all characters of these categories.
std::size_t bytes_of(CategorySet set) {
  std::size_t bytes = 0;
  for (char32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xd800 && code <= 0xdfff) continue;
    std::string text;
    append_code(text, code);
    if ((category_of(code) & set) != 0) bytes += text.size();
  }
  return bytes;
}

TEST(TokenizerRegex, CategoriesAreThoseOfTheTable) {
  for (const char* name : {"L", "N", "P", "S", "M", "Lu", "Lt", "Nd", "So", "Z"}) {
    std::vector<Span> spans;
    Regex(std::string("\\p{") + name + "}+").find_all(every_code_point(), spans);
    std::size_t bytes = 0;
    for (const Span& span : spans) bytes += span.end - span.begin;
    EXPECT_EQ(bytes, bytes_of(*category_set(name))) << name;
  }
}

TEST(TokenizerRegex, SpaceIsWhiteSpace) {
  std::vector<Span> spans;
  Regex("\\s").find_all(every_code_point(), spans);
  EXPECT_EQ(spans.size(), 25U);
  EXPECT_TRUE(matches("\\s", "\u180e").empty());
}

TEST(TokenizerRegex, MatchesAsRubyDoes) {
  using V = std::vector<std::string>;
  EXPECT_EQ(matches("a{,2}b", "aaab b"), (V{"aab", "b"}));
  EXPECT_EQ(matches("\\h+", "xyzAF09"), (V{"AF09"}));
  EXPECT_EQ(matches("\\bthe\\b", "the other the"), (V{"the", "the"}));
  EXPECT_EQ(matches("^a|b$", "a\nab\nb"), (V{"a", "a", "b", "b"}));
  EXPECT_EQ(matches("x*", "axb"), (V{"", "x", ""}));
  EXPECT_EQ(matches("\\u3042|\\x{1F600}|\\x41", "あ😀A"), (V{"あ", "😀", "A"}));
  EXPECT_EQ(matches("[^\\S\\n]+", "a \t\nb"), (V{" \t"}));
  EXPECT_EQ(matches("(?i:'s)", "'S'ſ"), (V{"'S", "'ſ"}));
}

TEST(TokenizerRegex, RefusesWhatMeansSomethingElse) {
  for (const char* pattern :
       {"\\p{Alpha}", "\\p{Han}", "[[:alpha:]]", "[a&&b]", "[a[b]]",  "\\X",      "\\R",
        "(?<n>a)",    "\\1",      "a{2}+",       "a{2}?",  "(?i:ss)", "(?i:é)",   "(?m:a)",
        "(?#c)",      "a**",      "(a",          "a)",     "[a",      "\\xff",    "\\G",
        "\\K",        "*a",       "a\\",         "[z-a]",  "x{2000}", "(?<=a+)b", "\\x{d800}"}) {
    EXPECT_THROW(Regex{pattern}, Unsupported) << pattern;
  }
}

// Whatever the text: a megabyte of one character is one match.
TEST(TokenizerRegex, MatchesLongRuns) {
  constexpr std::size_t kLength = 1 << 20;
  const auto expect_match = [&](std::string_view pattern, char c) {
    SCOPED_TRACE(std::string(pattern.substr(0, 20)) + " '" + c + "'");
    const std::string text(kLength, c);
    std::vector<Span> spans;
    EXPECT_NO_THROW(Regex(pattern).find_all(text, spans));
    ASSERT_FALSE(spans.empty());
    EXPECT_EQ(spans.front().begin, 0U);
    EXPECT_EQ(spans.back().end, kLength);
  };
  for (const char c : {'A', 'a', ' ', '1', '\n'}) expect_match(kGpt4oPattern, c);
  for (const char c : {'A', ' '}) {
    expect_match(kTekkenPattern, c);
    expect_match(kLlama3Pattern, c);
  }
  // Many runs, each longer than the steps of a first attempt.
  std::string runs;
  for (int i = 0; i < 200; ++i) runs += std::string(3000, 'A') + "1";
  std::vector<Span> spans;
  Regex("A*a+|A+|1").find_all(runs, spans);
  EXPECT_EQ(spans.size(), 400U);
}

TEST(TokenizerRegex, BoundsWhatAPatternMayCost) {
  const std::string text(200, 'a');
  std::vector<Span> spans;
  EXPECT_THROW(Regex("(a+a+)+[bc]").find_all(text, spans), Unsupported);
  const std::clock_t start = std::clock();
  EXPECT_THROW(Regex("a{0,900}a{0,900}[cd]").find_all(std::string(20'000, 'a'), spans),
               Unsupported);
  EXPECT_THROW(Regex("a+[bc]").find_all(std::string(1 << 20, 'a'), spans), Unsupported);
  EXPECT_THROW(Regex("(?:a|b|ab)*[cd]").find_all(std::string(20'000, 'a'), spans), Unsupported);
  // Three of under a second each; this may be a sanitizer's code.
  EXPECT_LT(std::clock() - start, 8 * CLOCKS_PER_SEC);
  EXPECT_THROW(Regex(std::string(500, '(') + "a" + std::string(500, ')')), Unsupported);
}

TEST(TokenizerUnicode, NormalizesAsUnicode9) {
  EXPECT_EQ(normalized(NormalForm::nfc, "e\u0301"), "é");
  EXPECT_EQ(normalized(NormalForm::nfd, "é가"), "e\u0301\u1100\u1161");
  EXPECT_EQ(normalized(NormalForm::nfkc, "ﬁ①"), "fi1");
  EXPECT_EQ(normalized(NormalForm::nfkd, "\u32ff"), "\u32ff");  // Unicode 12.1
  EXPECT_EQ(normalized(NormalForm::nfc, "a\u0345\u0334"), "a\u0334\u0345");
}

TEST(TokenizerUnicode, LowersOneCharacterAtATime) {
  std::string out;
  for (const char32_t c : U"AÉİΣẞ\u1c89\U00010d50z") {
    if (c != 0) append_lower(out, c);
  }
  EXPECT_EQ(out, "aéi\u0307σß\u1c8a\U00010d70z");
}

TEST(TokenizerUtf8, FindsWhatIsNone) {
  const auto npos = std::string_view::npos;
  EXPECT_EQ(find_invalid_utf8("plain ascii, é, 語, 😀"), npos);
  for (const char* bad :
       {"\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xff", "\x80"}) {
    EXPECT_EQ(find_invalid_utf8(std::string("ab") + bad), 2U);
  }
  std::string out;
  append_valid(out, "a\xe2\x82z\xf0\x9f\x98");
  EXPECT_EQ(out, "a\ufffdz\ufffd");
}

}  // namespace
}  // namespace touchstone::io
