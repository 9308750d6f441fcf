// Codes of ternary blocks as int8. Everything is inlined into its caller, and so compiled for the
// caller's SIMD target.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu/ternary_layout.h"

namespace touchstone::inline v0::ternary {

template <std::size_t kEntries, std::size_t kCodes, class Code>
constexpr auto code_table(Code code) {
  std::array<std::array<std::int8_t, kCodes>, kEntries> table{};
  for (std::size_t byte = 0; byte < kEntries; ++byte) {
    for (std::size_t i = 0; i < kCodes; ++i) {
      table[byte][i] =
          static_cast<std::int8_t>(code(static_cast<unsigned>(byte), static_cast<int>(i)));
    }
  }
  return table;
}

inline constexpr auto kPairTable = code_table<256, 4>(
    [](unsigned byte, int i) { return static_cast<int>(byte >> (2 * i) & 3U) - 1; });
// Five codes, and three bytes that the next entry overwrites.
inline constexpr auto kDigitTable = code_table<256, 8>([](unsigned byte, int i) {
  const int quotient = i < 5 ? static_cast<int>(byte) / power_of_3(4 - i) : 0;
  return i >= 5 ? 0 : (i == 0 ? quotient : quotient % 3) - 1;
});
inline constexpr auto kSparseTable =
    code_table<32, 4>([](unsigned index, int i) { return sparse_code(index, i); });

#define TOUCHSTONE_TERNARY_INLINE [[gnu::always_inline]] inline

template <int kElements>
TOUCHSTONE_TERNARY_INLINE void unpack_pairs(const std::uint8_t* codes, std::int8_t* to) {
  for (int i = 0; i < kElements; i += 4) std::memcpy(to + i, kPairTable[codes[i / 4]].data(), 4);
}

template <int kElements>
TOUCHSTONE_TERNARY_INLINE void unpack_digits(const std::uint8_t* codes, std::int8_t* to) {
  int i = 0;
  for (; i + 8 <= kElements; i += 5) std::memcpy(to + i, kDigitTable[codes[i / 5]].data(), 8);
  for (; i < kElements; i += 5) {
    const int left = kElements - i < 5 ? kElements - i : 5;
    std::memcpy(to + i, kDigitTable[codes[i / 5]].data(), static_cast<std::size_t>(left));
  }
}

// Five bytes are eight groups of four.
template <int kElements>
TOUCHSTONE_TERNARY_INLINE void unpack_sparse(const std::uint8_t* codes, std::int8_t* to) {
  static_assert(kElements % 32 == 0);
  for (int i = 0; i < kElements; i += 32) {
    const std::uint8_t* const five = codes + i / 32 * 5;
    std::uint32_t four = 0;
    std::memcpy(&four, five, sizeof(four));
    const std::uint64_t bits = four | std::uint64_t{five[4]} << 32;
    for (int k = 0; k < 8; ++k) {
      std::memcpy(to + i + 4 * k, kSparseTable[bits >> (5 * k) & 31U].data(), 4);
    }
  }
}

// Vectors of the compiler rather than loops, which it would unroll before it could vectorize them.
// 16 bytes: wider ones become scalars where the target does not have them.
using Bytes16 [[gnu::vector_size(16)]] = std::uint8_t;

// 16 bytes, or as many as there are and zeros.
template <int kBytes>
TOUCHSTONE_TERNARY_INLINE Bytes16 load_bytes(const std::uint8_t* from) {
  Bytes16 v;
  if constexpr (kBytes >= 16) {
    std::memcpy(&v, from, 16);
  } else {
    using Words [[gnu::vector_size(16)]] = std::uint64_t;
    std::uint64_t word = 0;
    std::memcpy(&word, from, kBytes);
    v = reinterpret_cast<Bytes16>(Words{word, 0});
  }
  return v;
}
template <int kBytes>
TOUCHSTONE_TERNARY_INLINE void store_bytes(Bytes16 v, std::int8_t* to) {
  std::memcpy(to, &v, kBytes >= 16 ? 16 : kBytes);
}

template <int kBytes>
TOUCHSTONE_TERNARY_INLINE void unpack_plane(const std::uint8_t* codes, std::int8_t* to) {
  for (int i = 0; i < kBytes; i += 16) {
    const Bytes16 v = load_bytes<kBytes>(codes + i);
    for (int k = 0; k < 4; ++k) store_bytes<kBytes>((v >> (2 * k) & 3) - 1, to + k * kBytes + i);
  }
}

// kDigits digits of kBytes bytes.
template <int kBytes, int kDigits>
TOUCHSTONE_TERNARY_INLINE void unpack_section(const std::uint8_t* codes, std::int8_t* to) {
  for (int i = 0; i < kBytes; i += 16) {
    Bytes16 rest = load_bytes<kBytes>(codes + i);
    for (int n = 0; n < kDigits; ++n) {
      // rest * 3 / 256 - 1; a comparison that holds is -1.
      const auto digit = ~((rest > 85) + (rest > 170));
      store_bytes<kBytes>(reinterpret_cast<Bytes16>(digit), to + n * kBytes + i);
      rest = rest + rest + rest;
    }
  }
}

// Codes of a block of format kId.
template <WeightFormatId kId>
TOUCHSTONE_TERNARY_INLINE void unpack_block(const std::uint8_t* block, std::int8_t* to) {
  constexpr Layout kLayout = layout_of(kId);
  const std::uint8_t* const codes = block + kLayout.codes;
  if constexpr (kLayout.packing == Packing::planes) {
    for (int first = 0; first < kLayout.elements; first += 4 * kLayout.plane) {
      unpack_plane<kLayout.plane>(codes + first / 4, to + first);
    }
  } else if constexpr (kLayout.packing == Packing::pairs) {
    unpack_pairs<kLayout.elements>(codes, to);
  } else if constexpr (kLayout.packing == Packing::digits) {
    unpack_digits<kLayout.elements>(codes, to);
  } else if constexpr (kLayout.packing == Packing::sparse) {
    unpack_sparse<kLayout.elements>(codes, to);
  } else {
    constexpr Section kFirst = kLayout.sections[0];
    constexpr Section kSecond = kLayout.sections[1];
    constexpr Section kThird = kLayout.sections[2];
    unpack_section<kFirst.bytes, 5>(codes + kFirst.byte, to + kFirst.first);
    unpack_section<kSecond.bytes, 5>(codes + kSecond.byte, to + kSecond.first);
    unpack_section<kThird.bytes, 4>(codes + kThird.byte, to + kThird.first);
  }
}

#undef TOUCHSTONE_TERNARY_INLINE

}  // namespace touchstone::inline v0::ternary
