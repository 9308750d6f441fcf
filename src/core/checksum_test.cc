#include "core/checksum.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <vector>

namespace touchstone::inline v0 {
namespace {

std::vector<std::byte> numbered(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 167 + 13);
  return bytes;
}

// Files hold these numbers: they may not change.
TEST(Checksum, IsFixed) {
  EXPECT_EQ(checksum({}), 15226639490499801632U);
  EXPECT_EQ(checksum(numbered(1)), 15212168319052573586U);
  EXPECT_EQ(checksum(numbered(1000)), 14853651235138434635U);
}

TEST(Checksum, NoticesEveryBit) {
  for (const std::size_t size : {1U, 8U, 63U, 64U, 65U, 200U}) {
    std::vector<std::byte> bytes = numbered(size);
    std::set<std::uint64_t> seen{checksum(bytes)};
    for (std::size_t bit = 0; bit < size * 8; ++bit) {
      const auto flip = static_cast<std::byte>(1U << (bit % 8));
      bytes[bit / 8] ^= flip;
      EXPECT_TRUE(seen.insert(checksum(bytes)).second) << "size " << size << " bit " << bit;
      bytes[bit / 8] ^= flip;
    }
  }
}

TEST(Checksum, NoticesMovedWordsAndZerosAtTheEnd) {
  std::vector<std::byte> bytes = numbered(256);
  std::set<std::uint64_t> seen{checksum(bytes)};
  for (std::size_t a = 0; a < 32; ++a) {
    for (std::size_t b = a + 1; b < 32; ++b) {
      std::vector<std::byte> swapped = bytes;
      std::memcpy(&swapped[a * 8], &bytes[b * 8], 8);
      std::memcpy(&swapped[b * 8], &bytes[a * 8], 8);
      EXPECT_TRUE(seen.insert(checksum(swapped)).second) << a << " and " << b;
    }
  }
  std::vector<std::byte> zeros;
  for (int i = 0; i < 200; ++i) {
    EXPECT_TRUE(seen.insert(checksum(zeros)).second) << i << " zeros";
    zeros.push_back(std::byte{0});
  }
}

TEST(Checksum, IgnoresAlignment) {
  const std::vector<std::byte> bytes = numbered(500);
  std::vector<std::byte> moved(600);
  for (std::size_t shift = 0; shift < 16; ++shift) {
    std::memcpy(&moved[shift], bytes.data(), bytes.size());
    EXPECT_EQ(checksum(std::span(moved).subspan(shift, bytes.size())), checksum(bytes));
  }
}

}  // namespace
}  // namespace touchstone::inline v0
