#include "judge/measure/source/source_text.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <utility>

namespace touchstone::judge {
namespace {

bool in_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Blanks [from, to), newlines apart.
void blank(std::string& text, std::size_t from, std::size_t to) {
  for (std::size_t i = from; i < std::min(to, text.size()); ++i) {
    if (text[i] != '\n') text[i] = ' ';
  }
}

// The end of the literal that begins at `at` with a quote.
std::size_t literal_end(const std::string& text, std::size_t at) {
  const char quote = text[at];
  if (quote == '"' && at > 0 && text[at - 1] == 'R') {
    const std::size_t open = text.find('(', at);
    if (open == std::string::npos || open - at > 20) return text.size();
    const std::string close = ")" + text.substr(at + 1, open - at - 1) + "\"";
    const std::size_t end = text.find(close, open);
    return end == std::string::npos ? text.size() : end + close.size();
  }
  for (std::size_t i = at + 1; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == quote) {
      return i + 1;
    } else if (text[i] == '\n') {
      return i;
    }
  }
  return text.size();
}

// The end of a preprocessor line that goes on after a backslash.
std::size_t directive_end(const std::string& text, std::size_t at) {
  while (at < text.size()) {
    const std::size_t end = text.find('\n', at);
    if (end == std::string::npos) return text.size();
    if (end == 0 || text[end - 1] != '\\') return end;
    at = end + 1;
  }
  return text.size();
}

bool only_space_before(const std::string& text, std::size_t at) {
  while (at > 0 && text[at - 1] != '\n') {
    if (std::isspace(static_cast<unsigned char>(text[--at])) == 0) return false;
  }
  return true;
}

// Whether `word` stands at `at`, whole.
bool word_at(const std::string& text, std::size_t at, std::string_view word) {
  return text.compare(at, word.size(), word) == 0 && (at == 0 || !in_word(text[at - 1])) &&
         (at + word.size() >= text.size() || !in_word(text[at + word.size()]));
}

int count_words(const std::string& text, std::string_view word) {
  int count = 0;
  for (std::size_t at = text.find(word); at != std::string::npos;
       at = text.find(word, at + word.size())) {
    count += word_at(text, at, word) ? 1 : 0;
  }
  return count;
}

int count_text(std::string_view text, std::string_view part) {
  int count = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos;
       at = text.find(part, at + part.size())) {
    ++count;
  }
  return count;
}

int branches(const std::string& body) {
  int count = 0;
  for (const char* word : {"if", "for", "while", "case", "catch"}) {
    count += count_words(body, word);
  }
  for (const char* sign : {"&&", "||", "?"}) count += count_text(body, sign);
  return count;
}

// The name in front of the parameter list that ends before `brace`; empty where there is none.
std::string function_name(const std::string& text, std::size_t brace, std::size_t since) {
  const std::string head = text.substr(since, brace - since);
  const std::size_t open = head.find('(');
  if (open == std::string::npos || head.find('=') < open) return {};
  std::size_t end = open;
  while (end > 0 && std::isspace(static_cast<unsigned char>(head[end - 1])) != 0) --end;
  std::size_t begin = end;
  while (begin > 0 && in_word(head[begin - 1])) --begin;
  return head.substr(begin, end - begin);
}

std::size_t matching_brace(const std::string& text, std::size_t open) {
  int depth = 0;
  for (std::size_t i = open; i < text.size(); ++i) {
    if (text[i] == '{') ++depth;
    if (text[i] == '}' && --depth == 0) return i;
  }
  return text.size();
}

std::vector<std::string> telling_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string line;
    for (std::size_t i = begin; i < end; ++i) {
      if (std::isspace(static_cast<unsigned char>(text[i])) == 0) line += text[i];
    }
    // A brace alone says nothing.
    if (std::ranges::count_if(line, in_word) > 0) lines.push_back(std::move(line));
    begin = end + 1;
  }
  return lines;
}

}  // namespace

std::string masked_source(const std::string& text) {
  std::string masked = text;
  std::size_t i = 0;
  while (i < text.size()) {
    std::size_t end = i + 1;
    bool hidden = true;
    if (text.compare(i, 2, "//") == 0) {
      end = std::min(text.find('\n', i), text.size());
    } else if (text.compare(i, 2, "/*") == 0) {
      const std::size_t close = text.find("*/", i + 2);
      end = close == std::string::npos ? text.size() : close + 2;
    } else if (text[i] == '"' || (text[i] == '\'' && (i == 0 || !in_word(text[i - 1])))) {
      end = literal_end(text, i);
    } else if (text[i] == '#' && only_space_before(text, i)) {
      end = directive_end(text, i);
    } else {
      hidden = false;
    }
    if (hidden) blank(masked, i, end);
    i = end;
  }
  return masked;
}

std::vector<FunctionText> functions_of(const std::string& masked) {
  std::vector<FunctionText> found;
  std::size_t since = 0;
  for (std::size_t i = 0; i < masked.size(); ++i) {
    const char c = masked[i];
    if (c == ';' || c == '}') since = i + 1;
    if (c != '{') continue;
    const std::string name = function_name(masked, i, since);
    if (name.empty()) {  // a namespace, a class, an initializer
      since = i + 1;
      continue;
    }
    const std::size_t end = matching_brace(masked, i);
    const std::string body = masked.substr(i, end - i);
    found.push_back(
        {name, 1 + static_cast<int>(std::ranges::count(body, '\n')), 1 + branches(body)});
    i = end;
    since = end + 1;
  }
  return found;
}

int duplicated_lines(const std::vector<std::string>& masked_sources) {
  constexpr std::size_t kBlock = 6;
  std::map<std::string, int> blocks;
  std::vector<std::vector<std::string>> all;
  for (const std::string& text : masked_sources) all.push_back(telling_lines(text));
  const auto block_at = [](const std::vector<std::string>& lines, std::size_t at) {
    std::string block;
    for (std::size_t k = 0; k < kBlock; ++k) block += lines[at + k] + "\n";
    return block;
  };
  for (const auto& lines : all) {
    for (std::size_t i = 0; i + kBlock <= lines.size(); ++i) ++blocks[block_at(lines, i)];
  }
  int count = 0;
  for (const auto& lines : all) {
    std::vector<bool> repeated(lines.size(), false);
    for (std::size_t i = 0; i + kBlock <= lines.size(); ++i) {
      if (blocks[block_at(lines, i)] < 2) continue;
      for (std::size_t k = 0; k < kBlock; ++k) repeated[i + k] = true;
    }
    count += static_cast<int>(std::ranges::count(repeated, true));
  }
  return count;
}

std::vector<Mutation> mutations_of(const std::string& masked) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kChanges = {{
      {" + ", " - "},
      {" - ", " + "},
      {" * ", " + "},
      {" / ", " * "},
      {" < ", " <= "},
      {" += ", " -= "},
      {" > ", " >= "},
  }};
  std::vector<Mutation> all;
  for (const auto& [from, to] : kChanges) {
    for (std::size_t at = masked.find(from); at != std::string::npos;
         at = masked.find(from, at + from.size())) {
      all.push_back({at, from.size(), std::string(to)});
    }
  }
  std::ranges::sort(all, {}, &Mutation::at);
  return all;
}

std::vector<Mutation> spread(const std::vector<Mutation>& all, std::size_t most) {
  std::vector<Mutation> chosen;
  const std::size_t count = std::min(most, all.size());
  for (std::size_t i = 0; i < count; ++i) chosen.push_back(all[i * all.size() / count]);
  return chosen;
}

TestText tests_of(const std::string& masked) {
  TestText text;
  for (const char* macro : {"TEST", "TEST_F", "TEST_P", "TEST_CASE"}) {
    text.tests += count_words(masked, macro);
  }
  for (const FunctionText& function : functions_of(masked)) {
    text.tests += function.name.starts_with("test") || function.name.ends_with("_test") ? 1 : 0;
  }
  text.tests = std::max(text.tests, 1);  // the file itself
  for (const char* word : {"assert", "abort", "exit", "_exit", "throw", "CHECK", "REQUIRE"}) {
    text.asserts += count_words(masked, word);
  }
  for (const char* macro : {"EXPECT_", "ASSERT_", "CHECK_", "REQUIRE_"}) {
    text.asserts += count_text(masked, macro);
  }
  const std::size_t main = masked.find("main");
  for (std::size_t at = masked.find("return", std::min(main, masked.size()));
       at != std::string::npos; at = masked.find("return", at + 6)) {
    if (!word_at(masked, at, "return")) continue;
    std::string value;  // as much of it as decides
    for (std::size_t i = at + 6; i < masked.size() && masked[i] != ';' && value.size() < 2; ++i) {
      if (std::isspace(static_cast<unsigned char>(masked[i])) == 0) value += masked[i];
    }
    // A status other than success; anything computed may be one.
    if (!value.empty() && value != "0") ++text.asserts;
  }
  return text;
}

}  // namespace touchstone::judge
