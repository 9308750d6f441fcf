#include "judge/contender/signatures.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace touchstone::judge {
namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Words and single signs of a C file. Comments, preprocessor lines and the insides of literals are
// left out.
std::vector<std::string> tokens_of(std::string_view text) {
  std::vector<std::string> tokens;
  bool line_start = true;
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '\n') {
      line_start = true;
      ++i;
    } else if (std::isspace(static_cast<unsigned char>(c)) != 0) {
      ++i;
    } else if (text.substr(i, 2) == "//") {
      i = std::min(text.find('\n', i), text.size());
    } else if (text.substr(i, 2) == "/*") {
      const std::size_t end = text.find("*/", i + 2);
      i = end == std::string_view::npos ? text.size() : end + 2;
    } else if (c == '#' && line_start) {
      while (i < text.size() && text[i] != '\n')
        i += text[i] == '\\' && i + 1 < text.size() ? 2 : 1;
    } else if (text.substr(i, 2) == "R\"") {
      const std::size_t open = std::min(text.find('(', i), text.size());
      std::string end(")");
      end.append(text.substr(i + 2, open - i - 2)).append("\"");
      const std::size_t close = text.find(end, open);
      i = close == std::string_view::npos ? text.size() : close + end.size();
      tokens.emplace_back("\"\"");
    } else if (c == '"' || (c == '\'' && (i == 0 || !is_word(text[i - 1])))) {
      const std::size_t begin = ++i;
      while (i < text.size() && text[i] != c) i += text[i] == '\\' ? 2 : 1;
      // The one literal that matters: extern "C".
      tokens.emplace_back(text.substr(begin - 1, std::min<std::size_t>(i - begin, 3) + 2));
      ++i;
    } else if (is_word(c)) {
      const std::size_t begin = i;
      while (i < text.size() && is_word(text[i])) ++i;
      tokens.emplace_back(text.substr(begin, i - begin));
      line_start = false;
    } else {
      tokens.emplace_back(1, c);
      line_start = false;
      ++i;
    }
  }
  return tokens;
}

// Index behind the bracket that closes the one at `open`.
std::size_t behind_bracket(const std::vector<std::string>& tokens, std::size_t open) {
  int depth = 0;
  for (std::size_t i = open; i < tokens.size(); ++i) {
    const std::string& t = tokens[i];
    if (t == "(" || t == "{" || t == "[") ++depth;
    if (t == ")" || t == "}" || t == "]") --depth;
    if (depth == 0) return i + 1;
  }
  return tokens.size();
}

constexpr std::array<std::string_view, 22> kPlainWords = {
    "const",  "unsigned", "signed",  "int",      "long",    "short",    "char",     "float",
    "double", "void",     "bool",    "size_t",   "int64_t", "int32_t",  "uint64_t", "uint32_t",
    "int8_t", "uint8_t",  "int16_t", "uint16_t", "struct",  "ptrdiff_t"};
constexpr std::array<std::string_view, 5> kNoise = {"restrict", "__restrict", "__restrict__", "std",
                                                    "register"};

bool contains(const auto& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

// One parameter without its name: "const float *restrict x" -> "const float*".
std::string type_of(const std::vector<std::string>& words, bool& plain) {
  std::vector<std::string> kept;
  for (const std::string& word : words) {
    if (word == "=") break;
    if (contains(kNoise, word) || word == ":") continue;
    kept.push_back(word);
  }
  bool array = false;
  if (const auto bracket = std::find(kept.begin(), kept.end(), "["); bracket != kept.end()) {
    array = true;  // float x[] is a pointer
    kept.erase(bracket, kept.end());
  }
  const bool named =
      kept.size() > 1 && is_word(kept.back()[0]) && !contains(kPlainWords, kept.back());
  if (named) kept.pop_back();
  if (array) kept.emplace_back("*");
  std::string type;
  for (const std::string& word : kept) {
    if (word != "*" && !contains(kPlainWords, word)) plain = plain && word == "cudaStream_t";
    if (!type.empty() && word != "*") type += " ";
    type += word;
  }
  return type;
}

std::vector<std::vector<std::string>> split_arguments(const std::vector<std::string>& tokens,
                                                      std::size_t begin, std::size_t end) {
  std::vector<std::vector<std::string>> parts;
  int depth = 0;
  for (std::size_t i = begin; i < end; ++i) {
    const std::string& t = tokens[i];
    if (t == "(" || t == "<" || t == "[" || t == "{") ++depth;
    if (t == ")" || t == ">" || t == "]" || t == "}") --depth;
    if (parts.empty()) parts.emplace_back();
    if (t == "," && depth == 0) {
      parts.emplace_back();
    } else {
      parts.back().push_back(t);
    }
  }
  return parts;
}

constexpr std::array<std::string_view, 9> kNotNames = {
    "if", "for", "while", "switch", "return", "catch", "sizeof", "__attribute__", "alignas"};
constexpr std::array<std::string_view, 6> kSpecifiers = {"inline", "extern", "constexpr",
                                                         "\"C\"",  "static", "__host__"};

// The definition whose parameter list opens at `open`, if it is one.
bool read_definition(const std::vector<std::string>& tokens, std::size_t begin, std::size_t open,
                     Signature& out) {
  const std::string& name = tokens[open - 1];
  if (!is_word(name[0]) || contains(kNotNames, name)) return false;
  const std::size_t close = behind_bracket(tokens, open);
  std::size_t next = close;
  while (next < tokens.size() && (tokens[next] == "noexcept" || tokens[next] == "const")) ++next;
  if (next >= tokens.size() || tokens[next] != "{") return false;
  out = {};
  out.name = name;
  std::vector<std::string> words;
  for (std::size_t i = begin; i + 1 < open; ++i) {
    out.is_static = out.is_static || tokens[i] == "static";
    if (tokens[i] == "__global__" || tokens[i] == "template") return false;
    if (!contains(kSpecifiers, tokens[i])) words.push_back(tokens[i]);
  }
  words.emplace_back("name");
  out.returns = type_of(words, out.plain);
  for (const auto& part : split_arguments(tokens, open + 1, close - 1)) {
    if (part.size() == 1 && part[0] == "void") continue;
    out.types.push_back(type_of(part, out.plain));
    if (std::find(part.begin(), part.end(), "=") == part.end()) ++out.required;
  }
  return !out.returns.empty();
}

}  // namespace

std::vector<Signature> scan_c(std::string_view text) {
  const std::vector<std::string> tokens = tokens_of(text);
  std::vector<Signature> found;
  std::size_t begin = 0;  // of the declaration being read
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::string& t = tokens[i];
    if (t == ";" || t == "}") {
      begin = i + 1;
    } else if (t == "(" && i > begin) {
      Signature signature;
      if (read_definition(tokens, begin, i, signature)) {
        found.push_back(signature);
      }
      i = behind_bracket(tokens, i) - 1;
    } else if (t == "{") {
      // Namespaces and extern "C" are looked into, bodies and types are not.
      const bool open = i > 0 && (tokens[begin] == "namespace" || tokens[i - 1] == "\"C\"" ||
                                  (tokens[begin] == "inline" && tokens[begin + 1] == "namespace"));
      if (!open) i = behind_bracket(tokens, i) - 1;
      begin = i + 1;
    }
  }
  return found;
}

std::vector<Signature> scan_python(std::string_view text) {
  std::vector<Signature> found;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    if (text.substr(at, 4) == "def ") {
      const std::size_t open = text.find('(', at);
      if (open != std::string_view::npos && open < end) {
        Signature signature;
        signature.name = text.substr(at + 4, open - at - 4);
        while (!signature.name.empty() && signature.name.back() == ' ') signature.name.pop_back();
        const std::vector<std::string> tokens = tokens_of(text.substr(open, 4096));
        const std::size_t close = behind_bracket(tokens, 0);
        for (const auto& part : split_arguments(tokens, 1, close > 0 ? close - 1 : 0)) {
          if (part.empty() || part[0] == "*" || part[0] == "/") continue;
          signature.types.push_back(part[0]);
          if (std::find(part.begin(), part.end(), "=") == part.end()) ++signature.required;
        }
        found.push_back(std::move(signature));
      }
    }
    at = end + 1;
  }
  return found;
}

}  // namespace touchstone::judge
