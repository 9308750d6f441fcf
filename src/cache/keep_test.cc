// keep(): the cache equals, byte for byte, one that was given the accepted tokens alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "cache/cache_test_device.h"
#include "cache/token_move.h"
#include "tests/support/runners.h"
#include "touchstone/cache/cache_view.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::cache {
namespace {

using ::touchstone::test::on_gpu;
using ::touchstone::test::test_device;

template <class E, class Call>
void expect_refusal(const Call& call, const std::string& message) {
  EXPECT_THAT(call, testing::ThrowsMessage<E>(testing::HasSubstr(message)));
}

LayerGroup group_of(DType k, DType v, std::int64_t page_tokens, std::int64_t window = 0) {
  const auto format = [](DType dtype) {
    return dtype == DType::i8 || dtype == DType::i4 ? QuantFormat{.dtype = dtype, .group_size = 4}
                                                    : QuantFormat{.dtype = dtype};
  };
  return {.layers = 2,
          .kv_heads = 3,
          .k_dim = 12,
          .v_dim = 8,
          .k = format(k),
          .v = format(v),
          .page_tokens = page_tokens,
          .window = window};
}

// The bytes of a token in one group, as a page stores them: every vector and scale of every layer
// and head, filled from the token's number.
struct TokenImage {
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
};
std::vector<TokenImage> images(const LayerGroup& group, std::int64_t slot) {
  const TokenBytes bytes = token_bytes_of(group, page_geometry(group), nullptr);
  std::vector<TokenImage> result;
  for (std::int64_t layer = 0; layer < group.layers; ++layer) {
    for (const StoredPart& part : bytes.parts) {
      for (std::int64_t head = 0; part.bytes > 0 && head < group.kv_heads; ++head) {
        result.push_back({layer * bytes.layer_bytes + part.offset +
                              (head * group.page_tokens + slot) * part.bytes,
                          part.bytes});
      }
    }
  }
  return result;
}
std::byte byte_of(std::int64_t token, std::int64_t image, std::int64_t i) {
  return static_cast<std::byte>(token * 37 + image * 11 + i * 5 + 1);
}

void write_token(KvCache& cache, SequenceId id, std::int64_t position, std::int64_t token) {
  CacheState& state = state_of(cache);
  for (std::int64_t g = 0; g < state.groups(); ++g) {
    const LayerGroup& group = cache.layout().groups[static_cast<std::size_t>(g)];
    std::byte* page = state.writable_page_at(id, g, position).data();
    std::int64_t number = 0;
    for (const TokenImage& image : images(group, position % group.page_tokens)) {
      std::vector<std::byte> bytes;
      for (std::int64_t i = 0; i < image.bytes; ++i) bytes.push_back(byte_of(token, number, i));
      write_bytes(cache.device(), page + image.offset, bytes);
      ++number;
    }
  }
}

// Whether the committed tokens of a sequence are these, in every group that still has their page.
void expect_tokens(const KvCache& cache, SequenceId id, const std::vector<std::int64_t>& tokens) {
  const CacheState& state = state_of(cache);
  ASSERT_EQ(cache.length(id), std::ssize(tokens));
  for (std::int64_t g = 0; g < state.groups(); ++g) {
    const LayerGroup& group = cache.layout().groups[static_cast<std::size_t>(g)];
    const std::vector<PageHandle>& pages =
        state.sequence(id).groups[static_cast<std::size_t>(g)].pages;
    std::int64_t read = -1;
    std::vector<std::byte> page;
    for (std::int64_t p = 0; p < std::ssize(tokens); ++p) {
      const std::int64_t of_row = p / group.page_tokens;
      if (pages[static_cast<std::size_t>(of_row)].empty()) continue;
      if (of_row != read) {
        const std::span<const std::byte> bytes = state.page_at(id, g, p);
        page = read_bytes(cache.device(), bytes.data(), bytes.size());
        read = of_row;
      }
      std::int64_t number = 0;
      for (const TokenImage& image : images(group, p % group.page_tokens)) {
        for (std::int64_t i = 0; i < image.bytes; ++i) {
          ASSERT_EQ(page[static_cast<std::size_t>(image.offset + i)],
                    byte_of(tokens[static_cast<std::size_t>(p)], number, i))
              << "group " << g << " position " << p;
        }
        ++number;
      }
    }
  }
}

// Random trees of several sequences at once: their accepted paths are ascending slots of what was
// reserved. Page sizes and windows differ between groups, so tokens move within and across pages.
void run_random_trees(const Layout& layout, int cycles, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::int64_t limit) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(limit));
  };
  constexpr std::size_t kSequences = 3;
  KvCache cache = make_cache(
      {.layout = layout, .pool_pages = pool_pages_for(layout, 160, kSequences, 24)}, test_device());
  std::vector<SequenceId> ids;
  std::vector<std::vector<std::int64_t>> tokens(kSequences);
  for (std::size_t s = 0; s < kSequences; ++s) ids.push_back(cache.create());
  std::int64_t next = 1;
  for (int cycle = 0; cycle < cycles; ++cycle) {
    std::vector<TokenCount> counts;
    std::vector<std::vector<std::int64_t>> slots(kSequences);
    std::vector<KeptSlots> kept;
    for (std::size_t s = 0; s < kSequences; ++s) {
      if (cache.length(ids[s]) > 120) {
        cache.release(ids[s]);
        ids[s] = cache.create();
        tokens[s].clear();
      }
      counts.push_back({ids[s], below(12)});
    }
    cache.reserve(counts);
    for (std::size_t s = 0; s < kSequences; ++s) {
      const std::int64_t reserved = counts[s].tokens;
      for (std::int64_t slot = 0; slot < reserved; ++slot) {
        write_token(cache, ids[s], cache.length(ids[s]) + slot, next + slot);
        if (below(2) == 0) {
          slots[s].push_back(slot);
          tokens[s].push_back(next + slot);
        }
      }
      next += reserved;
      if (!slots[s].empty() || below(2) == 0) kept.push_back({ids[s], slots[s]});
    }
    cache.keep(kept);
    for (std::size_t s = 0; s < kSequences; ++s) {
      if (cycle % 8 == 7) {
        ASSERT_NO_FATAL_FAILURE(expect_tokens(cache, ids[s], tokens[s]));
      }
      cache.advance_window(ids[s]);
    }
  }
  EXPECT_EQ(state_of(cache).find_inconsistency(), "");
}

TEST(Keep, EqualsTheAcceptedTokensAlone) {
  const int cycles = on_gpu() ? 24 : 2300;  // 10^5 trees on the CPU
  std::uint64_t seed = 1;
  for (const auto& [k, v] : {std::pair{DType::f32, DType::f32},
                             {DType::bf16, DType::f16},
                             {DType::i8, DType::i8},
                             {DType::i8, DType::i4},
                             {DType::f8_e4m3, DType::f8_e4m3}}) {
    for (const std::int64_t page_tokens : {1, 3, 8}) {
      SCOPED_TRACE(testing::Message() << name_of(k) << " " << name_of(v) << " " << page_tokens);
      run_random_trees({.groups = {group_of(k, v, page_tokens), group_of(v, k, 8, 10)}}, cycles,
                       seed++);
    }
  }
}

TEST(Keep, MlaStoresTheLatentOnce) {
  LayerGroup latent = group_of(DType::bf16, DType::bf16, 4);
  latent.k_is_v = true;
  run_random_trees({.groups = {latent}}, on_gpu() ? 24 : 400, 99);
}

// More runs and moves than one launch holds.
TEST(Keep, ManySequencesAndLongRuns) {
  const Layout layout{.groups = {group_of(DType::i8, DType::i8, 16)}};
  const std::int64_t sequences = 2 * MoveBatch::kMaxRuns + 3;
  KvCache cache = make_cache(
      {.layout = layout, .pool_pages = {sequences + 2 * MoveBatch::kMaxMoves / 16}}, test_device());
  std::vector<SequenceId> ids;
  std::vector<KeptSlots> kept;
  const std::vector<std::int64_t> last = {1};
  for (std::int64_t s = 0; s < sequences; ++s) {
    ids.push_back(cache.create());
    cache.reserve(ids.back(), 2);
    write_token(cache, ids.back(), 0, 2 * s);
    write_token(cache, ids.back(), 1, 2 * s + 1);
    kept.push_back({ids.back(), last});
  }
  const SequenceId chain = cache.create();
  const std::int64_t length = MoveBatch::kMaxMoves + 50;
  cache.reserve(chain, length + 1);
  std::vector<std::int64_t> all_but_first;
  std::vector<std::int64_t> expected;
  for (std::int64_t i = 0; i <= length; ++i) {
    write_token(cache, chain, i, i);
    if (i > 0) {
      all_but_first.push_back(i);
      expected.push_back(i);
    }
  }
  kept.push_back({chain, all_but_first});
  cache.keep(kept);
  for (std::int64_t s = 0; s < sequences; ++s) {
    ASSERT_NO_FATAL_FAILURE(expect_tokens(cache, ids[static_cast<std::size_t>(s)], {2 * s + 1}));
  }
  expect_tokens(cache, chain, expected);
}

TEST(Keep, TheFrontStaysAndTheRestStaysReserved) {
  KvCache cache =
      make_cache({.layout = {.groups = {group_of(DType::f32, DType::f32, 4)}}, .pool_pages = {4}},
                 test_device());
  const SequenceId id = cache.create();
  cache.reserve(id, 6);
  for (std::int64_t i = 0; i < 6; ++i) write_token(cache, id, i, i);
  const std::vector<std::int64_t> front = {0, 1};
  const KeptSlots kept{id, front};
  cache.keep({&kept, 1});
  expect_tokens(cache, id, {0, 1});
  EXPECT_EQ(cache.reserved(id), 6);
  // Slots count from the new length.
  const std::vector<std::int64_t> later = {1, 3};
  const KeptSlots more{id, later};
  cache.keep({&more, 1});
  expect_tokens(cache, id, {0, 1, 3, 5});
}

TEST(Keep, RefusesAndChangesNothing) {
  KvCache cache =
      make_cache({.layout = {.groups = {group_of(DType::f32, DType::f32, 4)}}, .pool_pages = {4}},
                 test_device());
  const SequenceId id = cache.create();
  cache.reserve(id, 3);
  const std::uint64_t generation = cache.generation();
  const auto refused = [&](std::vector<std::int64_t> slots, const std::string& message) {
    const KeptSlots kept{id, slots};
    expect_refusal<InvalidArgument>([&] { cache.keep({&kept, 1}); }, message);
  };
  refused({3}, "expected 0 to 2, the reserved part, got 3");
  refused({-1}, "got -1");
  refused({1, 0}, "expected ascending ones, got 0 after 1");
  refused({1, 1}, "got 1 after 1");
  const std::vector<KeptSlots> twice = {{id, {}}, {id, {}}};
  expect_refusal<InvalidArgument>([&] { cache.keep(twice); }, "named twice");
  const std::vector<KeptSlots> stale = {{id, {}}, {SequenceId{}, {}}};
  expect_refusal<InvalidArgument>([&] { cache.keep(stale); }, "is not of this cache");
  EXPECT_EQ(cache.length(id), 0);
  EXPECT_EQ(cache.generation(), generation);
}

TEST(Reserve, CountsPerSequenceAllOrNothing) {
  KvCache cache =
      make_cache({.layout = {.groups = {group_of(DType::f32, DType::f32, 4)}}, .pool_pages = {6}},
                 test_device());
  const SequenceId a = cache.create();
  const SequenceId b = cache.create();
  const std::vector<TokenCount> fits = {{a, 5}, {b, 9}};  // 2 + 3 pages
  EXPECT_EQ(cache.estimate_reserve(fits).pages, (std::vector<std::int64_t>{5}));
  EXPECT_TRUE(cache.estimate_reserve(fits).fits);
  EXPECT_TRUE(cache.estimate_reserve(fits, 1).fits);
  EXPECT_FALSE(cache.estimate_reserve(fits, 2).fits);
  expect_refusal<OutOfMemory>([&] { cache.reserve(fits, 2); },
                              "expected 5 + 2 (watermark) free or cached pages in group 0, got 6");
  EXPECT_EQ(cache.reserved(a), 0);
  const std::vector<TokenCount> much = {{a, 13}, {b, 13}};
  EXPECT_FALSE(cache.estimate_reserve(much).fits);
  expect_refusal<OutOfMemory>([&] { cache.reserve(much); }, "expected 8 free or cached pages");
  EXPECT_EQ(state_of(cache).pool(0).used_pages(), 0);
  cache.reserve(fits, 1);
  EXPECT_EQ(cache.reserved(a), 5);
  EXPECT_EQ(cache.reserved(b), 9);
  const std::vector<TokenCount> written = {{a, 5}, {b, 2}};
  cache.commit(written);
  EXPECT_EQ(cache.length(a), 5);
  EXPECT_EQ(cache.length(b), 2);
  // What needs no page passes any watermark.
  const std::vector<TokenCount> one = {{a, 1}};
  EXPECT_TRUE(cache.estimate_reserve(one, 100).fits);
  cache.reserve(one, 100);
  const std::vector<TokenCount> too_many = {{a, 1}, {b, 8}};
  expect_refusal<InvalidArgument>([&] { cache.commit(too_many); }, "at most the reserved 7, got 8");
  EXPECT_EQ(cache.length(a), 5);
  expect_refusal<InvalidArgument>([&] { cache.estimate_reserve(one, -1); }, "watermark");
  EXPECT_EQ(state_of(cache).find_inconsistency(), "");
}

// Rows, strides and addresses of a fixed view stay; rows without a sequence are empty.
TEST(FixedView, KeepsRowsStridesAndAddresses) {
  const Layout layout{.groups = {group_of(DType::f32, DType::f32, 4)}};
  KvCache cache = make_cache({.layout = layout, .pool_pages = {32}}, test_device());
  Context context({.device = test_device(), .threads = 1});
  CacheViewBuilder builder(cache, {.rows = 3, .tokens = 40});
  std::vector<SequenceId> ids = {cache.create()};
  const CacheView first = builder.build(context, ids);
  EXPECT_EQ(first.rows, 3);
  EXPECT_EQ(first.groups[0].table_stride, 10);
  const GroupView group = first.groups[0];
  const std::int64_t* lengths = first.lengths.data();
  for (int step = 0; step < 40; ++step) {
    if (step == 7) ids.push_back(cache.create());
    if (step == 21) {
      cache.release(ids[1]);
      ids.pop_back();
    }
    cache.reserve(ids[0], 1);
    cache.commit(ids[0], 1);
    const CacheView view = builder.build(context, ids);
    ASSERT_EQ(view.rows, 3);
    ASSERT_EQ(view.groups[0].table_stride, 10);
    ASSERT_EQ(view.groups[0].page_table.data(), group.page_table.data());
    ASSERT_EQ(view.groups[0].page_table.size(), 30U);
    ASSERT_EQ(view.lengths.data(), lengths);
    const auto read = read_bytes(cache.device(), view.lengths.data(), 24);
    std::int64_t values[3];
    std::memcpy(values, read.data(), 24);
    ASSERT_EQ(values[0], step + 1);
    ASSERT_EQ(values[1], 0);
    ASSERT_EQ(values[2], 0);
  }
  cache.reserve(ids[0], 1);
  expect_refusal<InvalidArgument>([&] { builder.build(context, ids); },
                                  "expected at most 40 tokens with those reserved, got 41");
  const std::vector<SequenceId> four(4, cache.create());
  expect_refusal<InvalidArgument>([&] { builder.build(context, four); },
                                  "expected at most 3, the rows of the view, got 4");
  expect_refusal<InvalidArgument>([&] { CacheViewBuilder(cache, {.rows = 0, .tokens = 4}); },
                                  "at least 1 row");
}

}  // namespace
}  // namespace touchstone::inline v0::cache
