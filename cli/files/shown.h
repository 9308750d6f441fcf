// Names and texts from untrusted files, for a terminal.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <string_view>

namespace touchstone::cli {

// The length of what begins `text` and a terminal would obey: control characters (C0, DEL, C1 in
// UTF-8), separators of lines, and what turns the direction of writing around. 0: none.
inline std::size_t steering_length(std::string_view text) {
  const auto byte = [&](std::size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  if (byte(0) < 0x20 || byte(0) == 0x7f) return 1;
  if (byte(0) == 0xc2 && byte(1) >= 0x80 && byte(1) <= 0x9f) return 2;  // U+0080 to U+009F
  if (byte(0) == 0xd8 && byte(1) == 0x9c) return 2;                     // U+061C
  if (byte(0) != 0xe2) return 0;
  const unsigned last = byte(2);
  const bool marks = last == 0x8e || last == 0x8f || (last >= 0xa8 && last <= 0xae);
  if (byte(1) == 0x80 && marks) return 3;  // U+200E, U+200F, U+2028 to U+202E
  return byte(1) == 0x81 && last >= 0xa6 && last <= 0xa9 ? 3 : 0;  // U+2066 to U+2069
}

// At most `most` bytes of the text; bytes that control a terminal are shown as \x and two digits.
inline std::string shown(std::string_view text, std::size_t most) {
  std::string out;
  const auto is_tail = [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) == 0x80U; };
  while (most > 0 && most < text.size() && is_tail(text[most])) --most;
  const std::string_view part = text.substr(0, most);
  for (std::size_t at = 0; at < part.size();) {
    const std::size_t steering = steering_length(part.substr(at));
    if (steering == 0) out += part[at++];
    for (std::size_t i = 0; i < steering; ++i, ++at) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(part[at]));
    }
  }
  return text.size() > most ? out + "..." : out;
}

}  // namespace touchstone::cli
