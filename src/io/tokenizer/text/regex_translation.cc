// Oniguruma's Ruby syntax, written for PCRE2.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <system_error>

#include "io/json_document.h"
#include "io/tokenizer/text/regex.h"
#include "io/tokenizer/text/unicode.h"
#include "io/utf8.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::io {
namespace {

constexpr std::size_t kMaxPattern = 16384;
constexpr int kMaxDepth = 100;
constexpr std::size_t kMaxTranslation = std::size_t{1} << 18;  // more than PCRE2 compiles

std::string code_text(std::uint32_t code) { return fmt::format("\\x{{{:x}}}", code); }

std::string ranges_text(const std::vector<CodeRange>& ranges) {
  std::string text;
  for (const CodeRange& range : ranges) {
    text += code_text(range.first);
    if (range.last != range.first) text += '-' + code_text(range.last);
  }
  return text;
}

// The inside of a character class that stands for the set. PCRE2's own tables cover the
// named set: classes of all ranges would grow past the size that it compiles.
std::string set_text(std::string_view name, CategorySet set) {
  return fmt::format("\\p{{{}}}", name) + ranges_text(ranges_of(set, true));
}

// What Oniguruma takes for a word. Numbers that are no digits, such as U+2460, are none, letters in
// circles and squares are.
constexpr CategorySet kWord = kLetters | kMarks | category_bit(Category::Nd) |
                              category_bit(Category::Nl) | category_bit(Category::Pc);
const std::vector<CodeRange>& word_symbols() {
  static const std::vector<CodeRange> ranges = {
      {0x24b6, 0x24e9}, {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189}};
  return ranges;
}
const std::string& word_text() {
  static const std::string text =
      set_text("L", kLetters) + set_text("M", kMarks) + set_text("Nd", category_bit(Category::Nd)) +
      set_text("Nl", category_bit(Category::Nl)) + set_text("Pc", category_bit(Category::Pc)) +
      ranges_text(word_symbols());
  return text;
}
// Outside of classes it looks characters of Latin-1 up in a table, in which these numbers are words.
const std::string& bare_word_text() {
  static const std::string text =
      word_text() + ranges_text({{0xb2, 0xb3}, {0xb9, 0xb9}, {0xbc, 0xbe}});
  return text;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  std::string run() {
    if (in_.size() > kMaxPattern) {
      throw Unsupported(fmt::format("tokenizer: a regular expression of {} bytes, at most {}",
                                    in_.size(), kMaxPattern));
    }
    alternatives(0, false);
    if (at_ != in_.size()) refuse("')' without '('");
    return out_;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw Unsupported(fmt::format("tokenizer: regular expression: {} at byte {}", what, at_));
  }
  bool done() const { return at_ == in_.size(); }
  char peek(std::size_t ahead = 0) const {
    return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0';
  }
  bool take(std::string_view text) {
    if (!in_.substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }

  void alternatives(int depth, bool caseless) {
    if (depth > kMaxDepth) refuse("too many groups in each other");
    last_caseless_ = '\0';
    while (!done() && peek() != ')') {
      if (out_.size() > kMaxTranslation) refuse("too many classes");
      if (peek() == '|') {
        ++at_;
        out_ += '|';
        last_caseless_ = '\0';
        continue;
      }
      if (take("(?i)")) {  // holds to the end of the group
        out_ += "(?i)";
        caseless = true;
        continue;
      }
      const bool repeatable = item(depth, caseless);
      quantifier(repeatable);
    }
  }

  // One thing that a quantifier may follow; false when none may.
  bool item(int depth, bool caseless) {
    const char c = peek();
    if (c == '(') {
      group(depth, caseless);
      return true;
    }
    if (c == '^' || c == '$') {
      ++at_;
      out_ += c;
      return false;
    }
    if (c == '*' || c == '+' || c == '?') refuse("a quantifier after nothing");
    if (c == '[') {
      if (caseless) {
        caseless_class();
      } else {
        character_class();
      }
      last_caseless_ = '\0';
      return true;
    }
    if (c == '.') {
      ++at_;
      out_ += '.';
      last_caseless_ = '\0';
      return true;
    }
    if (c == '\\') return escape(caseless);
    literal(caseless);
    return true;
  }

  void group(int depth, bool caseless) {
    constexpr std::string_view kSame[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    ++at_;
    bool inner = caseless;
    if (peek() != '?') {
      out_ += "(?:";  // nothing refers to what it captures
    } else if (in_.substr(at_).starts_with("?i:") || in_.substr(at_).starts_with("?-i:")) {
      inner = peek(1) == 'i';
      out_ += inner ? "(?i:" : "(?-i:";
      at_ += inner ? 3 : 4;
    } else {
      --at_;
      const auto* known =
          std::ranges::find_if(kSame, [&](auto text) { return in_.substr(at_).starts_with(text); });
      if (known == std::end(kSame)) refuse(json_quote(in_.substr(at_, 4)));
      out_ += *known;
      at_ += known->size();
    }
    alternatives(depth + 1, inner);
    if (!take(")")) refuse("'(' without ')'");
    out_ += ')';
    last_caseless_ = '\0';
  }

  void quantifier(bool repeatable) {
    const char c = peek();
    const bool counted = c == '{' && counts();
    if (c != '*' && c != '+' && c != '?' && !counted) return;
    if (!repeatable) refuse("a quantifier after an anchor");
    last_caseless_ = '\0';
    if (!counted) {
      ++at_;
      out_ += c;
      // "++" and the like do not give back, "+?" and the like take as little as they can.
      if (peek() == '+' || peek() == '?') out_ += in_[at_++];
    } else if (peek() == '+') {
      refuse("'}+', which repeats in Ruby and does not give back elsewhere");
    } else if (peek() == '?') {
      if (exact_count_) refuse("'}?' after one number");
      ++at_;
      out_ += '?';
    }
    if (peek() == '*' || peek() == '+' || peek() == '?' || (peek() == '{' && is_count())) {
      refuse("a quantifier of a quantifier");
    }
  }

  bool is_count() const {
    std::size_t i = at_ + 1;
    std::size_t digits = 0;
    std::size_t commas = 0;
    for (; i < in_.size() && (is_digit(in_[i]) || in_[i] == ','); ++i) {
      (in_[i] == ',' ? commas : digits) += 1;
    }
    return i < in_.size() && in_[i] == '}' && digits > 0 && commas <= 1;
  }

  // "{2}", "{2,}", "{,3}", "{2,3}"; false, and nothing read, when the brace is a character.
  bool counts() {
    if (!is_count()) return false;
    const std::size_t close = in_.find('}', at_);
    const std::string_view inside = in_.substr(at_ + 1, close - at_ - 1);
    if (inside.size() > 9) refuse("a large count");
    exact_count_ = inside.find(',') == std::string_view::npos;
    for (std::size_t i = 0; i < inside.size();) {
      std::uint32_t number = 0;
      const auto [end, error] = std::from_chars(&inside[i], inside.data() + inside.size(), number);
      if (error == std::errc() && number > 1000) refuse("a count above 1000");
      i = std::max(i + 1, static_cast<std::size_t>(end - inside.data()));
    }
    out_ +=
        inside.starts_with(',') ? fmt::format("{{0{}}}", inside) : fmt::format("{{{}}}", inside);
    at_ = close + 1;
    return true;
  }

  void put_literal(char32_t code) {
    if (code < 0x80 && !is_digit(static_cast<char>(code)) &&
        !is_ascii_letter(static_cast<char>(code))) {
      out_ += code_text(code);
    } else {
      append_code(out_, code);
    }
  }

  void literal(bool caseless) {
    const char* p = in_.data() + at_;
    const char32_t code = next_code(p);
    at_ = static_cast<std::size_t>(p - in_.data());
    if (caseless) check_caseless(code);
    put_literal(code);
  }

  // Without regard to case, Oniguruma also takes pairs of letters for one character ("ss", "st",
  // "fi"), and other alphabets have rules of their own.
  void check_caseless(char32_t code) {
    if (code >= 0x80) refuse("a character beyond ASCII in (?i:)");
    const char lower =
        is_ascii_letter(static_cast<char>(code)) ? static_cast<char>(code | 0x20) : '\0';
    const std::string pair = {last_caseless_, lower};
    for (const std::string_view joined : {"ss", "st", "ff", "fi", "fl"}) {
      if (pair == joined) refuse(fmt::format("'{}' in (?i:)", pair));
    }
    last_caseless_ = lower;
  }

  char32_t hex_code(std::size_t digits_at, std::size_t digits) {
    std::uint32_t code = 0;
    const char* first = in_.data() + digits_at;
    if (digits == 0 || digits > 8 || digits_at + digits > in_.size()) refuse("a bad number");
    const auto [end, error] = std::from_chars(first, first + digits, code, 16);
    if (error != std::errc() || end != first + digits || code > 0x10ffff ||
        (code >= 0xd800 && code <= 0xdfff)) {
      refuse("a number that is no character");
    }
    at_ = digits_at + digits;
    return code;
  }

  // A character written with a backslash, which stands at at_; nothing read when it is none.
  bool escaped_code(char32_t& code) {
    constexpr std::string_view kNames = "rntfave";
    constexpr std::string_view kCodes = "\r\n\t\f\a\v\x1b";
    const char c = peek(1);
    if (const std::size_t i = kNames.find(c); c != '\0' && i != std::string_view::npos) {
      code = static_cast<unsigned char>(kCodes[i]);
      at_ += 2;
      return true;
    }
    if (c == 'u') {
      code = hex_code(at_ + 2, 4);
      return true;
    }
    if (c == 'x') {
      if (peek(2) == '{') {
        const std::size_t close = in_.find('}', at_);
        if (close == std::string_view::npos) refuse("'\\x{' without '}'");
        code = hex_code(at_ + 3, close - at_ - 3);
        ++at_;
        return true;
      }
      code = hex_code(at_ + 2, 2);
      if (code >= 0x80) refuse("a byte above 7F");
      return true;
    }
    if (at_ + 1 == in_.size()) refuse("a backslash at the end");
    if (is_digit(c) || is_ascii_letter(c)) return false;
    ++at_;
    const char* p = in_.data() + at_;
    code = next_code(p);
    at_ = static_cast<std::size_t>(p - in_.data());
    return true;
  }

  struct Set {
    std::string text;            // what it holds, inside a class
    CategorySet categories = 0;  // of a property
    bool space = false;
    bool word = false;
    bool negated = false;
  };

  // \p{..}, \s, \d, \w, \h and their opposites, at at_.
  bool escaped_set(Set& set) {
    const char c = peek(1);
    if (c == 'p' || c == 'P') {
      property(set);
      return true;
    }
    switch (c | 0x20) {
      case 's':
        set.text = ranges_text(space_ranges());
        set.space = true;
        break;
      case 'd':
        set.categories = category_bit(Category::Nd);
        set.text = set_text("Nd", set.categories);
        break;
      case 'w':
        set.categories = kWord;
        set.text = word_text();
        set.word = true;
        break;
      case 'h':
        set.text = "0-9A-Fa-f";
        if (c == 'H') refuse("'\\H'");
        break;
      default:
        return false;
    }
    set.negated = c < 'a';
    at_ += 2;
    return true;
  }

  void property(Set& set) {
    const std::size_t close = in_.find('}', at_);
    if (peek(2) != '{' || close == std::string_view::npos) refuse("'\\p' without '{name}'");
    std::string_view name = in_.substr(at_ + 3, close - at_ - 3);
    set.negated = peek(1) == 'P';
    if (name.starts_with('^')) {
      set.negated = !set.negated;
      name.remove_prefix(1);
    }
    const std::optional<CategorySet> categories = category_set(name);
    if (!categories) refuse("the property " + json_quote(name.substr(0, 40)));
    set.categories = *categories;
    set.text = set_text(name, *categories);
    at_ = close + 1;
  }

  // Everything that the set does not hold, inside a class.
  std::string opposite(const Set& set) const {
    if (set.space) return ranges_text(complement(space_ranges()));
    std::vector<CodeRange> ranges = ranges_of(set.categories, false);
    if (set.word) {
      ranges.insert(ranges.end(), word_symbols().begin(), word_symbols().end());
      std::ranges::sort(ranges, {}, &CodeRange::first);
    }
    return ranges_text(complement(ranges));
  }

  bool escape(bool caseless) {
    Set set;
    char32_t code = 0;
    if (take("\\A") || take("\\z") || take("\\Z")) {
      out_ += in_.substr(at_ - 2, 2);
      return false;
    }
    if (take("\\b") || take("\\B")) {
      const std::string& word = bare_word_text();
      out_ += in_[at_ - 1] == 'b'
                  ? fmt::format("(?:(?<=[{0}])(?![{0}])|(?<![{0}])(?=[{0}]))", word)
                  : fmt::format("(?:(?<=[{0}])(?=[{0}])|(?<![{0}])(?![{0}]))", word);
      return false;
    }
    if (escaped_code(code)) {
      if (caseless) check_caseless(code);
      put_literal(code);
      return true;
    }
    if (!escaped_set(set)) refuse(json_quote(in_.substr(at_, 2)));
    if (caseless && set.categories != 0) refuse("a property in (?i:)");
    out_ += (set.negated ? "[^" : "[") + (set.word ? bare_word_text() : set.text) + ']';
    last_caseless_ = '\0';
    return true;
  }

  // Letters of ASCII only, as in "'(?i:[sdmt]|ll)".
  void caseless_class() {
    const std::size_t close = in_.find(']', at_);
    const std::string_view inside = in_.substr(at_ + 1, close - at_ - 1);
    if (close == std::string_view::npos || inside.empty() ||
        !std::ranges::all_of(inside, is_ascii_letter)) {
      refuse("a class of more than letters in (?i:)");
    }
    out_ += fmt::format("[{}]", inside);
    at_ = close + 1;
  }

  // One character of a class; false when a set was written instead.
  bool class_item(char32_t& code) {
    Set set;
    if (peek() == '[') refuse(peek(1) == ':' ? "'[:'" : "a class in a class");
    if (peek() == '&' && peek(1) == '&') refuse("'&&' in a class");
    if (peek() != '\\') {
      const char* p = in_.data() + at_;
      code = next_code(p);
      at_ = static_cast<std::size_t>(p - in_.data());
      return true;
    }
    if (peek(1) == 'b') refuse("'\\b' in a class");
    if (escaped_code(code)) return true;
    if (!escaped_set(set)) refuse(json_quote(in_.substr(at_, 2)) + " in a class");
    out_ += set.negated ? opposite(set) : set.text;
    return false;
  }

  void character_class() {
    ++at_;
    out_ += take("^") ? "[^" : "[";
    if (peek() == ']') refuse("an empty class");
    while (true) {
      if (done()) refuse("'[' without ']'");
      if (out_.size() > kMaxTranslation) refuse("too many classes");
      if (take("]")) break;
      char32_t first = 0;
      if (!class_item(first)) {
        if (peek() == '-' && peek(1) != ']') refuse("a range from a set");
        continue;
      }
      char32_t last = first;
      if (peek() == '-' && peek(1) != ']' && at_ + 1 < in_.size()) {
        ++at_;
        if (!class_item(last)) refuse("a range to a set");
        if (last < first) refuse("a range that ends before it begins");
      }
      if (first < 0xd800 && last > 0xdfff) {
        out_ += ranges_text({{first, 0xd7ff}, {0xe000, last}});
      } else {
        out_ += ranges_text({{first, last}});
      }
    }
    out_ += ']';
  }

  std::string_view in_;
  std::size_t at_ = 0;
  std::string out_;
  bool exact_count_ = false;
  char last_caseless_ = '\0';
};

}  // namespace

std::string translated_pattern(std::string_view pattern) { return Translator(pattern).run(); }

}  // namespace touchstone::inline v0::io
