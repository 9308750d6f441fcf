#include "judge/contender/signatures.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <span>
#include <utility>

namespace touchstone::judge {
namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Words and single signs of a text, and where its brackets close.
class Tokens {
 public:
  explicit Tokens(std::vector<std::string> words) : words_(std::move(words)) {
    std::vector<std::size_t> open;
    for (std::size_t i = 0; i < words_.size(); ++i) {
      const std::string& t = words_[i];
      behind_.push_back(i + 1);
      if (t == "(" || t == "{" || t == "[") {
        behind_.back() = words_.size();
        open.push_back(i);
      } else if ((t == ")" || t == "}" || t == "]") && !open.empty()) {
        behind_[open.back()] = i + 1;
        open.pop_back();
      }
    }
  }

  std::size_t size() const { return words_.size(); }
  const std::string& operator[](std::size_t i) const { return words_[i]; }
  // Index behind the bracket that closes the one at `open`, found once for all: a search from each
  // bracket that is never closed takes time that grows with the square of the text.
  std::size_t behind_bracket(std::size_t open) const {
    return open < behind_.size() ? behind_[open] : words_.size();
  }

 private:
  std::vector<std::string> words_;
  std::vector<std::size_t> behind_;
};

// Of a C file. Comments, preprocessor lines and the insides of literals are left out.
Tokens tokens_of(std::string_view text) {
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
  return Tokens(std::move(tokens));
}

// Whoever writes more than this writes it for the scanner: the functions of one file, the namespaces
// round one, the characters of their names, the tokens of a type.
constexpr std::size_t kMaxFunctions = 2000;
constexpr std::size_t kMaxScopes = 32;
constexpr std::size_t kMaxScopeName = 200;
constexpr std::size_t kMaxTypeTokens = 100;

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

// Tokens as a compiler can read them again: a space only between two words.
std::string joined(const std::vector<std::string>& tokens) {
  std::string text;
  for (const std::string& t : tokens) {
    if (!text.empty() && is_word(text.back()) && is_word(t[0])) text += ' ';
    text += t;
  }
  return text;
}

// The name of a parameter, if it has one, and its type as it is written.
std::pair<std::string, std::string> name_and_type(const std::vector<std::string>& words) {
  std::vector<std::string> kept(words.begin(), std::find(words.begin(), words.end(), "="));
  bool array = false;
  if (const auto bracket = std::find(kept.begin(), kept.end(), "["); bracket != kept.end()) {
    array = true;
    kept.erase(bracket, kept.end());
  }
  std::string name;
  if (kept.size() > 1 && is_word(kept.back()[0]) && !contains(kPlainWords, kept.back())) {
    name = kept.back();
    kept.pop_back();
  }
  if (array) kept.emplace_back("*");
  return {name, joined(kept)};
}

// A word of capital letters is a macro: EXPORT int f(), API(int) f().
bool is_macro(const std::string& word) {
  return word.size() > 1 && std::all_of(word.begin(), word.end(), [](unsigned char c) {
           return std::isupper(c) != 0 || std::isdigit(c) != 0 || c == '_';
         });
}

// Index behind `template <...>`, which ends before `end`.
std::size_t behind_template(const Tokens& tokens, std::size_t begin, std::size_t end) {
  int depth = 0;
  for (std::size_t i = begin + 1; i < end; ++i) {
    if (tokens[i] == "<") ++depth;
    if (tokens[i] == ">" && --depth == 0) return i + 1;
  }
  return begin;
}

// Index behind what may stand between the arguments of a function and its body; a trailing return
// type is kept.
std::size_t behind_qualifiers(const Tokens& tokens, std::size_t next,
                              std::vector<std::string>& trailing) {
  const auto at = [&](std::size_t i) { return i < tokens.size() ? tokens[i] : std::string(); };
  while (next < tokens.size()) {
    if (at(next) == "const" || at(next) == "override" || at(next) == "final") {
      ++next;
    } else if (at(next) == "noexcept" || at(next) == "__attribute__") {
      next = at(next + 1) == "(" ? tokens.behind_bracket(next + 1) : next + 1;
    } else if (at(next) == "[" && at(next + 1) == "[") {
      next = tokens.behind_bracket(next);
    } else if (at(next) == "-" && at(next + 1) == ">") {
      next += 2;
      const std::size_t end = std::min(tokens.size(), next + kMaxTypeTokens);
      while (next < end && at(next) != "{" && at(next) != ";") {
        trailing.push_back(tokens[next++]);
      }
      break;
    } else {
      break;
    }
  }
  return next;
}

std::vector<std::vector<std::string>> split_arguments(const Tokens& tokens, std::size_t begin,
                                                      std::size_t end) {
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

// What stands before the name: without specifiers, attributes and macros.
std::vector<std::string> return_words(const Tokens& tokens, std::size_t begin, std::size_t end,
                                      Signature& out) {
  std::vector<std::string> words;
  for (std::size_t i = begin; i < end; ++i) {
    out.is_static = out.is_static || tokens[i] == "static";
    out.c_linkage = out.c_linkage || tokens[i] == "\"C\"";
    const bool attribute = tokens[i] == "[" || tokens[i] == "__attribute__";
    if (attribute) {
      i = tokens.behind_bracket(tokens[i] == "[" ? i : i + 1) - 1;
    } else if (!contains(kSpecifiers, tokens[i]) && !is_macro(tokens[i]) && tokens[i] != "(" &&
               tokens[i] != ")") {
      words.push_back(tokens[i]);
    }
  }
  return words;
}

// The definition whose parameter list opens at `open`, if it is one; `body` is where it begins.
bool read_definition(const Tokens& tokens, std::size_t begin, std::size_t open, Signature& out,
                     std::size_t& body) {
  const std::string& name = tokens[open - 1];
  if (!is_word(name[0]) || contains(kNotNames, name) || name == "noexcept") return false;
  const std::size_t close = tokens.behind_bracket(open);
  std::vector<std::string> trailing;
  body = behind_qualifiers(tokens, close, trailing);
  if (body >= tokens.size() || tokens[body] != "{") return false;
  out = {};
  out.name = name;
  if (tokens[begin] == "template") {
    out.is_template = true;
    begin = behind_template(tokens, begin, open);
  }
  for (std::size_t i = begin; i + 1 < open; ++i) {
    if (tokens[i] == "__global__") return false;
  }
  std::vector<std::string> words = return_words(tokens, begin, open - 1, out);
  if (!trailing.empty()) words = trailing;
  if (words.empty()) return false;
  out.written_return = joined(words);
  words.emplace_back("name");
  out.returns = type_of(words, out.plain);
  for (const auto& part : split_arguments(tokens, open + 1, close - 1)) {
    if (part.size() == 1 && part[0] == "void") continue;
    out.types.push_back(type_of(part, out.plain));
    const auto [argument, type] = name_and_type(part);
    out.names.push_back(argument);
    out.written.push_back(type);
    if (std::find(part.begin(), part.end(), "=") == part.end()) ++out.required;
  }
  out.plain = out.plain && !out.is_template;
  return !out.returns.empty();
}

}  // namespace

std::vector<Signature> scan_c(std::string_view text) {
  const Tokens tokens = tokens_of(text);
  std::vector<Signature> found;
  std::vector<std::string> scopes;  // that are open; empty names are those of extern "C"
  std::size_t begin = 0;            // of the declaration being read
  for (std::size_t i = 0; i < tokens.size() && found.size() < kMaxFunctions; ++i) {
    const std::string& t = tokens[i];
    if (t == ";" || t == "}") {
      if (t == "}" && !scopes.empty()) scopes.pop_back();
      begin = i + 1;
    } else if (t == "(" && i > begin) {
      Signature signature;
      std::size_t body = 0;
      const bool definition = read_definition(tokens, begin, i, signature, body);
      if (definition) {
        for (const std::string& scope :
             std::span(scopes).first(std::min(scopes.size(), kMaxScopes))) {
          if (scope == "\"C\"") signature.c_linkage = true;
          if (scope == "\"C\"" || scope.empty()) continue;
          signature.scope += (signature.scope.empty() ? "" : "::") + scope;
        }
        signature.is_static =
            signature.is_static || std::find(scopes.begin(), scopes.end(), "") != scopes.end();
        found.push_back(signature);
      }
      i = definition ? body - 1 : tokens.behind_bracket(i) - 1;
    } else if (t == "{") {
      // Namespaces and extern "C" are looked into, bodies and types are not.
      const bool open = i > 0 && (tokens[begin] == "namespace" || tokens[i - 1] == "\"C\"" ||
                                  (tokens[begin] == "inline" && tokens[begin + 1] == "namespace"));
      if (open) {
        const bool linkage = tokens[i - 1] == "\"C\"";
        const bool unnamed = tokens[i - 1] == "namespace";
        std::vector<std::string> name;
        for (std::size_t n = begin; n < i; ++n) {
          if (tokens[n] != "namespace" && tokens[n] != "inline") name.push_back(tokens[n]);
        }
        scopes.push_back(linkage ? "\"C\"" : unnamed ? "" : joined(name).substr(0, kMaxScopeName));
      } else {
        i = tokens.behind_bracket(i) - 1;
      }
      begin = i + 1;
    }
  }
  return found;
}

std::vector<Signature> scan_python(std::string_view text) {
  std::vector<Signature> found;
  std::size_t at = 0;
  while (at < text.size() && found.size() < kMaxFunctions) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    if (text.substr(at, 4) == "def ") {
      const std::size_t open = std::min(text.substr(0, end).find('(', at), end);
      if (open < end) {
        Signature signature;
        signature.name = text.substr(at + 4, open - at - 4);
        while (!signature.name.empty() && signature.name.back() == ' ') signature.name.pop_back();
        const Tokens tokens = tokens_of(text.substr(open, 4096));
        const std::size_t close = tokens.behind_bracket(0);
        for (const auto& part : split_arguments(tokens, 1, close > 0 ? close - 1 : 0)) {
          if (!part.empty() && part[0] == "*" && part.size() > 1) signature.variadic = true;
          if (part.empty() || part[0] == "*" || part[0] == "/") continue;
          signature.types.push_back(part[0]);
          signature.names.push_back(part[0]);
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
