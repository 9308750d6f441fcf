// UTF-8: valid text character by character, validation, and replacement of invalid bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace touchstone::inline v0::io {

inline constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";  // U+FFFD

// Bytes of the character whose first byte is `lead`.
inline std::size_t utf8_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

inline bool is_utf8_tail(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

// The character at `p`, where the text is valid; `p` moves behind it.
inline char32_t next_code(const char*& p) {
  const auto byte = [&](int i) { return static_cast<char32_t>(static_cast<unsigned char>(p[i])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) {
    p += 1;
    return lead;
  }
  if (lead < 0xe0) {
    const char32_t code = (lead & 0x1f) << 6 | (byte(1) & 0x3f);
    p += 2;
    return code;
  }
  if (lead < 0xf0) {
    const char32_t code = (lead & 0xf) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
    p += 3;
    return code;
  }
  const char32_t code =
      (lead & 7) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f);
  p += 4;
  return code;
}

// Appends the character `code`.
inline void append_code(std::string& out, char32_t code) {
  const auto put = [&](char32_t byte) { out += static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xc0 | code >> 6);
    put(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    put(0xe0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3f));
    put(0x80 | (code & 0x3f));
  } else {
    put(0xf0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3f));
    put(0x80 | (code >> 6 & 0x3f));
    put(0x80 | (code & 0x3f));
  }
}

// The first character of `bytes`, or the longest invalid beginning.
struct Utf8Front {
  enum class Kind : std::uint8_t { valid, invalid, cut } kind;  // cut: more bytes could complete it
  std::size_t bytes;  // an invalid beginning decodes to one U+FFFD
};
Utf8Front utf8_front(std::string_view bytes);

// Position of the first byte that is not part of valid UTF-8 (shortest forms only, no surrogates,
// at most U+10FFFF); npos when there is none.
std::size_t find_invalid_utf8(std::string_view text);
inline bool is_valid_utf8(std::string_view text) {
  return find_invalid_utf8(text) == std::string_view::npos;
}

// Appends `bytes`, each longest invalid part as one U+FFFD.
void append_valid(std::string& out, std::string_view bytes);

}  // namespace touchstone::inline v0::io
