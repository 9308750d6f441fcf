// The definitions of word_scanner.h, in a header so that the loop over the words inlines them.
#pragma once

#include <array>

#include "io/tokenizer/text/unicode.h"
#include "io/tokenizer/word_scanner.h"
#include "io/utf8.h"

namespace touchstone::inline v0::io {
namespace scan {

inline constexpr std::uint8_t kLetter = 1;
inline constexpr std::uint8_t kNumber = 2;
inline constexpr std::uint8_t kSpace = 4;
inline constexpr std::uint8_t kOther = 8;
inline constexpr std::uint8_t kMark = 16;

constexpr std::array<std::uint8_t, 128> make_ascii() {
  std::array<std::uint8_t, 128> classes{};
  for (int c = 0; c < 128; ++c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool space = c == ' ' || (c >= 9 && c <= 13);
    classes[static_cast<std::size_t>(c)] = letter                 ? kLetter
                                           : c >= '0' && c <= '9' ? kNumber
                                           : space                ? kSpace
                                                                  : kOther;
  }
  return classes;
}
inline constexpr std::array<std::uint8_t, 128> kAscii = make_ascii();

inline std::uint8_t class_beyond_ascii(char32_t code) {
  const std::uint16_t facts = code_facts()[code];
  const CategorySet category = CategorySet{1} << (facts & 31);
  if ((category & kLetters) != 0) return kLetter;
  if ((category & kMarks) != 0) return kMark;
  if ((category & kNumbers) != 0) return kNumber;
  return (facts & kFactSpace) != 0 ? kSpace : kOther;
}

// The class of the character at `p`; `next` is behind it.
inline std::uint8_t class_at(const char* p, const char*& next) {
  const auto byte = static_cast<unsigned char>(*p);
  next = p;
  if (byte < 0x80) {
    ++next;
    return kAscii[byte];
  }
  return class_beyond_ascii(next_code(next));
}

// Behind the run of characters of these classes that begins at `p`.
inline const char* skip(const char* p, const char* end, unsigned classes) {
  const char* next = p;
  while (p != end && (class_at(p, next) & classes) != 0) p = next;
  return p;
}

// Behind "'s", "'ll" and the like at `p`, which is an apostrophe; `p` when there is none.
template <bool kAnyCase>
const char* contraction(const char* p, const char* end) {
  const auto letter = [&](std::ptrdiff_t i) {
    if (end - p <= i) return '\0';
    const char c = p[i];
    return kAnyCase && c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
  };
  const char first = letter(1);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return p + 2;
  const char second = letter(2);
  if ((first == 'r' || first == 'v') && second == 'e') return p + 3;
  if (first == 'l' && second == 'l') return p + 3;
  // Case-insensitively, the long s matches s.
  if (kAnyCase && end - p > 2 && p[1] == '\xc5' && p[2] == '\xbf') return p + 3;
  return p;
}

// Behind the white space at `p`: all of it at the end of the text; before a word it leaves the last
// character to the word.
inline const char* white_space(const char* p, const char* end) {
  const char* last = p;
  const char* q = p;
  const char* next = p;
  while (q != end && class_at(q, next) == kSpace) {
    last = q;
    q = next;
  }
  return q == end || last == p ? q : last;
}

inline const char* gpt2(const char* p, const char* end) {
  constexpr unsigned kRest = kOther | kMark;
  if (*p == '\'') {
    const char* const q = contraction<false>(p, end);
    if (q != p) return q;
  }
  const char* start = p;
  if (*p == ' ' && end - p > 1) ++start;
  const char* next = start;
  const unsigned first = class_at(start, next);
  if (first == kLetter) return skip(next, end, kLetter);
  if (first == kNumber) return skip(next, end, kNumber);
  if ((first & kRest) != 0) return skip(next, end, kRest);
  return white_space(p, end);
}

inline bool is_newline(char c) { return c == '\n' || c == '\r'; }

template <int kDigits, bool kMarksAreLetters>
const char* llama3(const char* p, const char* end) {
  constexpr unsigned kWord = kMarksAreLetters ? kLetter | kMark : kLetter;
  constexpr unsigned kRest = kMarksAreLetters ? kOther : kOther | kMark;
  if (*p == '\'') {
    const char* const q = contraction<true>(p, end);
    if (q != p) return q;
  }
  const char* next = p;
  const unsigned first = class_at(p, next);
  if ((first & kWord) != 0) return skip(next, end, kWord);
  if (first == kNumber) {
    for (int i = 1; i < kDigits && next != end; ++i) {
      const char* after = next;
      if (class_at(next, after) != kNumber) break;
      next = after;
    }
    return next;
  }
  const char* after = next;
  const unsigned second = next == end ? 0U : class_at(next, after);
  if (!is_newline(*p) && (second & kWord) != 0) return skip(after, end, kWord);
  if ((first & kRest) != 0 || (*p == ' ' && (second & kRest) != 0)) {
    const char* q = skip(next, end, kRest);
    while (q != end && is_newline(*q)) ++q;
    return q;
  }
  // White space up to its last newline, else as in GPT-2.
  const char* newline = nullptr;
  const char* q = p;
  while (q != end && class_at(q, after) == kSpace) {
    if (is_newline(*q)) newline = after;
    q = after;
  }
  return newline != nullptr ? newline : white_space(p, end);
}

}  // namespace scan

template <WordRule kRule>
const char* word_end(const char* p, const char* end) {
  if constexpr (kRule == WordRule::gpt2) {
    return scan::gpt2(p, end);
  } else if constexpr (kRule == WordRule::llama3) {
    return scan::llama3<3, false>(p, end);
  } else if constexpr (kRule == WordRule::qwen2) {
    return scan::llama3<1, false>(p, end);
  } else {
    return scan::llama3<1, true>(p, end);
  }
}

}  // namespace touchstone::inline v0::io
