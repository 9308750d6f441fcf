// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): ten rounds
// that turn a 128-bit counter into 128 random bits under a 64-bit key. No state, so any draw of any
// sequence can be made alone and on any device. constexpr, hence usable in device code too.
#pragma once

#include <cstdint>

namespace touchstone::sampling {

struct PhiloxWords {
  std::uint32_t word[4] = {};

  friend constexpr bool operator==(const PhiloxWords&, const PhiloxWords&) = default;
};

struct PhiloxKey {
  std::uint32_t word[2] = {};
};

constexpr PhiloxWords philox4x32_10(PhiloxWords counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter.word[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter.word[2];
    counter = {{static_cast<std::uint32_t>(b >> 32) ^ counter.word[1] ^ key.word[0],
                static_cast<std::uint32_t>(b),
                static_cast<std::uint32_t>(a >> 32) ^ counter.word[3] ^ key.word[1],
                static_cast<std::uint32_t>(a)}};
    key.word[0] += 0x9E3779B9;  // the golden ratio
    key.word[1] += 0xBB67AE85;  // sqrt(3) - 1
  }
  return counter;
}

// The one uniform of a row, in (0, 1): the upper 52 bits of the first 64, and a half. Exact in f64,
// never 0 and never 1.
constexpr double uniform_of(std::int64_t seed, std::int64_t position) {
  const auto key = static_cast<std::uint64_t>(seed);
  const auto counter = static_cast<std::uint64_t>(position);
  const PhiloxWords words = philox4x32_10(
      {{static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), 0, 0}},
      {{static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)}});
  const std::uint64_t bits = (std::uint64_t{words.word[1]} << 32 | words.word[0]) >> 12;
  return (static_cast<double>(bits) + 0.5) * 0x1p-52;
}

}  // namespace touchstone::sampling
