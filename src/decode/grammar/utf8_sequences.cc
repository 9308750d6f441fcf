#include <algorithm>

#include "decode/grammar/automaton.h"

namespace touchstone::inline v0::decode::grammar {
namespace {

using Bytes = std::array<std::uint8_t, 4>;

int length_of(char32_t code) { return code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4; }

Bytes encode(char32_t code, int length) {
  Bytes bytes{};
  constexpr std::uint8_t kLeads[] = {0, 0, 0xc0, 0xe0, 0xf0};
  for (int i = length - 1; i > 0; --i) {
    bytes[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(0x80 | (code & 0x3f));
    code >>= 6;
  }
  bytes[0] = static_cast<std::uint8_t>(kLeads[length] | code);
  return bytes;
}

ByteSet range_set(std::uint8_t first, std::uint8_t last) {
  ByteSet set;
  for (int byte = first; byte <= last; ++byte) set.set(static_cast<std::size_t>(byte));
  return set;
}

// Cuts [first, last], all of one length, so that each part is a product of byte ranges.
void add_sequences(char32_t first, char32_t last, int length, std::vector<ByteSequence>& out) {
  for (int tails = 1; tails < length; ++tails) {
    const char32_t mask = (char32_t{1} << (6 * tails)) - 1;
    if ((first & ~mask) == (last & ~mask)) continue;
    if ((first & mask) != 0) {
      add_sequences(first, first | mask, length, out);
      add_sequences((first | mask) + 1, last, length, out);
      return;
    }
    if ((last & mask) != mask) {
      add_sequences(first, (last & ~mask) - 1, length, out);
      add_sequences(last & ~mask, last, length, out);
      return;
    }
  }
  const Bytes low = encode(first, length);
  const Bytes high = encode(last, length);
  ByteSequence sequence;
  for (std::size_t i = 0; i < static_cast<std::size_t>(length); ++i) {
    sequence.sets.push_back(range_set(low[i], high[i]));
  }
  out.push_back(std::move(sequence));
}

}  // namespace

std::vector<ByteSequence> utf8_sequences(const std::vector<CodeRange>& ranges) {
  constexpr CodeRange kLengths[] = {
      {0, 0x7f}, {0x80, 0x7ff}, {0x800, 0xd7ff}, {0xe000, 0xffff}, {0x10000, 0x10ffff}};
  std::vector<ByteSequence> all;
  for (const CodeRange& range : ranges) {
    for (const CodeRange& part : kLengths) {
      const char32_t first = std::max(range.first, part.first);
      const char32_t last = std::min(range.last, part.last);
      if (first <= last) add_sequences(first, last, length_of(first), all);
    }
  }
  // Sequences that differ in the first byte alone are one.
  std::vector<ByteSequence> out;
  for (ByteSequence& sequence : all) {
    const auto same = std::ranges::find_if(out, [&](const ByteSequence& known) {
      return known.sets.size() == sequence.sets.size() &&
             std::equal(known.sets.begin() + 1, known.sets.end(), sequence.sets.begin() + 1);
    });
    if (same == out.end()) {
      out.push_back(std::move(sequence));
    } else {
      same->sets[0] |= sequence.sets[0];
    }
  }
  return out;
}

}  // namespace touchstone::inline v0::decode::grammar
