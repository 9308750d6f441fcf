// Prefixes: how much is found, what is shared, what is evicted.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "cache/cache_test_device.h"
#include "touchstone/cache/kv_cache.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::cache {
namespace {

using Tokens = std::vector<std::int32_t>;

Tokens counting(std::int64_t count, std::int32_t first = 0) {
  Tokens tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

SequenceId sequence_of(KvCache& cache, std::int64_t tokens) {
  const SequenceId id = cache.create();
  cache.reserve(id, tokens);
  cache.commit(id, tokens);
  return id;
}

TEST(KvCachePrefix, SharesWholeBlocksAndPartOfTheLast) {
  for (const std::int64_t page : {1, 8, 16, 64}) {
    KvCache cache = small_cache(page, 16);
    const std::int64_t length = 3 * page + page / 2;
    const SequenceId id = sequence_of(cache, length);
    cache.insert_prefix(id, counting(length));
    const std::int64_t used = state_of(cache).pool(0).used_pages();
    for (const std::int64_t wanted :
         {std::int64_t{0}, std::int64_t{1}, page - 1, page, page + 1, length - 1, length}) {
      const PrefixHit hit = cache.open_prefix(counting(wanted));
      EXPECT_EQ(hit.tokens, wanted) << "page " << page;
      EXPECT_EQ(state_of(cache).pool(0).used_pages(), used);  // nothing was copied
      if (wanted > 0) {
        EXPECT_EQ(state_of(cache).page_at(hit.sequence, 0, wanted - 1).data(),
                  state_of(cache).page_at(id, 0, wanted - 1).data());
      }
      cache.release(hit.sequence);
    }
    Tokens longer = counting(length);
    longer.push_back(-1);
    EXPECT_EQ(cache.open_prefix(longer).tokens, length);
    longer[static_cast<std::size_t>(page)] = -1;
    EXPECT_EQ(cache.open_prefix(longer).tokens, page);
    EXPECT_EQ(cache.open_prefix(counting(length), 1).tokens, 0);  // another space
    EXPECT_EQ(state_of(cache).find_inconsistency(), "");
  }
}

TEST(KvCachePrefix, WritingAfterAHitCopiesThePartialPage) {
  KvCache cache = small_cache(8, 8);
  const SequenceId id = sequence_of(cache, 16);
  cache.insert_prefix(id, counting(16));
  const PrefixHit hit = cache.open_prefix(counting(11));
  EXPECT_EQ(hit.tokens, 11);
  cache.reserve(hit.sequence, 1);
  EXPECT_NE(state_of(cache).page_at(hit.sequence, 0, 8).data(),
            state_of(cache).page_at(id, 0, 8).data());
  EXPECT_EQ(state_of(cache).page_at(hit.sequence, 0, 0).data(),
            state_of(cache).page_at(id, 0, 0).data());
  EXPECT_EQ(state_of(cache).find_inconsistency(), "");
}

TEST(KvCachePrefix, InsertionIsIdempotent) {
  KvCache cache = small_cache(8, 16);
  const SequenceId a = sequence_of(cache, 20);
  const SequenceId b = sequence_of(cache, 20);
  cache.insert_prefix(a, counting(20));
  cache.insert_prefix(a, counting(20));
  cache.insert_prefix(a, counting(10));
  cache.insert_prefix(b, counting(20));  // other pages of the same tokens
  EXPECT_EQ(state_of(cache).prefixes().entries(), 3);
  EXPECT_EQ(state_of(cache).prefixes().indexed_pages(0), 3);
  cache.release(b);
  EXPECT_EQ(state_of(cache).pool(0).cached_pages(), 0);
  cache.release(a);
  EXPECT_EQ(state_of(cache).pool(0).cached_pages(), 3);
  EXPECT_THROW(cache.insert_prefix(cache.create(), counting(1)), InvalidArgument);
}

TEST(KvCachePrefix, EvictsTheEndOfWhatWasUsedLongestAgo) {
  KvCache cache = small_cache(8, 4);
  const SequenceId a = sequence_of(cache, 16);
  const SequenceId b = sequence_of(cache, 16);
  cache.insert_prefix(a, counting(16));
  cache.insert_prefix(b, counting(16, 100));
  cache.release(a);
  cache.release(b);
  cache.release(cache.open_prefix(counting(16)).sequence);  // now b is the older one
  EXPECT_EQ(state_of(cache).pool(0).free_pages(), 0);
  const SequenceId c = sequence_of(cache, 8);
  EXPECT_EQ(cache.statistics().groups[0].evicted, 1);
  const PrefixHit hit_b = cache.open_prefix(counting(16, 100));
  EXPECT_EQ(hit_b.tokens, 8);
  const PrefixHit hit_a = cache.open_prefix(counting(16));
  EXPECT_EQ(hit_a.tokens, 16);
  // Everything is in use: nothing can be evicted, and nothing is.
  const std::uint64_t generation = cache.generation();
  EXPECT_EQ(cache.evict(100), 0);
  EXPECT_EQ(cache.generation(), generation);
  EXPECT_THROW(cache.reserve(c, 1), OutOfMemory);
  cache.release(hit_b.sequence);
  cache.reserve(c, 1);
  EXPECT_EQ(cache.open_prefix(counting(16, 100)).tokens, 0);
  cache.release(hit_a.sequence);
  const std::uint64_t released = cache.generation();
  EXPECT_EQ(cache.evict(1), 1);
  EXPECT_GT(cache.generation(), released);
  EXPECT_EQ(state_of(cache).find_inconsistency(), "");
}

TEST(KvCachePrefix, WindowedGroupsNeedOnlyTheirTail) {
  LayerGroup windowed = small_group(8);
  windowed.window = 9;  // the next token sees 8 before it
  const Layout layout{{small_group(8), windowed}};
  KvCache cache = make_cache({.layout = layout, .pool_pages = {16, 16}});
  const SequenceId id = sequence_of(cache, 32);
  cache.advance_window(id);
  EXPECT_EQ(state_of(cache).pool(1).used_pages(), 1);
  cache.insert_prefix(id, counting(32));
  // All 32 tokens can be had, 24 cannot: the window before position 24 is gone.
  const PrefixHit hit = cache.open_prefix(counting(40));
  EXPECT_EQ(hit.tokens, 32);
  EXPECT_EQ(state_of(cache).pool(1).used_pages(), 1);
  EXPECT_EQ(cache.open_prefix(counting(31)).tokens, 0);
  EXPECT_EQ(state_of(cache).find_inconsistency(), "");
  // Somebody who has these pages completes the entries.
  const SequenceId again = sequence_of(cache, 24);
  cache.insert_prefix(again, counting(24));
  EXPECT_EQ(cache.open_prefix(counting(24)).tokens, 24);
  EXPECT_EQ(state_of(cache).find_inconsistency(), "");
}

TEST(KvCachePrefix, GroupsOfDifferentPageSizesShareBlocks) {
  const Layout layout{{small_group(4), small_group(16)}};
  KvCache cache = make_cache({.layout = layout, .pool_pages = {32, 8}});
  const SequenceId id = sequence_of(cache, 37);
  cache.insert_prefix(id, counting(37));
  EXPECT_EQ(cache.open_prefix(counting(37)).tokens, 37);
  EXPECT_EQ(cache.open_prefix(counting(21)).tokens, 21);
  EXPECT_EQ(state_of(cache).prefixes().indexed_pages(0), 10);
  EXPECT_EQ(state_of(cache).prefixes().indexed_pages(1), 3);
  EXPECT_EQ(cache.statistics().prefix_hit_tokens, 58);
  EXPECT_EQ(state_of(cache).find_inconsistency(), "");
}

// Grows a sequence to each length and indexes all of it; a later hit is never shorter.
TEST(KvCachePrefix, LongerPrefixesAreFoundWhole) {
  for (const std::int64_t sequence_tokens : {150, 100}) {
    KvCache cache = small_cache(16, 256);
    const SequenceId id = sequence_of(cache, sequence_tokens);
    cache.insert_prefix(id, counting(100));
    EXPECT_EQ(cache.open_prefix(counting(1000)).tokens, 100);
    cache.reserve(id, 1000 - sequence_tokens);
    cache.commit(id, 1000 - sequence_tokens);
    cache.insert_prefix(id, counting(1000));
    EXPECT_EQ(cache.open_prefix(counting(1000)).tokens, 1000);
    EXPECT_EQ(cache.open_prefix(counting(100)).tokens, 100);
    EXPECT_EQ(state_of(cache).find_inconsistency(), "");
  }
}

TEST(KvCachePrefix, EveryOrderOfInsertionFindsTheLongest) {
  for (const bool grown_at_once : {true, false}) {
    for (const Tokens& lengths : {Tokens{100, 300, 700, 1000}, Tokens{1000, 700, 300, 100},
                                  Tokens{100, 400}, Tokens{400, 100}}) {
      const Layout layout{{small_group(64), small_group(16)}};
      KvCache cache = make_cache({.layout = layout, .pool_pages = {64, 256}});
      const SequenceId id = cache.create();
      std::int64_t longest = 0;
      for (const std::int64_t length : lengths) {
        const std::int64_t wanted = grown_at_once ? 1000 : std::max(length, longest);
        const std::int64_t more = wanted - cache.length(id);
        cache.reserve(id, more);
        cache.commit(id, more);
        longest = std::max(longest, length);
        cache.insert_prefix(id, counting(length));
        EXPECT_EQ(cache.open_prefix(counting(1000)).tokens, longest);
        EXPECT_EQ(cache.open_prefix(counting(length)).tokens, length);
        EXPECT_EQ(state_of(cache).find_inconsistency(), "");
      }
    }
  }
}

// Two continuations of one beginning diverge inside a block; the whole pages before are of both.
TEST(KvCachePrefix, BranchesInsideABlockAreBothFound) {
  const Layout layout{{small_group(64), small_group(16)}};
  KvCache cache = make_cache({.layout = layout, .pool_pages = {16, 64}});
  const SequenceId a = sequence_of(cache, 128);
  Tokens other = counting(100);
  other.resize(128, -1);
  cache.insert_prefix(a, counting(128));
  cache.truncate(a, 100);
  cache.reserve(a, 28);
  cache.commit(a, 28);
  cache.insert_prefix(a, other);
  EXPECT_EQ(cache.open_prefix(counting(128)).tokens, 128);
  EXPECT_EQ(cache.open_prefix(other).tokens, 128);
  EXPECT_EQ(state_of(cache).find_inconsistency(), "");
}

// The entry of a whole block has lost its page; the page of part of the block still serves.
TEST(KvCachePrefix, FallsBackToPartOfABlock) {
  KvCache cache = small_cache(16, 8);
  const SequenceId part = sequence_of(cache, 20);
  const SequenceId whole = sequence_of(cache, 48);
  cache.insert_prefix(whole, counting(48));
  cache.insert_prefix(part, counting(16));
  Tokens other = counting(20);
  cache.insert_prefix(part, other);  // nothing new: 32 tokens are there
  cache.release(whole);
  cache.release(part);
  EXPECT_EQ(state_of(cache).pool(0).cached_pages(), 3);
  const PrefixHit hit = cache.open_prefix(counting(16));
  EXPECT_EQ(cache.evict(1), 1);  // the last block
  EXPECT_EQ(cache.open_prefix(counting(48)).tokens, 32);
  cache.release(hit.sequence);
  EXPECT_EQ(state_of(cache).find_inconsistency(), "");
}

// The last token of a prompt has to run again for its logits, so one token fewer is looked up. A
// prompt that was indexed before its window moved is found then too.
TEST(KvCachePrefix, AllButTheLastTokenOfAWindowedPrompt) {
  LayerGroup windowed = small_group(8);
  windowed.window = 9;
  const Layout layout{{small_group(8), windowed}};
  KvCache cache = make_cache({.layout = layout, .pool_pages = {16, 16}});
  const SequenceId id = sequence_of(cache, 32);
  cache.insert_prefix(id, counting(32));
  cache.advance_window(id);
  const PrefixHit whole = cache.open_prefix(counting(32));
  EXPECT_EQ(whole.tokens, 32);
  EXPECT_THROW(cache.truncate(whole.sequence, 31), InvalidArgument);
  EXPECT_EQ(cache.open_prefix(counting(31)).tokens, 31);
}

}  // namespace
}  // namespace touchstone::inline v0::cache
