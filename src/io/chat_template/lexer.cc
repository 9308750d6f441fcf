#include "io/chat_template/lexer.h"

#include <algorithm>
#include <array>

#include "io/chat_template/text.h"
#include "io/utf8.h"
#include "touchstone/io/chat_template.h"

namespace touchstone::inline v0::io::chat {
namespace {

constexpr std::size_t kNone = std::string_view::npos;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_byte(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

// Longest first.
constexpr std::array<std::string_view, 6> kLongOperators = {"//", "**", "==", "!=", ">=", "<="};
constexpr std::string_view kShortOperators = "+-/*%~[](){}<>=.:|,;";

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) template_text();
    add(TokenKind::end, source_.size(), 0);
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(std::size_t at, const std::string& problem) const {
    const Place place = place_of(source_, static_cast<Offset>(at));
    throw TemplateError(TemplateFault::syntax, place.line, place.column, problem);
  }

  void add(TokenKind kind, std::size_t at, std::size_t length) {
    tokens_.push_back({kind, static_cast<Offset>(at), source_.substr(at, length)});
  }

  bool next_is(std::string_view text, std::size_t at) const {
    return source_.substr(at, text.size()) == text;
  }

  std::size_t skip_space(std::size_t at) const {
    while (at < source_.size()) {
      std::size_t next = at;
      if (!is_space(next_code_point(source_, next))) break;
      at = next;
    }
    return at;
  }

  // Sets the position behind a token, which matters for the white space in front of the next tag.
  void move_to(std::size_t at) {
    line_starting_ = at > 0 && at <= source_.size() && source_[at - 1] == '\n';
    at_ = at;
  }

  // The text in front of a tag whose sign is at `sign`; lstrip_blocks holds for all but {{.
  void data(std::size_t begin, std::size_t end, std::size_t sign, bool variable) {
    std::string_view text = source_.substr(begin, end - begin);
    const char mark = sign < source_.size() ? source_[sign] : '\0';
    if (mark == '-') {
      text = strip_right(text);
    } else if (mark != '+' && !variable) {
      const std::size_t line = text.rfind('\n') + 1;  // 0 where there is none
      if ((line > 0 || line_starting_) && strip_left(text.substr(line)).empty()) {
        text = text.substr(0, line);
      }
    }
    if (!text.empty()) add(TokenKind::data, begin, text.size());
  }

  void template_text() {
    std::size_t tag = at_;
    while (true) {
      tag = source_.find('{', tag);
      if (tag == kNone || tag + 1 >= source_.size()) {
        add(TokenKind::data, at_, source_.size() - at_);
        return move_to(source_.size());
      }
      const char kind = source_[tag + 1];
      if (kind == '{' || kind == '%' || kind == '#') break;
      ++tag;
    }
    const char kind = source_[tag + 1];
    data(at_, tag, tag + 2, kind == '{');
    std::size_t inside = tag + 2;
    if (inside < source_.size() && (source_[inside] == '-' || source_[inside] == '+')) ++inside;
    if (kind == '#') return comment(tag, inside);
    if (kind == '%' && raw(tag, inside)) return;
    const bool variable = kind == '{';
    add(variable ? TokenKind::variable_begin : TokenKind::block_begin, tag, inside - tag);
    move_to(inside);
    tag_inside(tag, variable);
  }

  // Behind "%}" or "#}" at `end`, which a sign in front of it may change.
  std::size_t behind_end(std::size_t begin, std::size_t end) const {
    const char sign = end > begin ? source_[end - 1] : '\0';
    const std::size_t behind = end + 2;
    if (sign == '-') return skip_space(behind);
    if (sign != '+' && next_is("\n", behind)) return behind + 1;
    return behind;
  }

  void comment(std::size_t tag, std::size_t begin) {
    const std::size_t end = source_.find("#}", begin);
    if (end == kNone) fail(tag, "this comment has no end '#}'");
    move_to(behind_end(begin, end));
  }

  // Whether {% raw %} begins here; if so, up to the end of {% endraw %}.
  bool raw(std::size_t tag, std::size_t inside) {
    std::size_t at = skip_space(inside);
    if (!next_is("raw", at)) return false;
    at = skip_space(at + 3);
    if (next_is("-%}", at)) {
      at = skip_space(at + 3);
    } else if (next_is("%}", at)) {
      at += 2;
    } else {
      return false;
    }
    move_to(at);
    for (std::size_t end = source_.find("{%", at); end != kNone;
         end = source_.find("{%", end + 1)) {
      std::size_t word = end + 2;
      if (word < source_.size() && (source_[word] == '-' || source_[word] == '+')) ++word;
      word = skip_space(word);
      if (!next_is("endraw", word)) continue;
      std::size_t close = skip_space(word + 6);
      const std::size_t first = close;
      if (close < source_.size() && (source_[close] == '-' || source_[close] == '+')) ++close;
      if (!next_is("%}", close)) continue;
      data(at, end, end + 2, false);
      move_to(behind_end(first, close));
      return true;
    }
    fail(tag, "this raw block has no end '{% endraw %}'");
  }

  void tag_inside(std::size_t tag, bool variable) {
    const std::string_view close = variable ? "}}" : "%}";
    std::string brackets;
    while (true) {
      move_to(skip_space(at_));
      if (at_ >= source_.size()) fail(tag, "this tag has no end");
      if (brackets.empty()) {
        std::size_t end = at_;
        if (source_[end] == '-' || (!variable && source_[end] == '+')) ++end;
        if (next_is(close, end)) {
          add(variable ? TokenKind::variable_end : TokenKind::block_end, at_, end + 2 - at_);
          if (!variable) return move_to(behind_end(at_, end));
          return move_to(end > at_ ? skip_space(end + 2) : end + 2);
        }
      }
      expression_token(brackets);
    }
  }

  void expression_token(std::string& brackets) {
    const char c = source_[at_];
    if (is_digit(c)) return number();
    if (is_name_byte(c)) {
      std::size_t end = at_;
      while (end < source_.size() && is_name_byte(source_[end])) ++end;
      return token(TokenKind::name, end);
    }
    if (c == '\'' || c == '"') return string();
    for (const std::string_view op : kLongOperators) {
      if (next_is(op, at_)) return token(TokenKind::op, at_ + op.size());
    }
    if (kShortOperators.find(c) == kNone) {
      fail(at_, "unexpected character " + python_repr(source_.substr(at_, character_length())));
    }
    if (c == '(' || c == '[' || c == '{') brackets += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (brackets.empty() || brackets.back() != c) {
        fail(at_,
             std::string("unexpected '") + c + "'" +
                 (brackets.empty() ? "" : std::string(", expected '") + brackets.back() + "'"));
      }
      brackets.pop_back();
    }
    token(TokenKind::op, at_ + 1);
  }

  std::size_t character_length() const {
    std::size_t end = at_;
    next_code_point(source_, end);
    return end - at_;
  }

  void token(TokenKind kind, std::size_t end) {
    add(kind, at_, end - at_);
    move_to(end);
  }

  void string() {
    const char quote = source_[at_];
    for (std::size_t end = at_ + 1; end < source_.size(); ++end) {
      if (source_[end] == '\\') {
        ++end;
      } else if (source_[end] == quote) {
        return token(TokenKind::string, end + 1);
      }
    }
    fail(at_, "this string has no end");
  }

  // Digits with single underscores between them.
  template <class IsDigit>
  std::size_t digits(std::size_t at, IsDigit is) const {
    while (at < source_.size()) {
      if (is(source_[at])) {
        ++at;
      } else if (source_[at] == '_' && at + 1 < source_.size() && is(source_[at + 1])) {
        at += 2;
      } else {
        break;
      }
    }
    return at;
  }

  void number() {
    if (source_[at_] == '0' && at_ + 2 < source_.size()) {
      const char base = static_cast<char>(source_[at_ + 1] | 0x20);
      std::size_t end = at_ + 2;
      if (base == 'x') {
        end = digits(
            end, [](char c) { return is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f'); });
      } else if (base == 'o') {
        end = digits(end, [](char c) { return c >= '0' && c <= '7'; });
      } else if (base == 'b') {
        end = digits(end, [](char c) { return c == '0' || c == '1'; });
      }
      if (end > at_ + 2) return token(TokenKind::integer, end);
    }
    const std::size_t whole = digits(at_, is_digit);
    const bool after_dot = at_ > 0 && source_[at_ - 1] == '.';
    std::size_t end = whole;
    if (!after_dot) {
      if (next_is(".", end) && end + 1 < source_.size() && is_digit(source_[end + 1])) {
        end = digits(end + 1, is_digit);
      }
      if (end < source_.size() && (source_[end] | 0x20) == 'e') {
        std::size_t exponent = end + 1;
        if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) {
          ++exponent;
        }
        if (exponent < source_.size() && is_digit(source_[exponent])) {
          end = digits(exponent, is_digit);
        }
      }
    }
    if (end > whole) return token(TokenKind::floating, end);
    if (source_[at_] == '0') end = digits(at_, [](char c) { return c == '0'; });
    token(TokenKind::integer, end);
  }

  std::string_view source_;
  std::size_t at_ = 0;
  bool line_starting_ = true;
  std::vector<Token> tokens_;
};

class Unescaper {
 public:
  Unescaper(std::string_view source, const Token& token)
      : source_(source), text_(token.text.substr(1, token.text.size() - 2)), begin_(token.at + 1) {}

  std::string run() {
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      c == '\\' ? escape() : void(out_ += c);
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(TemplateFault fault, const std::string& problem) const {
    const Place place = place_of(source_, static_cast<Offset>(begin_ + at_ - 1));
    throw TemplateError(fault, place.line, place.column, problem);
  }

  void escape() {
    constexpr std::string_view kLetters = "abfnrtv";
    constexpr std::string_view kMeanings = "\a\b\f\n\r\t\v";
    const char c = text_[at_++];  // the lexer leaves no backslash at the end
    const std::size_t letter = kLetters.find(c);
    if (letter != kNone) {
      out_ += kMeanings[letter];
    } else if (c == '\\' || c == '\'' || c == '"') {
      out_ += c;
    } else if (c == 'x' || c == 'u' || c == 'U') {
      hexadecimal(c == 'x' ? 2 : c == 'u' ? 4 : 8);
    } else if (c >= '0' && c <= '7') {
      octal(static_cast<char32_t>(c - '0'));
    } else if (c == 'N') {
      fail(TemplateFault::unsupported, "characters by name ('\\N{...}') are not supported");
    } else if (c != '\n') {
      out_ += '\\';
      out_ += c;
    }
  }

  void hexadecimal(int count) {
    char32_t code = 0;
    for (int i = 0; i < count; ++i, ++at_) {
      const char c = at_ < text_.size() ? static_cast<char>(text_[at_] | 0x20) : '\0';
      const bool letter = c >= 'a' && c <= 'f';
      if (!letter && !(at_ < text_.size() && is_digit(text_[at_]))) {
        fail(TemplateFault::syntax, "an escape of this string lacks hexadecimal digits");
      }
      code = code * 16 + static_cast<char32_t>(letter ? c - 'a' + 10 : text_[at_] - '0');
    }
    if (code > 0x10ffff) fail(TemplateFault::syntax, "this escape is beyond U+10FFFF");
    if (code >= 0xd800 && code < 0xe000) {
      fail(TemplateFault::unsupported, "escapes of surrogates are not supported");
    }
    append_code(out_, code);
  }

  void octal(char32_t code) {
    for (int i = 0; i < 2 && at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '7'; ++i) {
      code = code * 8 + static_cast<char32_t>(text_[at_++] - '0');
    }
    append_code(out_, code);
  }

  std::string_view source_;
  std::string_view text_;
  std::size_t begin_;
  std::size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string normalize_source(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
    } else {
      text += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

std::string unescape(std::string_view source, const Token& token) {
  return Unescaper(source, token).run();
}

Place place_of(std::string_view source, Offset at) {
  const std::string_view before = source.substr(0, at);
  const auto lines = std::ranges::count(before, '\n');
  const std::size_t line_begin = before.rfind('\n') + 1;  // 0 where there is none
  return {static_cast<int>(lines) + 1, static_cast<int>(at - line_begin) + 1};
}

}  // namespace touchstone::inline v0::io::chat
