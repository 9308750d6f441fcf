// Philox4x32-10 against the known answers published with Random123 (kat_vectors), and what is made
// of its words.
#include "ops/sample/philox.h"

#include <gtest/gtest.h>

#include <set>

namespace touchstone::sampling {
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

TEST(Philox, TheUniformIsMadeOfTheUpper52OfTheFirst64Bits) {
  // 0xe169c58d6627e8d5 >> 12, from the first known answer.
  EXPECT_EQ(uniform_of(0, 0), (static_cast<double>(0xe169c58d6627eULL) + 0.5) * 0x1p-52);
}

TEST(Philox, BothHalvesOfSeedAndPositionCount) {
  std::set<double> seen;
  for (const std::int64_t seed : {0LL, 1LL, 1LL << 32, -1LL, 1LL << 62}) {
    for (const std::int64_t position : {0LL, 1LL, 1LL << 32, -1LL, 1LL << 62}) {
      const double u = uniform_of(seed, position);
      EXPECT_GT(u, 0);
      EXPECT_LT(u, 1);
      EXPECT_TRUE(seen.insert(u).second) << seed << " " << position;
    }
  }
}

TEST(Philox, RunsAtCompileTime) {
  static_assert(philox4x32_10({}, {}).word[0] == 0x6627e8d5);
  static_assert(uniform_of(7, 9) == uniform_of(7, 9));
}

}  // namespace
}  // namespace touchstone::sampling
