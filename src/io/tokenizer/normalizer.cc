#include "io/tokenizer/normalizer.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <cstring>

#include "io/tokenizer/model/bpe.h"
#include "io/utf8.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::io {
namespace {

void check_growth(const Normalized& in, std::size_t more) {
  if (in.text.size() + more <= in.limit) return;
  throw Unsupported(fmt::format("tokenizer: the normalizer makes {} bytes of a text, at most {}",
                                in.text.size() + more, in.limit));
}

// Removes the characters that `keep` rejects; sets front_removed where the first is among them.
template <class Keep>
void filter(Normalized& in, Keep keep) {
  std::string out;
  out.reserve(in.text.size());
  for (const char* p = in.text.data(); p != in.text.data() + in.text.size();) {
    const char* const at = p;
    const char32_t code = next_code(p);
    if (keep(code)) {
      out.append(at, p);
    } else if (out.empty()) {
      in.front_removed = true;
    }
  }
  in.text = std::move(out);
}

// Appends what `map` appends for each character.
template <class Map>
void rewrite(Normalized& in, Map map) {
  std::string out;
  out.reserve(in.text.size());
  for (const char* p = in.text.data(); p != in.text.data() + in.text.size();) {
    map(out, next_code(p));
  }
  in.text = std::move(out);
  check_growth(in, 0);
}

void strip_spaces(Normalized& in, bool left, bool right) {
  std::string_view text = in.text;
  while (right && !text.empty()) {
    std::size_t last = text.size() - 1;
    while (last > 0 && is_utf8_tail(text[last])) --last;
    const char* p = text.data() + last;
    if (!has_fact(next_code(p), kFactSpace)) break;
    text.remove_suffix(text.size() - last);
  }
  while (left && !text.empty()) {
    const char* p = text.data();
    if (!has_fact(next_code(p), kFactSpace)) break;
    text.remove_prefix(static_cast<std::size_t>(p - text.data()));
    in.front_removed = true;
  }
  in.text = std::string(text);
}

void nmt(Normalized& in) {
  filter(in, [](char32_t c) {
    return !((c >= 1 && c <= 8) || c == 0xb || (c >= 0xe && c <= 0x1f) || c == 0x7f || c == 0x8f ||
             c == 0x9f);
  });
  rewrite(in, [](std::string& out, char32_t c) {
    const bool space = c == 9 || c == 0xa || c == 0xc || c == 0xd || c == 0x1680 ||
                       (c >= 0x200b && c <= 0x200f) || c == 0x2028 || c == 0x2029 || c == 0x2581 ||
                       c == 0xfeff || c == 0xfffd;
    append_code(out, space ? U' ' : c);
  });
}

bool is_chinese(char32_t c) {
  return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) ||
         (c >= 0x20000 && c <= 0x2a6df) || (c >= 0x2a700 && c <= 0x2b73f) ||
         (c >= 0x2b740 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) ||
         (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
}

void bert(Normalized& in, const Normalizer& options) {
  if (options.left) {
    filter(in, [](char32_t c) { return c != 0 && !has_fact(c, kFactControl); });
    rewrite(in, [](std::string& out, char32_t c) {
      append_code(out, has_fact(c, kFactSpace) ? U' ' : c);
    });
  }
  if (options.right) {
    rewrite(in, [](std::string& out, char32_t c) {
      if (is_chinese(c)) out += ' ';
      append_code(out, c);
      if (is_chinese(c)) out += ' ';
    });
  }
  if (options.accents) {
    in.text = normalized(NormalForm::nfd, in.text);
    filter(in, [](char32_t c) { return !has_fact(c, kFactNonspacing); });
  }
  if (options.lower) rewrite(in, append_lower);
}

// The longest grapheme at the front.
std::size_t grapheme_length(std::string_view text) {
  const char* p = text.data();
  const char* const end = text.data() + text.size();
  utf8proc_int32_t state = 0;
  char32_t before = next_code(p);
  while (p != end) {
    const char* next = p;
    const char32_t code = next_code(next);
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(before),
                                         static_cast<utf8proc_int32_t>(code), &state) != 0) {
      break;
    }
    before = code;
    p = next;
  }
  return static_cast<std::size_t>(p - text.data());
}

void map_characters(Normalized& in, const CharacterMap& map) {
  constexpr std::size_t kMaxGrapheme = 5;  // bytes; longer ones are mapped character by character
  std::string out;
  out.reserve(in.text.size());
  std::string_view text = in.text;
  while (!text.empty()) {
    const std::string_view grapheme = text.substr(0, grapheme_length(text));
    text.remove_prefix(grapheme.size());
    const auto whole =
        grapheme.size() <= kMaxGrapheme ? map.find(grapheme) : std::optional<std::string_view>();
    if (whole) {
      out += *whole;
      continue;
    }
    for (std::size_t at = 0; at < grapheme.size();) {
      const std::string_view part = grapheme.substr(at, utf8_length(grapheme[at]));
      out += map.find(part).value_or(part);
      at += part.size();
    }
  }
  in.text = std::move(out);
  check_growth(in, 0);
}

void replace_matches(Normalized& in, const Pattern& pattern, std::string_view with) {
  std::vector<Span> matches;
  pattern.find_all(in.text, matches);
  if (matches.empty()) return;
  check_growth(in, matches.size() * with.size());
  std::string out;
  std::size_t from = 0;
  for (const Span& match : matches) {
    out.append(in.text, from, match.begin - from);
    out += with;
    from = match.end;
  }
  out.append(in.text, from);
  in.text = std::move(out);
}

}  // namespace

void Pattern::find_all(std::string_view text, std::vector<Span>& matches) const {
  if (regex) {
    regex->find_all(text, matches);
    return;
  }
  if (literal.empty()) return;
  for (std::size_t at = text.find(literal); at != std::string_view::npos;
       at = text.find(literal, at + literal.size())) {
    matches.push_back({at, at + literal.size()});
  }
}

CharacterMap::CharacterMap(std::string_view bytes) {
  std::uint32_t size = 0;
  if (bytes.size() >= 4) std::memcpy(&size, bytes.data(), 4);
  if (bytes.size() < 4 || size % 4 != 0 || size > bytes.size() - 4 || size == 0) {
    throw CorruptData("tokenizer: precompiled_charsmap: its sizes do not fit");
  }
  units_.resize(size / 4);
  std::memcpy(units_.data(), bytes.data() + 4, size);
  replacements_ = bytes.substr(4 + size);
  if (find_invalid_utf8(replacements_) != std::string_view::npos) {
    throw CorruptData("tokenizer: precompiled_charsmap: a replacement is not UTF-8");
  }
}

std::optional<std::string_view> CharacterMap::find(std::string_view text) const {
  const auto offset = [](std::uint32_t unit) {
    return std::size_t{unit >> 10} << ((unit & (1U << 9)) >> 6);
  };
  std::size_t at = offset(units_[0]);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte == 0) break;
    at ^= byte;
    if (at >= units_.size()) break;
    const std::uint32_t unit = units_[at];
    if ((unit & 0x800000ffU) != byte) break;
    at ^= offset(unit);
    if ((unit >> 8 & 1) == 0) continue;
    if (at >= units_.size()) break;
    const std::size_t begin = units_[at] & 0x7fffffffU;
    if (begin >= replacements_.size() || is_utf8_tail(replacements_[begin])) break;
    return std::string_view(
        replacements_.data() + begin,
        std::min(replacements_.find('\0', begin), replacements_.size()) - begin);
  }
  return std::nullopt;
}

void Normalizer::apply(Normalized& in) const {
  switch (kind) {
    case Kind::sequence:
      for (const Normalizer& part : list) part.apply(in);
      return;
    case Kind::form:
      in.text = normalized(form, in.text);
      return check_growth(in, 0);
    case Kind::strip:
      return strip_spaces(in, left, right);
    case Kind::strip_accents:
      return filter(in, [](char32_t c) { return !has_fact(c, kFactCombining); });
    case Kind::lowercase:
      return rewrite(in, append_lower);
    case Kind::nmt:
      return nmt(in);
    case Kind::prepend:
      check_growth(in, text.size());
      if (!in.text.empty()) in.text.insert(0, text);
      return;
    case Kind::replace:
      return replace_matches(in, pattern, text);
    case Kind::bert:
      return bert(in, *this);
    case Kind::byte_level:
      in.text = characters_of_bytes(in.text);
      return check_growth(in, 0);
    case Kind::map:
      return map_characters(in, *characters);
  }
}

}  // namespace touchstone::inline v0::io
