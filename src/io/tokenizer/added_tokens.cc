#include "io/tokenizer/added_tokens.h"

#include <algorithm>

#include "io/tokenizer/text/unicode.h"
#include "io/utf8.h"

namespace touchstone::inline v0::io {
namespace {

char32_t last_code(std::string_view text) {
  std::size_t last = text.size() - 1;
  while (last > 0 && is_utf8_tail(text[last])) --last;
  const char* p = text.data() + last;
  return next_code(p);
}

char32_t first_code(std::string_view text) {
  const char* p = text.data();
  return next_code(p);
}

// Where the white space at the end of `text` begins.
std::size_t without_spaces(std::string_view text) {
  while (!text.empty()) {
    std::size_t last = text.size() - 1;
    while (last > 0 && is_utf8_tail(text[last])) --last;
    const char* p = text.data() + last;
    if (!has_fact(next_code(p), kFactSpace)) break;
    text = text.substr(0, last);
  }
  return text.size();
}

std::size_t leading_spaces(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const char* p = text.data() + at;
    if (!has_fact(next_code(p), kFactSpace)) break;
    at = static_cast<std::size_t>(p - text.data());
  }
  return at;
}

}  // namespace

void TokenFinder::add(std::string_view text, const AddedToken& token) {
  if (text.empty()) return;
  trie_.add(text, static_cast<std::uint32_t>(tokens_.size()));
  tokens_.push_back(token);
  bool& begins = begins_[static_cast<unsigned char>(text[0])];
  if (!begins) first_bytes_ += text[0];
  begins = true;
}

const AddedToken* TokenFinder::longest_at(std::string_view text, std::size_t at,
                                          std::size_t& end) const {
  const AddedToken* best = nullptr;
  std::uint32_t node = Trie::kRoot;
  for (std::size_t i = at; i < text.size();) {
    node = trie_.step(node, text[i++]);
    if (node == Trie::kNone) break;
    if (trie_.value(node) == Trie::kNone) continue;
    best = &tokens_[trie_.value(node)];
    end = i;
  }
  return best;
}

void TokenFinder::cut(std::string_view text, bool special, std::vector<Found>& found) const {
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size();) {
    if (first_bytes_.size() == 1) {
      at = std::min(text.find(first_bytes_[0], at), text.size());
      if (at == text.size()) break;
    } else if (!begins_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    std::size_t end = at;
    const AddedToken* token = longest_at(text, at, end);
    if (token == nullptr) {
      ++at;
      continue;
    }
    std::size_t begin = at;
    at = end;  // the search goes on behind the token, whatever becomes of it
    if (token->special && !special) continue;
    if (token->single_word) {
      const bool left = begin == 0 || !has_fact(last_code(text.substr(0, begin)), kFactWord);
      const bool right = end == text.size() || !has_fact(first_code(text.substr(end)), kFactWord);
      if (!left || !right) continue;
    }
    if (token->left_strip) begin = std::max(without_spaces(text.substr(0, begin)), done);
    if (token->right_strip) end += leading_spaces(text.substr(end));
    if (done < begin) found.push_back({{done, begin}, kNoToken});
    found.push_back({{std::min(begin, end), end}, token->id});
    done = end;
  }
  if (done < text.size()) found.push_back({{done, text.size()}, kNoToken});
}

}  // namespace touchstone::inline v0::io
