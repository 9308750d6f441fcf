// Sequences: page borders, copy on write, windows, and what is refused.
#include "touchstone/cache/kv_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "cache/cache_test_device.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::cache {
namespace {

// One byte per token stands for all its keys and values.
void append(KvCache& cache, SequenceId id, std::int64_t tokens, int mark) {
  cache.reserve(id, tokens);
  const LayerGroup& group = cache.layout().groups[0];
  for (std::int64_t i = 0; i < tokens; ++i) {
    const std::int64_t position = cache.length(id) + i;
    const auto offset =
        token_offsets(group, state_of(cache).geometry(0), 0, 0, position % group.page_tokens)
            .k_values;
    state_of(cache).writable_page_at(id, 0, position)[static_cast<std::size_t>(offset)] =
        static_cast<std::byte>(mark);
  }
  cache.commit(id, tokens);
}

int mark_at(const KvCache& cache, SequenceId id, std::int64_t position) {
  const LayerGroup& group = cache.layout().groups[0];
  const auto offset =
      token_offsets(group, state_of(cache).geometry(0), 0, 0, position % group.page_tokens)
          .k_values;
  return static_cast<int>(
      state_of(cache).page_at(id, 0, position)[static_cast<std::size_t>(offset)]);
}

TEST(KvCache, PagesAtTheirBorders) {
  for (const std::int64_t page : {1, 8, 16, 64}) {
    for (const std::int64_t tokens : {2 * page - 1, 2 * page, 2 * page + 1}) {
      KvCache cache = small_cache(page, 4);
      const SequenceId id = cache.create();
      append(cache, id, tokens, 1);
      EXPECT_EQ(state_of(cache).pool(0).used_pages(), pages_for_tokens(small_group(page), tokens));
      append(cache, id, 1, 2);
      EXPECT_EQ(state_of(cache).pool(0).used_pages(),
                pages_for_tokens(small_group(page), tokens + 1));
      EXPECT_EQ(mark_at(cache, id, tokens - 1), 1);
      EXPECT_EQ(mark_at(cache, id, tokens), 2);
      cache.truncate(id, tokens - 1);
      EXPECT_EQ(state_of(cache).pool(0).used_pages(),
                pages_for_tokens(small_group(page), tokens - 1));
      cache.truncate(id, 0);
      EXPECT_EQ(state_of(cache).pool(0).used_pages(), 0);
      EXPECT_EQ(state_of(cache).find_inconsistency(), "");
    }
  }
}

TEST(KvCache, ForkCopiesThePartialPageOnWrite) {
  KvCache cache = small_cache(8, 8);
  const SequenceId parent = cache.create();
  append(cache, parent, 12, 1);
  const SequenceId child = cache.fork(parent);
  EXPECT_EQ(state_of(cache).pool(0).used_pages(), 2);
  append(cache, child, 1, 2);
  EXPECT_EQ(state_of(cache).pool(0).used_pages(), 3);
  EXPECT_EQ(cache.statistics().groups[0].copied, 1);
  append(cache, parent, 1, 3);  // alone with its page by now
  EXPECT_EQ(cache.statistics().groups[0].copied, 1);
  EXPECT_EQ(mark_at(cache, child, 11), 1);
  EXPECT_EQ(mark_at(cache, child, 12), 2);
  EXPECT_EQ(mark_at(cache, parent, 12), 3);
  cache.release(parent);
  EXPECT_EQ(mark_at(cache, child, 0), 1);
  EXPECT_EQ(state_of(cache).find_inconsistency(), "");
}

TEST(KvCache, ForkAtAPageBorderCopiesNothing) {
  KvCache cache = small_cache(8, 8);
  const SequenceId parent = cache.create();
  append(cache, parent, 16, 1);
  const SequenceId child = cache.fork(parent);
  append(cache, child, 1, 2);
  append(cache, parent, 1, 3);
  EXPECT_EQ(cache.statistics().groups[0].copied, 0);
  cache.truncate(child, 10);  // into a page that is shared
  append(cache, child, 1, 4);
  EXPECT_EQ(cache.statistics().groups[0].copied, 1);
  EXPECT_EQ(mark_at(cache, parent, 10), 1);
  EXPECT_EQ(mark_at(cache, child, 10), 4);
}

TEST(KvCache, ForkGivesUpWhatWasReserved) {
  KvCache cache = small_cache(8, 8);
  const SequenceId parent = cache.create();
  append(cache, parent, 4, 1);
  cache.reserve(parent, 20);
  EXPECT_EQ(state_of(cache).pool(0).used_pages(), 3);
  const SequenceId child = cache.fork(parent);
  EXPECT_EQ(state_of(cache).pool(0).used_pages(), 1);
  EXPECT_THROW(cache.commit(parent, 1), InvalidArgument);
  EXPECT_THROW(state_of(cache).writable_page_at(parent, 0, 4), InvalidArgument);
  EXPECT_EQ(cache.length(child), 4);
}

TEST(KvCache, OutOfMemoryChangesNothing) {
  KvCache cache = small_cache(8, 4);
  const SequenceId a = cache.create();
  const SequenceId b = cache.create();
  append(cache, a, 12, 1);
  append(cache, b, 8, 2);
  const std::uint64_t generation = cache.generation();
  EXPECT_THROW(cache.reserve(a, 13), OutOfMemory);
  EXPECT_THROW(cache.reserve(a, std::int64_t{1} << 62), OutOfMemory);
  const SequenceId both[] = {a, b};
  EXPECT_THROW(cache.reserve(both, 5), OutOfMemory);  // either alone would fit
  EXPECT_EQ(cache.generation(), generation);
  EXPECT_EQ(state_of(cache).pool(0).free_pages(), 1);
  EXPECT_EQ(state_of(cache).sequence(a).reserved, 12);
  EXPECT_EQ(mark_at(cache, a, 11), 1);
  cache.reserve(both, 4);
  cache.commit(both, 4);
  EXPECT_EQ(cache.length(b), 12);
  EXPECT_EQ(state_of(cache).pool(0).free_pages(), 0);
  // No free page to copy the shared partial page to: the fork stands, the write does not begin.
  const SequenceId child = cache.fork(b);
  EXPECT_THROW(cache.reserve(child, 1), OutOfMemory);
  EXPECT_EQ(mark_at(cache, child, 7), 2);
  EXPECT_EQ(cache.statistics().refused_reservations, 4);
  EXPECT_EQ(state_of(cache).find_inconsistency(), "");
}

TEST(KvCache, WindowKeepsSinksAndUsesThePagesOfThePlan) {
  for (const std::int64_t page : {1, 8, 16}) {
    LayerGroup group = small_group(page);
    group.window = 20;
    group.sinks = 3;
    // As many pages as the planner says, and not one more.
    KvCache cache = make_cache({.layout = {{group}}, .pool_pages = pool_pages_for({{group}}, 300)});
    const SequenceId id = cache.create();
    for (std::int64_t length = 1; length <= 300; ++length) {
      append(cache, id, 1, static_cast<int>(length % 100));
      EXPECT_EQ(state_of(cache).pool(0).used_pages(), pages_for_tokens(group, length));
      cache.advance_window(id);
    }
    EXPECT_EQ(state_of(cache).pool(0).peak_used_pages(), state_of(cache).pool(0).capacity());
    EXPECT_EQ(mark_at(cache, id, 2), 3);
    EXPECT_EQ(mark_at(cache, id, 281), 82);
    EXPECT_THROW(mark_at(cache, id, 100), InvalidArgument);
    EXPECT_THROW(cache.truncate(id, 200), InvalidArgument);
    EXPECT_EQ(cache.length(id), 300);
    cache.truncate(id, 3);  // back to the sinks: nothing is missing
    EXPECT_EQ(state_of(cache).find_inconsistency(), "");
  }
}

TEST(KvCache, MaxTokensCanBeAllocated) {
  Layout layout{{small_group(16), small_group(8)}};
  layout.groups[1].window = 40;
  const std::int64_t tokens = max_tokens(layout, 100'000, 3);
  KvCache cache = make_cache({.layout = layout, .pool_pages = pool_pages_for(layout, tokens, 3)});
  const std::vector<SequenceId> ids{cache.create(), cache.create(), cache.create()};
  for (std::int64_t t = 0; t < tokens; ++t) {
    cache.reserve(ids, 1);
    cache.commit(ids, 1);
    for (const SequenceId id : ids) cache.advance_window(id);
  }
  EXPECT_LE(state_of(cache).memory(0).bytes() + state_of(cache).memory(1).bytes(), 100'000);
  EXPECT_THROW(cache.reserve(ids, 1), OutOfMemory);
}

TEST(KvCache, ContiguousStorageIsOnePagePerSequence) {
  KvCache cache = small_cache(128, 2);
  const SequenceId id = cache.create();
  append(cache, id, 1, 1);
  append(cache, id, 127, 2);
  EXPECT_EQ(state_of(cache).pool(0).used_pages(), 1);
  EXPECT_EQ(state_of(cache).page_at(id, 0, 0).data(), state_of(cache).page_at(id, 0, 127).data());
}

// The last page begins beyond 2^32 bytes. Only pages that are touched take memory.
TEST(KvCache, PagesBeyondFourGigabytes) {
  LayerGroup group{.layers = 1, .kv_heads = 8, .k_dim = 128, .v_dim = 128, .page_tokens = 1024};
  KvCache cache = make_cache({.layout = {{group}}, .pool_pages = {1280}});
  const std::int64_t bytes = page_bytes(group);
  ASSERT_GT(1279 * bytes, std::int64_t{1} << 32);
  const SequenceId id = cache.create();
  cache.reserve(id, 1280 * 1024);
  const std::span<std::byte> last = state_of(cache).writable_page_at(id, 0, 1279 * 1024);
  EXPECT_EQ(last.data() - state_of(cache).memory_data(0), 1279 * bytes);
  last.back() = std::byte{42};
  state_of(cache).writable_page_at(id, 0, 0).back() = std::byte{1};
  state_of(cache).writable_page_at(id, 0, 255 * 1024).back() =
      std::byte{2};                   // where 32 bits would wrap to
  cache.commit(id, 1280 * 1024 - 1);  // the last page is partial
  const SequenceId child = cache.fork(id);
  cache.truncate(id, 1024);
  cache.release(id);
  EXPECT_EQ(state_of(cache).page_at(child, 0, 1279 * 1024).back(), std::byte{42});
  EXPECT_EQ(state_of(cache).page_at(child, 0, 0).back(), std::byte{1});
}

TEST(KvCache, RefusesBadHandlesAndNumbers) {
  KvCache cache = small_cache(8, 4);
  KvCache other = small_cache(8, 4);
  const SequenceId id = cache.create();
  append(cache, id, 5, 1);
  const SequenceId foreign = other.create();
  for (const SequenceId bad : {foreign, SequenceId{}, SequenceId{7, 0, id.cache}}) {
    EXPECT_THROW(cache.reserve(bad, 1), InvalidArgument);
    EXPECT_THROW(cache.commit(bad, 0), InvalidArgument);
    EXPECT_THROW(cache.truncate(bad, 0), InvalidArgument);
    EXPECT_THROW(cache.fork(bad), InvalidArgument);
    EXPECT_THROW(cache.advance_window(bad), InvalidArgument);
    EXPECT_THROW(cache.release(bad), InvalidArgument);
    EXPECT_THROW(cache.insert_prefix(bad, {}), InvalidArgument);
    EXPECT_THROW(cache.length(bad), InvalidArgument);
  }
  EXPECT_THROW(cache.reserve(id, -1), InvalidArgument);
  EXPECT_THROW(cache.commit(id, 1), InvalidArgument);
  EXPECT_THROW(cache.truncate(id, 6), InvalidArgument);
  EXPECT_THROW(cache.truncate(id, -1), InvalidArgument);
  EXPECT_THROW(state_of(cache).page_at(id, 0, 5), InvalidArgument);
  EXPECT_THROW(state_of(cache).page_at(id, 1, 0), InvalidArgument);
  cache.reserve(id, 1);
  const SequenceId twice[] = {id, id};
  EXPECT_THROW(cache.commit(twice, 1), InvalidArgument);
  EXPECT_EQ(cache.length(id), 5);
  cache.release(id);
  EXPECT_THROW(cache.release(id), InvalidArgument);
  const SequenceId next = cache.create();  // the same slot
  EXPECT_EQ(next.index, id.index);
  EXPECT_THROW(cache.length(id), InvalidArgument);
  EXPECT_EQ(cache.length(next), 0);
  EXPECT_EQ(state_of(cache).find_inconsistency(), "");
}

TEST(KvCache, RefusesBadOptions) {
  const Layout layout{{small_group(8), small_group(12)}};
  EXPECT_THROW(make_cache({.layout = layout, .pool_pages = {4}}), InvalidArgument);
  EXPECT_THROW(make_cache({.layout = layout, .pool_pages = {4, 0}}), InvalidArgument);
  EXPECT_THROW(make_cache({.layout = layout, .pool_pages = {4, 4}, .prefix_block_tokens = 16}),
               InvalidArgument);
  const KvCache two = make_cache({.layout = layout, .pool_pages = {4, 4}});
  EXPECT_EQ(state_of(two).prefixes().block_tokens(), 24);
  EXPECT_THROW(make_cache({}), InvalidArgument);
}

// With a window of 1 the next token attends to no earlier position, so any length is allowed.
TEST(KvCache, TruncatesAWindowOfOne) {
  for (const std::int64_t sinks : {0, 3}) {
    LayerGroup group{.layers = 1, .kv_heads = 1, .k_dim = 8, .v_dim = 8, .page_tokens = 8};
    group.window = 1;
    group.sinks = sinks;
    for (const std::int64_t length : {37, 32, 24, 13, 8, 2, 0}) {
      KvCache cache = make_cache({.layout = {{group}}, .pool_pages = {8}});
      const SequenceId id = cache.create();
      cache.reserve(id, 40);
      cache.commit(id, 40);
      cache.advance_window(id);
      cache.truncate(id, length);
      EXPECT_EQ(cache.length(id), length);
      EXPECT_EQ(state_of(cache).find_inconsistency(), "");
      const SequenceId fork = cache.fork(id);
      cache.reserve(id, 1);
      EXPECT_EQ(state_of(cache).find_inconsistency(), "");
      EXPECT_EQ(state_of(cache).writable_page_at(id, 0, length).size(),
                static_cast<std::size_t>(state_of(cache).geometry(0).page_bytes));
      cache.commit(id, 1);
      cache.advance_window(id);
      cache.truncate(fork, length / 2);
      cache.reserve(fork, 20);
      EXPECT_EQ(state_of(cache).find_inconsistency(), "");
    }
  }
}

// Pages for chunks: so many suffice whatever the sizes of the chunks, also where others share what
// the window passes; and no more than two could be spared.
TEST(KvCache, EstimatesTokensThatComeInChunks) {
  constexpr std::int64_t kPool = 256;
  constexpr std::int64_t kTokens = 90;
  for (const std::int64_t page : {1, 3, 8}) {
    for (const std::int64_t window : {1, 5, 16}) {
      for (const std::int64_t sinks : {0, 4}) {
        for (const std::int64_t chunk : {1, 2, 7, 32}) {
          for (const std::int64_t begin : {0, 3, 16, 41}) {
            for (const bool shared : {false, true}) {
              SCOPED_TRACE(testing::Message()
                           << "page " << page << ", window " << window << ", sinks " << sinks
                           << ", chunk " << chunk << ", begin " << begin << ", shared " << shared);
              LayerGroup group = small_group(page);
              group.window = window;
              group.sinks = sinks;
              KvCache cache = make_cache({.layout = {{group}}, .pool_pages = {kPool}});
              const PagePool& pool = state_of(cache).pool(0);
              const SequenceId id = cache.create();
              append(cache, id, begin, 1);
              cache.advance_window(id);
              if (shared) cache.fork(id);
              const std::vector<TokenCount> counts = {{id, kTokens}};
              const ReserveEstimate estimate = cache.estimate_chunks(counts, chunk);
              EXPECT_TRUE(estimate.fits);
              EXPECT_LE(estimate.pages[0], cache.estimate_reserve(counts).pages[0]);
              const SequenceId others = cache.create();
              cache.reserve(others, (pool.free_pages() - estimate.pages[0]) * page);
              EXPECT_TRUE(cache.estimate_chunks(counts, chunk).fits);
              std::int64_t least = pool.free_pages();
              std::int64_t left = kTokens;
              for (int step = 0; left > 0; ++step) {
                // Whole chunks and others by turns.
                const std::int64_t most = step % 3 == 2 ? (chunk + 1) / 2 : chunk;
                const std::int64_t tokens = std::min(left, most);
                ASSERT_NO_THROW(cache.reserve(id, tokens));
                least = std::min(least, pool.free_pages());
                cache.commit(id, tokens);
                cache.advance_window(id);
                left -= tokens;
              }
              EXPECT_LE(least, 2);
            }
          }
        }
      }
    }
  }
  // Without a window it is the whole.
  KvCache cache = small_cache(8, 16);
  const std::vector<TokenCount> counts = {{cache.create(), 100}};
  EXPECT_EQ(cache.estimate_chunks(counts, 4).pages, cache.estimate_reserve(counts).pages);
  EXPECT_THROW(cache.estimate_chunks(counts, 0), InvalidArgument);
}

}  // namespace
}  // namespace touchstone::inline v0::cache
