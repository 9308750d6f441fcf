#include "cache/prefix_index.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "touchstone/core/error.h"

namespace touchstone::inline v0::cache {
namespace {

using Tokens = std::vector<std::int32_t>;

PrefixIndexOptions blocks_of_four() {
  return {.block_tokens = 4, .pages_per_block = {2, 1}, .pool_pages = {64, 64}, .hash_key = {1, 2}};
}

std::vector<PageHandle> pages_from(std::uint32_t first) {
  return {{first, 0, 1}, {first + 1, 0, 1}, {first, 0, 2}};
}

TEST(PrefixIndex, FindsExactBlocksAfterTheirParentOnly) {
  PrefixIndex index(blocks_of_four());
  const std::uint64_t root = PrefixIndex::root(0);
  const Tokens block{1, 2, 3, 4};
  const auto first = index.insert(root, block, pages_from(0));
  const auto second = index.insert(PrefixIndex::below(first), block, pages_from(2));
  EXPECT_EQ(index.find(root, block), first);
  EXPECT_EQ(index.find(PrefixIndex::below(first), block), second);
  EXPECT_EQ(index.find(PrefixIndex::below(second), block), PrefixIndex::kNone);
  EXPECT_EQ(index.find(PrefixIndex::root(1), block), PrefixIndex::kNone);  // another space
  EXPECT_EQ(index.find(root, Tokens{1, 2, 3}), PrefixIndex::kNone);
  EXPECT_EQ(index.find(root, Tokens{1, 2, 3, 5}), PrefixIndex::kNone);
  EXPECT_EQ(index.pages(second)[1].index, 3U);
  EXPECT_EQ(index.indexed_pages(0), 4);
  EXPECT_EQ(index.find_inconsistency(), "");
}

std::vector<PrefixIndex::Found> no_pages() { return std::vector<PrefixIndex::Found>(3); }

TEST(PrefixIndex, PrefersTheLongestPartialMatch) {
  PrefixIndex index(blocks_of_four());
  const std::uint64_t root = PrefixIndex::root(0);
  index.insert(root, Tokens{1, 2, 9, 9}, pages_from(0));
  index.insert(root, Tokens{1, 2, 3}, pages_from(2));
  index.insert(root, Tokens{1, 8, 8, 8}, pages_from(4));
  auto found = no_pages();
  EXPECT_EQ(index.match(root, Tokens{1, 2, 3, 7}, found), 3);
  EXPECT_EQ(found[0].tokens, 2);
  EXPECT_EQ(found[1].page.index, 3U);  // of {1, 2, 3}
  EXPECT_EQ(found[1].tokens, 3);
  EXPECT_EQ(found[2].page.index, 2U);
  EXPECT_EQ(found[2].tokens, 3);
  found = no_pages();
  EXPECT_EQ(index.match(root, Tokens{5}, found), 0);
  EXPECT_EQ(index.match(PrefixIndex::root(3), Tokens{1}, found), 0);
  EXPECT_TRUE(found[0].page.empty());
}

TEST(PrefixIndex, MatchFillsGapsFromOtherEntries) {
  PrefixIndex index(blocks_of_four());
  const std::uint64_t root = PrefixIndex::root(0);
  index.insert(root, Tokens{1, 2, 9}, pages_from(0));
  const PageHandle second_only[] = {{}, {7, 0, 1}, {}};
  index.insert(root, Tokens{1, 2, 3, 4}, second_only);
  auto found = no_pages();
  EXPECT_EQ(index.match(root, Tokens{1, 2, 3, 4}, found), 4);
  EXPECT_EQ(found[0].page.index, 0U);
  EXPECT_EQ(found[0].tokens, 2);
  EXPECT_EQ(found[1].page.index, 7U);
  EXPECT_EQ(found[1].tokens, 4);
  EXPECT_EQ(found[2].tokens, 2);  // the page of the other entry, as far as it begins alike
}

TEST(PrefixIndex, LongerEntriesTakePagesOverAndBranchesShareThem) {
  PrefixIndex index(blocks_of_four());
  const std::uint64_t root = PrefixIndex::root(0);
  const PageHandle none[3] = {};
  const PageHandle first{0, 0, 1};
  const PageHandle second{1, 0, 1};
  const auto shorter = index.insert(root, Tokens{1, 2, 3}, none);
  EXPECT_TRUE(index.offer_page(shorter, 0, first));
  EXPECT_TRUE(index.offer_page(shorter, 1, second));
  const auto longer = index.insert(root, Tokens{1, 2, 3, 4}, none);
  EXPECT_FALSE(index.offer_page(longer, 0, first));  // taken over, not new
  EXPECT_FALSE(index.offer_page(longer, 1, second));
  EXPECT_EQ(index.pages(longer)[1], second);
  EXPECT_EQ(index.find(root, Tokens{1, 2, 3}), PrefixIndex::kNone);  // nothing left
  const auto branch = index.insert(root, Tokens{1, 2, 9}, none);
  EXPECT_FALSE(index.offer_page(branch, 0, first));
  EXPECT_EQ(index.pages(branch)[0], first);
  EXPECT_EQ(index.pages(longer)[0], first);
  EXPECT_EQ(index.indexed_pages(0), 2);
  EXPECT_EQ(index.find_inconsistency(), "");
  EXPECT_THROW(index.set_page(branch, 1, first), InvalidArgument);  // another slot
  index.remove_page(0, 0);                                          // from both
  EXPECT_EQ(index.find(root, Tokens{1, 2, 9}), PrefixIndex::kNone);
  EXPECT_TRUE(index.pages(longer)[0].empty());
  EXPECT_EQ(index.find_inconsistency(), "");
}

TEST(PrefixIndex, EntriesGoWithTheirLastPageAndChild) {
  PrefixIndex index(blocks_of_four());
  const auto parent = index.insert(PrefixIndex::root(0), Tokens{1, 2, 3, 4}, pages_from(0));
  index.insert(PrefixIndex::below(parent), Tokens{5, 6, 7, 8}, pages_from(2));
  for (const std::uint32_t page : {0U, 1U}) index.remove_page(0, page);
  index.remove_page(1, 0);
  EXPECT_EQ(index.entries(), 2);  // the parent still leads to its child
  EXPECT_EQ(index.find_inconsistency(), "");
  index.set_page(parent, 1, {9, 0, 1});
  EXPECT_TRUE(index.holds(0, 9));
  index.remove_page(0, 9);
  for (const std::uint32_t page : {2U, 3U}) index.remove_page(0, page);
  EXPECT_EQ(index.entries(), 2);
  index.remove_page(1, 2);
  EXPECT_EQ(index.entries(), 0);
  EXPECT_EQ(index.find(PrefixIndex::root(0), Tokens{1, 2, 3, 4}), PrefixIndex::kNone);
  EXPECT_THROW(index.remove_page(0, 2), InvalidArgument);
  EXPECT_EQ(index.find_inconsistency(), "");
}

// Many entries: the table grows, chains are walked, and each one is found by its own tokens.
TEST(PrefixIndex, GrowsAndShrinks) {
  PrefixIndex index(
      {.block_tokens = 2, .pages_per_block = {1}, .pool_pages = {5000}, .hash_key = {3, 4}});
  const std::uint64_t root = PrefixIndex::root(7);
  for (std::int32_t i = 0; i < 5000; ++i) {
    const PageHandle page{static_cast<std::uint32_t>(i), 0, 1};
    index.insert(root, Tokens{i, -i}, {&page, 1});
  }
  EXPECT_EQ(index.find_inconsistency(), "");
  for (std::int32_t i = 0; i < 5000; i += 2) index.remove_page(0, static_cast<std::uint32_t>(i));
  EXPECT_EQ(index.entries(), 2500);
  EXPECT_EQ(index.find_inconsistency(), "");
  EXPECT_EQ(index.find(root, Tokens{10, -10}), PrefixIndex::kNone);
  EXPECT_NE(index.find(root, Tokens{11, -11}), PrefixIndex::kNone);
}

TEST(PrefixIndex, RefusesNonsense) {
  PrefixIndex index(blocks_of_four());
  const std::uint64_t root = PrefixIndex::root(0);
  EXPECT_THROW(index.insert(root, Tokens{}, pages_from(0)), InvalidArgument);
  EXPECT_THROW(index.insert(root, Tokens{1, 2, 3, 4, 5}, pages_from(0)), InvalidArgument);
  EXPECT_THROW(index.insert(root, Tokens{1}, {}), InvalidArgument);
  const auto entry = index.insert(root, Tokens{1}, pages_from(0));
  EXPECT_THROW(index.set_page(entry, 0, {7, 0, 1}), InvalidArgument);  // the slot is taken
  EXPECT_THROW(PrefixIndex({.block_tokens = 0, .pool_pages = {1}}), InvalidArgument);
  EXPECT_THROW(PrefixIndex({.pages_per_block = {1, 1}, .pool_pages = {1}}), InvalidArgument);
}

}  // namespace
}  // namespace touchstone::inline v0::cache
