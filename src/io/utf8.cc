#include "io/utf8.h"

#include <cstring>

namespace touchstone::inline v0::io {

Utf8Front utf8_front(std::string_view bytes) {
  using Kind = Utf8Front::Kind;
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {Kind::valid, 1};
  if (lead < 0xc2 || lead > 0xf4) return {Kind::invalid, 1};
  const std::size_t length = utf8_length(bytes[0]);
  // The second byte decides about longer forms than needed, surrogates and the end of Unicode.
  const unsigned least = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const unsigned most = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  for (std::size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {Kind::cut, i};
    const bool good = i == 1 ? byte(1) >= least && byte(1) <= most : (byte(i) & 0xc0) == 0x80;
    if (!good) return {Kind::invalid, i};
  }
  return {Kind::valid, length};
}

std::size_t find_invalid_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    while (at + 8 <= text.size()) {
      std::uint64_t word = 0;
      std::memcpy(&word, text.data() + at, 8);
      if ((word & 0x8080808080808080U) != 0) break;
      at += 8;
    }
    if (at == text.size()) break;
    const Utf8Front front = utf8_front(text.substr(at, 4));
    if (front.kind != Utf8Front::Kind::valid) return at;
    at += front.bytes;
  }
  return std::string_view::npos;
}

void append_valid(std::string& out, std::string_view bytes) {
  while (!bytes.empty()) {
    const std::size_t good = find_invalid_utf8(bytes);
    if (good == std::string_view::npos) {
      out += bytes;
      return;
    }
    out += bytes.substr(0, good);
    bytes.remove_prefix(good);
    bytes.remove_prefix(utf8_front(bytes.substr(0, 4)).bytes);
    out += kReplacementCharacter;
  }
}

}  // namespace touchstone::inline v0::io
