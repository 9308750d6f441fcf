// GBNF: name ::= alternatives, with "texts", [sets], ., groups, ?, *, +, {m}, {m,}, {m,n}, # comments.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <unordered_map>

#include "decode/grammar/syntax.h"
#include "io/utf8.h"

namespace touchstone::inline v0::decode::grammar {
namespace {

constexpr int kMaxNesting = 100;  // of groups
constexpr int kMaxRepeats = 4;    // of repetitions of one item, as in a?*
constexpr std::size_t kMaxExpressions = 1 << 16;
constexpr std::int32_t kMaxCount = 100'000;  // of a repetition
constexpr char32_t kLastCode = 0x10ffff;

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_';
}

std::vector<CodeRange> united(std::vector<CodeRange> ranges) {
  std::ranges::sort(ranges, {}, &CodeRange::first);
  std::vector<CodeRange> out;
  for (const CodeRange& range : ranges) {
    if (!out.empty() && range.first <= out.back().last + 1) {
      out.back().last = std::max(out.back().last, range.last);
    } else {
      out.push_back(range);
    }
  }
  return out;
}

std::vector<CodeRange> complement(const std::vector<CodeRange>& ranges) {
  std::vector<CodeRange> out;
  char32_t next = 0;
  for (const CodeRange& range : ranges) {
    if (range.first > next) out.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastCode) out.push_back({next, kLastCode});
  return out;
}

class Parser {
 public:
  Parser(std::string_view text, const GrammarLimits& limits) : text_(text), limits_(limits) {}

  Syntax parse() {
    skip(true);
    while (at_ < text_.size()) {
      rule();
      skip(true);
    }
    for (const Rule& rule : syntax_.rules) {
      if (rule.body < 0) {
        throw GrammarError(rule.line, rule.column,
                           fmt::format("the rule '{}' is not defined", rule.name));
      }
    }
    const auto root = ids_.find("root");
    if (root == ids_.end()) throw GrammarError(1, 1, "there is no rule 'root'");
    syntax_.root = root->second;
    return std::move(syntax_);
  }

 private:
  [[noreturn]] void fail_at(std::size_t at, const std::string& problem) const {
    int line = 1;
    std::size_t begin = 0;
    for (std::size_t i = 0; i < at; ++i) {
      if (text_[i] == '\n') {
        ++line;
        begin = i + 1;
      }
    }
    throw GrammarError(line, static_cast<int>(at - begin) + 1, problem);
  }
  [[noreturn]] void fail(const std::string& problem) const { fail_at(at_, problem); }

  bool done() const { return at_ >= text_.size(); }
  char peek() const { return done() ? '\0' : text_[at_]; }
  std::string shown() const {
    if (done()) return "the end";
    const auto c = static_cast<unsigned char>(text_[at_]);
    return c > 0x20 && c < 0x7f ? fmt::format("'{}'", text_[at_]) : fmt::format("byte 0x{:02x}", c);
  }

  // Spaces and comments; line breaks where the text may go on behind them.
  void skip(bool lines) {
    while (!done()) {
      const char c = text_[at_];
      if (c == '#') {
        while (!done() && text_[at_] != '\n') ++at_;
      } else if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r'))) {
        advance_line();
      } else {
        return;
      }
    }
  }
  void advance_line() {
    if (text_[at_] == '\n') {
      ++line_;
      line_begin_ = at_ + 1;
    }
    ++at_;
  }

  std::int32_t add(Expression expression, std::size_t at) {
    if (syntax_.expressions.size() >= kMaxExpressions) {
      fail_at(at, fmt::format("more than {} expressions", kMaxExpressions));
    }
    // An expression never spans the line break that line_ counts, but groups do: they are given the
    // place of their first part.
    if (expression.line == 0) {
      expression.line = line_;
      expression.column = at >= line_begin_ ? static_cast<int>(at - line_begin_) + 1 : 1;
    }
    syntax_.expressions.push_back(std::move(expression));
    return static_cast<std::int32_t>(syntax_.expressions.size()) - 1;
  }

  std::string_view name() {
    const std::size_t begin = at_;
    while (!done() && is_name_character(text_[at_])) ++at_;
    if (at_ == begin) fail(fmt::format("expected a name, got {}", shown()));
    if (at_ - begin > 200) fail_at(begin, "a name of more than 200 bytes");
    return text_.substr(begin, at_ - begin);
  }

  std::int32_t rule_id(std::string_view name, std::size_t at) {
    const auto [found, added] =
        ids_.emplace(std::string(name), static_cast<std::int32_t>(syntax_.rules.size()));
    if (added) {
      if (static_cast<std::int32_t>(syntax_.rules.size()) >= limits_.max_rules) {
        fail_at(at, fmt::format("more than {} rules", limits_.max_rules));
      }
      syntax_.rules.push_back(
          {std::string(name), -1, line_, static_cast<int>(at - line_begin_) + 1});
    }
    return found->second;
  }

  void rule() {
    const std::size_t begin = at_;
    const std::string_view called = name();
    const std::int32_t id = rule_id(called, begin);
    Rule& rule = syntax_.rules[static_cast<std::size_t>(id)];
    if (rule.body >= 0) fail_at(begin, fmt::format("the rule '{}' is defined twice", called));
    rule.line = line_;
    rule.column = static_cast<int>(begin - line_begin_) + 1;
    skip(false);
    if (text_.substr(at_, 3) != "::=") fail(fmt::format("expected ::=, got {}", shown()));
    at_ += 3;
    skip(true);
    const std::int32_t body = choice(0);
    syntax_.rules[static_cast<std::size_t>(id)].body = body;
    skip(false);
    if (!done() && peek() != '\n' && peek() != '\r') {
      fail(fmt::format("expected the end of the rule, got {}", shown()));
    }
  }

  std::int32_t choice(int depth) {
    const std::size_t begin = at_;
    Expression all;
    all.kind = Expression::Kind::choice;
    all.line = line_;
    all.column = static_cast<int>(begin - line_begin_) + 1;
    all.parts.push_back(sequence(depth));
    while (next_is_alternative()) {
      ++at_;
      skip(true);
      all.parts.push_back(sequence(depth));
    }
    return all.parts.size() == 1 ? all.parts[0] : add(std::move(all), begin);
  }

  // A bar, also at the beginning of a later line.
  bool next_is_alternative() {
    skip(false);
    if (peek() == '|') return true;
    const auto saved = std::tuple(at_, line_, line_begin_);
    skip(true);
    if (peek() == '|') return true;
    std::tie(at_, line_, line_begin_) = saved;
    return false;
  }

  std::int32_t sequence(int depth) {
    const std::size_t begin = at_;
    Expression all;
    all.kind = Expression::Kind::sequence;
    all.line = line_;
    all.column = static_cast<int>(begin - line_begin_) + 1;
    while (true) {
      skip(depth > 0);
      const char c = peek();
      if (done() || c == '|' || c == ')' || c == '\n' || c == '\r') break;
      std::int32_t part = item(depth);
      for (int repeats = 0;; ++repeats) {
        skip(depth > 0);
        const auto counts = repetition();
        if (!counts) break;
        if (repeats == kMaxRepeats) fail(fmt::format("more than {} repetitions", kMaxRepeats));
        Expression repeat;
        repeat.kind = Expression::Kind::repeat;
        repeat.parts = {part};
        std::tie(repeat.min, repeat.max) = *counts;
        part = add(std::move(repeat), at_ - 1);
      }
      all.parts.push_back(part);
    }
    return all.parts.size() == 1 ? all.parts[0] : add(std::move(all), begin);
  }

  std::optional<std::pair<std::int32_t, std::int32_t>> repetition() {
    const char c = peek();
    if (c == '?' || c == '*' || c == '+') {
      ++at_;
      return std::pair(c == '+' ? 1 : 0, c == '?' ? 1 : -1);
    }
    if (c != '{') return std::nullopt;
    const std::size_t begin = at_++;
    skip(false);
    const std::int32_t min = peek() == ',' ? 0 : count();
    std::int32_t max = min;
    skip(false);
    if (peek() == ',') {
      ++at_;
      skip(false);
      max = peek() == '}' ? -1 : count();
      skip(false);
    }
    if (peek() != '}') fail(fmt::format("expected '}}', got {}", shown()));
    ++at_;
    if (max >= 0 && max < min) fail_at(begin, fmt::format("{{{},{}}} repeats nothing", min, max));
    return std::pair(min, max);
  }

  std::int32_t count() {
    const std::size_t begin = at_;
    std::int32_t value = 0;
    while (peek() >= '0' && peek() <= '9') {
      value = std::min(value * 10 + (peek() - '0'), kMaxCount + 1);
      ++at_;
    }
    if (at_ == begin) fail(fmt::format("expected a number, got {}", shown()));
    if (value > kMaxCount) fail_at(begin, fmt::format("a count of more than {}", kMaxCount));
    return value;
  }

  std::int32_t item(int depth) {
    const std::size_t begin = at_;
    const char c = peek();
    Expression one;
    if (c == '"') {
      one.kind = Expression::Kind::literal;
      one.text = literal();
    } else if (c == '[') {
      one.kind = Expression::Kind::set;
      one.ranges = set();
    } else if (c == '.') {
      ++at_;
      one.kind = Expression::Kind::set;
      one.ranges = {{0, kLastCode}};
    } else if (c == '(') {
      if (depth >= kMaxNesting) fail(fmt::format("groups nested deeper than {}", kMaxNesting));
      ++at_;
      skip(true);
      const std::int32_t inner = choice(depth + 1);
      skip(true);
      if (peek() != ')') fail(fmt::format("expected ')', got {}", shown()));
      ++at_;
      return inner;
    } else if (is_name_character(c)) {
      one.kind = Expression::Kind::rule;
      const std::string_view called = name();
      one.rule = rule_id(called, begin);
    } else if (c == '<' || c == '!') {
      fail("tokens as symbols are not supported");
    } else {
      fail(fmt::format("expected a text, a set, a group or a rule, got {}", shown()));
    }
    return add(std::move(one), begin);
  }

  std::string literal() {
    const std::size_t begin = at_++;
    std::string bytes;
    while (peek() != '"' || done()) {
      if (done() || peek() == '\n') fail_at(begin, "a text without its closing quote");
      io::append_code(bytes, character());
    }
    ++at_;
    return bytes;
  }

  std::vector<CodeRange> set() {
    const std::size_t begin = at_++;
    const bool negative = peek() == '^';
    if (negative) ++at_;
    std::vector<CodeRange> ranges;
    while (peek() != ']' || done()) {
      if (done() || peek() == '\n') fail_at(begin, "a set without its closing bracket");
      const std::size_t from = at_;
      const char32_t first = character();
      char32_t last = first;
      if (peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        ++at_;
        last = character();
      }
      if (last < first) fail_at(from, "a range that ends before it begins");
      ranges.push_back({first, last});
    }
    ++at_;
    ranges = united(std::move(ranges));
    return negative ? complement(ranges) : ranges;
  }

  // One character, escaped or not.
  char32_t character() {
    if (peek() != '\\') return plain();
    const std::size_t begin = at_++;
    const char c = peek();
    ++at_;
    switch (c) {
      case 'n':
        return U'\n';
      case 'r':
        return U'\r';
      case 't':
        return U'\t';
      case '\\':
      case '"':
      case '[':
      case ']':
      case '-':
      case '^':
      case '/':
        return static_cast<char32_t>(c);
      case 'x':
        return digits(begin, 2);
      case 'u':
        return digits(begin, 4);
      case 'U':
        return digits(begin, 8);
      default:
        fail_at(begin, "an escape that is not known");
    }
  }

  char32_t digits(std::size_t begin, int count) {
    char32_t code = 0;
    for (int i = 0; i < count; ++i) {
      const char c = peek();
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) fail_at(begin, fmt::format("an escape of fewer than {} digits", count));
      code = code << 4 | static_cast<char32_t>(digit);
      if (code > kLastCode) fail_at(begin, "an escape beyond U+10FFFF");
      ++at_;
    }
    if (code >= 0xd800 && code <= 0xdfff) fail_at(begin, "half of a surrogate pair");
    return code;
  }

  char32_t plain() {
    const auto byte = [&](std::size_t i) -> char32_t {
      return at_ + i < text_.size() ? static_cast<unsigned char>(text_[at_ + i]) : 0;
    };
    const char32_t lead = byte(0);
    const std::size_t length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    char32_t code = length == 1 ? lead : lead & (0xffU >> (length + 1));
    for (std::size_t i = 1; i < length; ++i) {
      if ((byte(i) & 0xc0) != 0x80) fail("bytes that are not UTF-8");
      code = code << 6 | (byte(i) & 0x3f);
    }
    constexpr char32_t kMin[] = {0, 0x80, 0x800, 0x10000};
    const bool lone_tail = lead >= 0x80 && lead < 0xc2;
    if (lone_tail || lead > 0xf4 || code < kMin[length - 1] || code > kLastCode ||
        (code >= 0xd800 && code <= 0xdfff)) {
      fail("bytes that are not UTF-8");
    }
    at_ += length;
    return code;
  }

  std::string_view text_;
  const GrammarLimits& limits_;
  std::size_t at_ = 0;
  int line_ = 1;
  std::size_t line_begin_ = 0;
  Syntax syntax_;
  std::unordered_map<std::string, std::int32_t> ids_;
};

}  // namespace

Syntax parse_gbnf(std::string_view text, const GrammarLimits& limits) {
  if (text.size() > limits.max_source_bytes) {
    throw GrammarError(1, 1,
                       fmt::format("{} bytes, at most {}", text.size(), limits.max_source_bytes));
  }
  return Parser(text, limits).parse();
}

}  // namespace touchstone::inline v0::decode::grammar
