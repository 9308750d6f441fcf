// Philox4x32-10 against the known answers published with Random123 (kat_vectors), and what is made
// of its words.
#include "touchstone/core/random.h"

#include <gtest/gtest.h>

#include <set>

namespace touchstone {
namespace {

TEST(Philox, GivesTheKnownAnswers) {
  EXPECT_EQ(philox4x32_10({{0, 0, 0, 0}}, {{0, 0}}),
            (PhiloxWords{{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}));
  EXPECT_EQ(
      philox4x32_10({{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}}, {{0xffffffff, 0xffffffff}}),
      (PhiloxWords{{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}));
  EXPECT_EQ(
      philox4x32_10({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, {{0xa4093822, 0x299f31d0}}),
      (PhiloxWords{{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}));
}

TEST(Random, TheUniformIsMadeOfTheUpper52OfTheFirst64Bits) {
  // 0xe169c58d6627e8d5 >> 12, from the first known answer.
  EXPECT_EQ(random_uniform(0, 0), (static_cast<double>(0xe169c58d6627eULL) + 0.5) * 0x1p-52);
}

TEST(Random, BothHalvesOfSeedAndPositionCount) {
  std::set<double> seen;
  for (const std::int64_t seed : {0LL, 1LL, 1LL << 32, -1LL, 1LL << 62}) {
    for (const std::int64_t position : {0LL, 1LL, 1LL << 32, -1LL, 1LL << 62}) {
      const double u = random_uniform(seed, position);
      EXPECT_GT(u, 0);
      EXPECT_LT(u, 1);
      EXPECT_TRUE(seen.insert(u).second) << seed << " " << position;
    }
  }
}

TEST(Random, RunsAtCompileTime) {
  static_assert(philox4x32_10({}, {}).word[0] == 0x6627e8d5);
  static_assert(random_uniform(7, 9) == random_uniform(7, 9));
}

// Plain, acceptance and residual draws never share a number, at any position or draw.
TEST(Random, PurposesAndDrawsNeverShareANumber) {
  std::set<double> seen;
  for (std::int64_t position = 0; position < 64; ++position) {
    for (std::uint32_t purpose = 0; purpose <= 6; ++purpose) {
      for (std::uint32_t draw = 0; draw < 16; ++draw) {
        EXPECT_TRUE(
            seen.insert(random_uniform(5, position, static_cast<RandomPurpose>(purpose), draw))
                .second)
            << position << " " << purpose << " " << draw;
      }
    }
  }
}

// sample()'s contract: words (position, 0, 0).
TEST(Random, TheFirstDrawOfSampleHasZeroWords) {
  EXPECT_EQ(random_words(3, 9), philox4x32_10({{9, 0, 0, 0}}, {{3, 0}}));
  EXPECT_EQ(random_words(3, 9, RandomPurpose::accept, 2), philox4x32_10({{9, 0, 1, 2}}, {{3, 0}}));
}

}  // namespace
}  // namespace touchstone
