// The hook sees every page before it is evicted, with its content and its prefix.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "cache/cache_test_device.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::cache {
namespace {

constexpr std::int64_t kPageTokens = 4;

KvCache cache_of_pages(std::int64_t pages) {
  const LayerGroup group{.layers = 1,
                         .kv_heads = 1,
                         .k_dim = 4,
                         .v_dim = 4,
                         .k = {.dtype = DType::f32},
                         .v = {.dtype = DType::f32},
                         .page_tokens = kPageTokens};
  return make_cache({.layout = {.groups = {group}}, .pool_pages = {pages}});
}

// A prompt of `tokens` in the index; its pages are marked by their first byte.
void insert(KvCache& cache, const std::vector<std::int32_t>& tokens, std::uint32_t space) {
  const SequenceId id = cache.create();
  cache.reserve(id, std::ssize(tokens));
  for (std::int64_t p = 0; p < std::ssize(tokens); p += kPageTokens) {
    state_of(cache).writable_page_at(id, 0, p)[0] =
        static_cast<std::byte>(tokens[static_cast<std::size_t>(p)]);
  }
  cache.commit(id, std::ssize(tokens));
  cache.insert_prefix(id, tokens, space);
  cache.release(id);
}

TEST(EvictionHook, SeesEveryPageWithItsPrefix) {
  KvCache cache = cache_of_pages(4);
  std::vector<std::int32_t> prompt(12);
  std::iota(prompt.begin(), prompt.end(), 50);
  insert(cache, prompt, 7);
  std::vector<std::vector<std::int32_t>> seen;
  cache.set_eviction_hook([&](const EvictedPage& page) {
    EXPECT_EQ(page.layer_group, 0);
    EXPECT_EQ(page.space, 7U);
    EXPECT_EQ(page.first_position % kPageTokens, 0);
    EXPECT_EQ(page.bytes[0],
              static_cast<std::byte>(page.tokens[static_cast<std::size_t>(page.first_position)]));
    seen.emplace_back(page.tokens.begin(), page.tokens.end());
  });
  const SequenceId id = cache.create();
  cache.reserve(id, 3 * kPageTokens);  // one page is free, two must go: the end of the prompt first
  ASSERT_EQ(seen.size(), 2U);
  EXPECT_EQ(seen[0], prompt);
  EXPECT_EQ(seen[1], std::vector<std::int32_t>(prompt.begin(), prompt.begin() + 8));
  cache.release(id);
  EXPECT_EQ(cache.evict(10), 1);
  ASSERT_EQ(seen.size(), 3U);
  EXPECT_EQ(seen[2], std::vector<std::int32_t>(prompt.begin(), prompt.begin() + 4));
  EXPECT_EQ(state_of(cache).find_inconsistency(), "");
}

TEST(EvictionHook, AnExceptionStopsTheReservation) {
  KvCache cache = cache_of_pages(2);
  insert(cache, {1, 2, 3, 4, 5, 6, 7, 8}, 0);
  int calls = 0;
  cache.set_eviction_hook([&](const EvictedPage&) {
    if (++calls == 2) throw OutOfMemory("host tier: full");
  });
  const SequenceId id = cache.create();
  EXPECT_THROW(cache.reserve(id, 8), OutOfMemory);
  EXPECT_EQ(cache.reserved(id), 0);
  EXPECT_EQ(state_of(cache).pool(0).cached_pages(), 1);
  EXPECT_EQ(state_of(cache).find_inconsistency(), "");
  cache.set_eviction_hook({});
  cache.reserve(id, 8);
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace touchstone::inline v0::cache
