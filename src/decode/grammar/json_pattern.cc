// Regular expressions of JSON Schema as expressions of GBNF, for the content of a JSON string.
#include <fmt/format.h>

#include <algorithm>

#include "decode/grammar/json_schema.h"
#include "io/json_document.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::decode::grammar {
namespace {

constexpr int kMaxGroups = 50;
// What a JSON string holds without an escape.
constexpr std::string_view kPlain = R"([^"\\\x00-\x1f])";

class PatternReader {
 public:
  PatternReader(std::string_view text, const std::string& path) : text_(text), path_(path) {}

  std::string read() {
    // Without anchors an expression matches anywhere: any text before and behind it.
    const bool begin = text_.starts_with('^');
    const bool end = text_.ends_with('$') && !text_.ends_with("\\$");
    text_.remove_prefix(begin ? 1 : 0);
    text_.remove_suffix(end && !text_.empty() ? 1 : 0);
    const std::string body = choice(0);
    if (at_ != text_.size()) refuse(fmt::format("'{}' at {}", text_[at_], at_));
    // Of alternatives an anchor covers the first or the last only; that both keep to it is fine.
    return fmt::format("{}({}){}", begin ? "" : fmt::format("{}* ", kPlain), body,
                       end ? "" : fmt::format(" {}*", kPlain));
  }

 private:
  [[noreturn]] void refuse(const std::string& problem) const {
    throw Unsupported(
        fmt::format("JSON schema: {}: pattern: {} is not supported", path_, shown_name(problem)));
  }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool done() const { return at_ >= text_.size(); }

  std::string choice(int depth) {
    if (depth > kMaxGroups) refuse(fmt::format("nesting deeper than {}", kMaxGroups));
    std::string all = sequence(depth);
    while (peek() == '|' && !done()) {
      ++at_;
      all += " | " + sequence(depth);
    }
    return all;
  }

  std::string sequence(int depth) {
    std::string all;
    while (!done() && peek() != '|' && peek() != ')') {
      if (!all.empty()) all += ' ';
      all += item(depth);
      const char c = peek();
      if (done() || (c != '*' && c != '+' && c != '?' && c != '{')) continue;
      all += repetition();
      if (peek() == '?' || peek() == '+') {
        // A lazy or possessive one has the same texts, or fewer.
        if (peek() == '+') refuse("a possessive repetition");
        ++at_;
      }
    }
    return all.empty() ? "\"\"" : all;
  }

  std::string repetition() {
    if (peek() != '{') return std::string(1, text_[at_++]);
    const std::size_t close = text_.find('}', at_);
    const std::string_view counts = text_.substr(at_ + 1, close - at_ - 1);
    const bool fine =
        close != std::string_view::npos && !counts.empty() && counts[0] != ',' &&
        std::ranges::all_of(counts, [](char c) { return (c >= '0' && c <= '9') || c == ','; });
    if (!fine) refuse("a brace that is no count");
    at_ = close + 1;
    return fmt::format("{{{}}}", counts);
  }

  std::string item(int depth) {
    const char c = text_[at_];
    switch (c) {
      case '(': {
        ++at_;
        if (text_.substr(at_, 2) == "?:") {
          at_ += 2;
        } else if (peek() == '?') {
          refuse("a group that looks around or has a name");
        }
        const std::string body = choice(depth + 1);
        if (peek() != ')') refuse("a group without its end");
        ++at_;
        return fmt::format("({})", body);
      }
      case '[':
        return set();
      case '.':
        ++at_;
        return R"([^"\\\x00-\x1f\u2028\u2029])";
      case '\\':
        return escape();
      case '^':
      case '$':
      case '*':
      case '+':
      case '?':
      case '{':
        refuse(fmt::format("'{}' at {}", c, at_));
      default: {
        std::string one(1, text_[at_++]);
        while (!done() && (static_cast<unsigned char>(peek()) & 0xc0) == 0x80) one += text_[at_++];
        return character(one);
      }
    }
  }

  // A character as a JSON string writes it.
  static std::string character(std::string_view c) {
    const std::string quoted = io::json_quote(c);
    return gbnf_literal(std::string_view(quoted).substr(1, quoted.size() - 2));
  }

  std::string escape() {
    ++at_;
    const char c = peek();
    ++at_;
    switch (c) {
      case 'd':
        return "[0-9]";
      case 'w':
        return "[0-9A-Za-z_]";
      case 's':
        return "\" \"";  // the others are escapes in JSON: one spelling is enough
      case 'D':
        return R"([ !#-/:-\[\]-~])";  // of ASCII: readers differ on the digits beyond it
      case 'W':
        return R"([ !#-/:-@\[\]\^`{-~])";
      case 'S':
        return R"([!#-\[\]-~])";
      case '.':
      case '/':
      case '-':
      case '(':
      case ')':
      case '[':
      case ']':
      case '{':
      case '}':
      case '+':
      case '*':
      case '?':
      case '^':
      case '$':
      case '|':
      case '\\':
      case '"':
        return character(std::string_view(&text_[at_ - 1], 1));
      default:
        refuse(fmt::format("the escape '\\{}'", done() && c == '\0' ? ' ' : c));
    }
  }

  // Of a set the characters that need no escape in JSON.
  std::string set() {
    const std::size_t begin = at_++;
    const bool negative = peek() == '^' && !done();
    if (negative) ++at_;
    std::string content;
    bool ascii = false;  // of a negative set with a class
    while (!done() && peek() != ']') {
      if (peek() == '\\') {
        ++at_;
        const char c = peek();
        ++at_;
        ascii = ascii || c == 'd' || c == 'w' || c == 's';
        if (c == 'd') {
          content += "0-9";
        } else if (c == 'w') {
          content += "0-9A-Za-z_";
        } else if (c == 's') {
          content += ' ';
        } else if (std::string_view("-]\\^[./+*?()|${}").find(c) != std::string_view::npos) {
          content += (c == '-' || c == ']' || c == '\\' || c == '^' || c == '[')
                         ? std::string("\\") + c
                         : std::string(1, c);
        } else {
          refuse(fmt::format("the escape '\\{}' in a set", c));
        }
        continue;
      }
      const char c = text_[at_++];
      if (static_cast<unsigned char>(c) < 0x20) refuse("a control character");
      if (c == '-') {
        // Between two characters a range, else itself.
        const bool edge = content.empty() || done() || peek() == ']';
        content += edge ? "\\-" : "-";
      } else {
        content += c == '[' || c == '^' ? std::string("\\") + c : std::string(1, c);
      }
    }
    if (done()) refuse(fmt::format("the set at {} without its end", begin));
    ++at_;
    if (content.empty()) refuse("an empty set");
    if (negative) {
      return fmt::format(R"([^{}"\\\x00-\x1f{}])", content, ascii ? R"(\x7f-\U0010ffff)" : "");
    }
    // A positive set must not hold what JSON escapes: quotes and backslashes in it are refused.
    if (content.find('"') != std::string::npos || content.find("\\\\") != std::string::npos ||
        wide_range(content)) {
      refuse("a set with quotes or backslashes");
    }
    return fmt::format("[{}]", content);
  }

  // Whether a range of the set holds a quote or a backslash.
  static bool wide_range(std::string_view content) {
    for (std::size_t i = 1; i + 1 < content.size(); ++i) {
      if (content[i] != '-' || content[i - 1] == '\\') continue;
      // Bytes of UTF-8 are above both.
      const auto low = static_cast<unsigned char>(content[i - 1]);
      const auto high = static_cast<unsigned char>(content[i + 1]);
      if ((low <= '"' && high >= '"') || (low <= '\\' && high >= '\\')) return true;
    }
    return false;
  }

  std::string_view text_;
  const std::string& path_;
  std::size_t at_ = 0;
};

}  // namespace

std::string pattern_expression(std::string_view pattern, const std::string& path) {
  return PatternReader(pattern, path).read();
}

}  // namespace touchstone::inline v0::decode::grammar
