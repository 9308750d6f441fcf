// The regular expressions of tokenizer.json, which are written for Oniguruma with Ruby's syntax,
// matched by PCRE2. A pattern is read construct by construct and written anew for PCRE2, so that
// classes mean the same characters; what would not mean the same is refused with its name.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace touchstone::inline v0::io {

// A part of a text, in bytes.
struct Span {
  std::size_t begin;
  std::size_t end;
};

class Regex {
 public:
  // Unsupported names what in the pattern is not understood.
  explicit Regex(std::string_view pattern);
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // Appends the matches in `text`, which is valid UTF-8, one after another. An empty match right
  // behind the match before it does not count. Unsupported when a match needs more steps or memory
  // than the limits allow.
  void find_all(std::string_view text, std::vector<Span>& matches) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

// The pattern as PCRE2 reads it, with UTF, UCP and MULTILINE.
std::string translated_pattern(std::string_view pattern);

}  // namespace touchstone::inline v0::io
