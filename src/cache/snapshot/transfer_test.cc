#include "touchstone/cache/transfer.h"

#include <gtest/gtest.h>

#include "cache/snapshot/snapshot_test_support.h"
#include "tests/support/refusal.h"

namespace touchstone::inline v0::cache::test {
namespace {

using ::touchstone::test::expect_refusal;

TEST(Transfer, MovesAwayAndBackSharingIncluded) {
  KvCache cache = make_cache(small_options());
  KvCache host = make_cache(small_options());
  const Family family(cache);
  cache.truncate(family.ids[1], 18);  // gives up what was reserved
  const State before(cache);
  const std::vector<SequenceId> away = move_sequences(cache, family.ids, host);
  Family::expect_at(host, away);
  for (std::int64_t g = 0; g < 2; ++g) {
    EXPECT_EQ(state_of(cache).pool(g).used_pages(), 0);
    EXPECT_EQ(state_of(host).pool(g).used_pages(),
              before.statistics.groups[static_cast<std::size_t>(g)].used);
  }
  EXPECT_THROW(cache.length(family.ids[0]), InvalidArgument);
  const std::vector<SequenceId> back = move_sequences(host, away, cache);
  Family::expect_at(cache, back);
  for (std::int64_t g = 0; g < 2; ++g) {
    EXPECT_EQ(state_of(host).pool(g).used_pages(), 0);
    EXPECT_EQ(state_of(cache).pool(g).used_pages(),
              before.statistics.groups[static_cast<std::size_t>(g)].used);
  }
  EXPECT_EQ(state_of(cache).find_inconsistency(), "");
  EXPECT_EQ(state_of(host).find_inconsistency(), "");
}

TEST(Transfer, LeavesPagesThatOthersUse) {
  KvCache cache = make_cache(small_options());
  KvCache host = make_cache(small_options());
  const Family family(cache);
  const std::vector<SequenceId> away = move_sequences(cache, {family.ids.data(), 2}, host);
  expect_tokens(cache, family.ids[2], 0, 13, 1000);
  expect_tokens(cache, family.ids[2], 13, 14, 3000);
  EXPECT_EQ(state_of(cache).find_inconsistency(), "");
  append(cache, family.ids[2], 2, 9000);  // alone now: in place
  EXPECT_EQ(host.length(away[1]), 18);
  expect_tokens(host, away[1], 13, 17, 3000);
}

// A second tier of prefixes: what the first one evicts is found in the second.
TEST(Transfer, KeepsPrefixesInAnotherTier) {
  KvCache cache = make_cache(small_options());
  KvCache host = make_cache(small_options());
  const std::vector<std::int32_t> prompt(12, 3);
  const SequenceId id = cache.create();
  append(cache, id, 12, 50);
  cache.insert_prefix(id, prompt);
  const std::vector<SequenceId> away = move_sequences(cache, {&id, 1}, host);
  host.insert_prefix(away[0], prompt);
  host.release(away[0]);
  cache.evict(100);
  EXPECT_EQ(cache.open_prefix(prompt).tokens, 0);
  const PrefixHit hit = host.open_prefix(prompt);
  EXPECT_EQ(hit.tokens, 12);
  const std::vector<SequenceId> back = copy_sequences(host, {&hit.sequence, 1}, cache);
  expect_tokens(cache, back[0], 0, 12, 50);
  EXPECT_EQ(state_of(cache).find_inconsistency(), "");
  EXPECT_EQ(state_of(host).find_inconsistency(), "");
}

TEST(Transfer, IsAllOrNothing) {
  KvCache cache = make_cache(small_options());
  const Family family(cache);
  KvCacheOptions options = small_options();
  options.pool_pages = {20, 11};
  KvCache host = make_cache(options);
  const State here(cache);
  const State there(host);
  EXPECT_THROW(move_sequences(cache, family.ids, host), OutOfMemory);
  const auto expect_nothing = [&](const char* message, auto call) {
    expect_refusal(message, call);
    here.expect_same(cache);
    there.expect_same(host);
  };
  expect_nothing("move_sequences: to: expected another cache",
                 [&] { move_sequences(cache, family.ids, cache); });
  const std::vector twice{family.ids[2], family.ids[2]};
  expect_nothing("move_sequences: ids: sequence 2 is named twice",
                 [&] { move_sequences(cache, twice, host); });
  const std::vector stale{family.ids[2], SequenceId{}};
  expect_nothing("kv_cache: sequence: ", [&] { move_sequences(cache, stale, host); });
  options.layout.groups[1].window = 7;
  KvCache other = make_cache(options);
  expect_nothing("copy_sequences: group 1: window: expected 7, got 5",
                 [&] { copy_sequences(cache, family.ids, other); });
}

TEST(Transfer, APageLockedTierNeedsCuda) {
  if (built_with_cuda()) GTEST_SKIP() << "it has CUDA";
  KvCacheOptions options = small_options();
  options.page_locked = true;
  EXPECT_THROW(make_cache(options), Unsupported);
}

TEST(Transfer, EvictsWhereItMust) {
  KvCache cache = make_cache(small_options());
  const Family family(cache);
  KvCacheOptions options = small_options();
  options.pool_pages = {10, 15};
  KvCache host = make_cache(options);
  const SequenceId id = host.create();
  append(host, id, 20, 1);
  host.insert_prefix(id, std::vector<std::int32_t>(20, 7));
  host.release(id);
  Family::expect_at(host, move_sequences(cache, family.ids, host));
  EXPECT_GT(host.statistics().groups[0].evicted, 0);
  EXPECT_EQ(state_of(host).find_inconsistency(), "");
}

}  // namespace
}  // namespace touchstone::inline v0::cache::test
