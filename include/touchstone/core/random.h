// Random numbers by counter: one 128-bit counter per number, no state, so any draw of any sequence
// can be made alone, in any order and on any device.
//
// The counter has four words of 32 bits:
//
//   word 0, 1   position: low and high half. The position of the token that the number is for: the
//               index in the sequence, prompt included, of the token to be chosen.
//   word 2      purpose: RandomPurpose. Two purposes never share a number.
//   word 3      draw: counts numbers of one purpose at one position, from 0.
//
// The key is the seed, low and high half. Nothing else can influence a number: no
// batch, no row index, no time, no tree node. So a draft tree, a beam or a preempted request
// draws the same numbers as plain decoding of the same positions.
//
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). constexpr,
// hence usable in device code.
#pragma once

#include <cstdint>

#include "touchstone/core/language.h"  // IWYU pragma: keep: before everything that needs C++20

namespace touchstone::inline v0 {

// Values are part of the contract: stored seeds give the same tokens in every later release.
enum class RandomPurpose : std::uint32_t {
  sample = 0,  // the token of a position: sample(), and every speculative walk that equals it
  accept = 1,  // rejection sampling: whether a drafted token is accepted, draw = its sibling index
  residual = 2,    // rejection sampling: the token drawn from the residual distribution
  draft = 3,       // tokens that a draft model proposes, draw = index of the proposal
  dropout = 4,     // training, draw = layer and mask
  shuffle = 5,     // training: order of the data, position = index of the example
  initialize = 6,  // weights, position = index of the element
};

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

// The 128 random bits of a draw.
constexpr PhiloxWords random_words(std::int64_t seed, std::int64_t position,
                                   RandomPurpose purpose = RandomPurpose::sample,
                                   std::uint32_t draw = 0) {
  const auto key = static_cast<std::uint64_t>(seed);
  const auto at = static_cast<std::uint64_t>(position);
  return philox4x32_10({{static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(at >> 32),
                         static_cast<std::uint32_t>(purpose), draw}},
                       {{static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)}});
}

// The uniform of a draw, in (0, 1): the upper 52 of the first 64 bits, and a half. Exact in f64,
// never 0 and never 1.
constexpr double random_uniform(std::int64_t seed, std::int64_t position,
                                RandomPurpose purpose = RandomPurpose::sample,
                                std::uint32_t draw = 0) {
  const PhiloxWords words = random_words(seed, position, purpose, draw);
  const std::uint64_t bits = (std::uint64_t{words.word[1]} << 32 | words.word[0]) >> 12;
  return (static_cast<double>(bits) + 0.5) * 0x1p-52;
}

}  // namespace touchstone::inline v0
