// A shadow model that stores tokens per position predicts every read of the cache through a
// million random operations, at a pool that is full most of the time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <ostream>
#include <vector>

#include "touchstone/cache/cache_view.h"
#include "touchstone/cache/kv_cache.h"
#include "touchstone/core/checked.h"
#include "touchstone/core/error.h"

namespace touchstone::cache {
namespace {

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

std::uint64_t mix(std::uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

struct Setup {
  std::int64_t full_page = 0;
  std::int64_t window_page = 0;
  std::int64_t window = 0;
  std::int64_t sinks = 0;
  std::int64_t pool_tokens = 0;
};

void PrintTo(const Setup& setup, std::ostream* out) {
  *out << "pages of " << setup.full_page << " and " << setup.window_page << " tokens";
}

Layout layout_of(const Setup& setup) {
  const Format int8{.encoding = Encoding::int8};
  const LayerGroup full{.layers = 1,
                        .kv_heads = 2,
                        .k_dim = 2,
                        .v_dim = 3,
                        .k = int8,
                        .page_tokens = setup.full_page};
  const LayerGroup latent{.layers = 2,
                          .kv_heads = 1,
                          .k_dim = 4,
                          .v_dim = 2,
                          .k = int8,
                          .page_tokens = setup.window_page,
                          .window = setup.window,
                          .sinks = setup.sinks,
                          .k_is_v = true};
  return {{full, latent}};
}

// A sequence as it should be: what each position holds follows from the tokens up to it.
struct Shadow {
  SequenceId id{};
  std::vector<std::int32_t> tokens{};
  std::vector<std::uint64_t> history{};
  std::int64_t reserved = 0;
  std::int64_t kept_from[2] = {};  // first page after the sinks that the window has not passed

  std::int64_t length() const { return std::ssize(tokens); }
  void push(std::int32_t token) {
    const std::uint64_t before = history.empty() ? 1 : history.back();
    tokens.push_back(token);
    history.push_back(mix(before ^ mix(static_cast<std::uint64_t>(token))));
  }
  void cut(std::int64_t length) {
    tokens.resize(at(length));
    history.resize(at(length));
  }
};

class Fuzz {
 public:
  Fuzz(const Setup& setup, std::uint64_t seed)
      : layout_(layout_of(setup)),
        cache_({.layout = layout_,
                .pool_pages = {ceil_div(setup.pool_tokens, setup.full_page),
                               ceil_div(setup.pool_tokens, setup.window_page)}}),
        builder_(cache_),
        state_(seed) {}

  void run(std::int64_t operations) {
    for (std::int64_t i = 0; i < operations && !::testing::Test::HasFailure(); ++i) {
      step();
      ASSERT_TRUE(cache_.counters_consistent()) << "operation " << i;
      // A full recount after each operation for a while, and all content now and then: after each
      // it would take an hour.
      if (i < 5000) {
        ASSERT_EQ(cache_.find_inconsistency(), "") << "operation " << i;
      }
      if (i % 1000 == 0) check_everything(i);
    }
    check_everything(operations);
    while (!live_.empty()) release(0);
    cache_.evict(1 << 30);
    for (std::int64_t g = 0; g < 2; ++g) {
      EXPECT_EQ(cache_.pool(g).free_pages(), cache_.pool(g).capacity());
    }
    EXPECT_EQ(cache_.prefixes().entries(), 0);
    const Statistics statistics = cache_.statistics();  // each path was taken
    EXPECT_GT(statistics.groups[0].evicted, 0);
    EXPECT_GT(statistics.groups[0].copied + statistics.groups[1].copied, 0);
    EXPECT_GT(statistics.prefix_hit_tokens, 0);
    EXPECT_GT(statistics.refused_reservations, 0);
    EXPECT_GT(refused_truncations_, 0);
  }

 private:
  std::int64_t pick(std::int64_t low, std::int64_t high) {
    state_ = mix(state_);
    return low + static_cast<std::int64_t>(state_ % static_cast<std::uint64_t>(high - low + 1));
  }
  Shadow& any() { return live_[at(pick(0, std::ssize(live_) - 1))]; }

  void step() {
    if (live_.empty() || (live_.size() < 4 && pick(0, 9) == 0)) {
      live_.push_back({.id = cache_.create()});
      return;
    }
    const std::int64_t choice = pick(0, 99);
    if (choice < 45) return append(any(), 1);
    if (choice < 60) return append(any(), pick(0, 40));
    if (choice < 68) return fork(any());
    if (choice < 76) return truncate(any());
    if (choice < 84) return advance(any());
    if (choice < 89) return insert(any());
    if (choice < 94) return lookup();
    if (choice < 95) return evict();
    release(pick(0, std::ssize(live_) - 1));
  }

  void append(Shadow& shadow, std::int64_t tokens) {
    const Statistics before = cache_.statistics();
    try {
      cache_.reserve(shadow.id, tokens);
    } catch (const OutOfMemory&) {
      const Statistics after = cache_.statistics();
      for (std::size_t g = 0; g < 2; ++g) {
        EXPECT_EQ(after.groups[g].free, before.groups[g].free);
        EXPECT_EQ(after.groups[g].cached, before.groups[g].cached);
      }
      EXPECT_EQ(cache_.sequence(shadow.id).reserved, shadow.reserved);
      read_some(shadow);
      return release(&shadow - live_.data());  // somebody has to go
    }
    shadow.reserved = std::max(shadow.reserved, shadow.length() + tokens);
    const std::int64_t committed = pick(0, 3) == 0 ? pick(0, tokens) : tokens;
    for (std::int64_t i = 0; i < committed; ++i) {
      shadow.push(static_cast<std::int32_t>(pick(0, 20) == 0 ? 1 : 0));
      write(shadow, shadow.length() - 1);
    }
    cache_.commit(shadow.id, committed);
    read_some(shadow);
  }

  void fork(Shadow& shadow) {
    if (live_.size() >= 16) return;
    shadow.reserved = shadow.length();
    Shadow child = shadow;
    child.id = cache_.fork(shadow.id);
    live_.push_back(std::move(child));
    read_some(live_.back());
  }

  // Whether the next token after `length` would find every position that it sees.
  bool can_truncate(const Shadow& shadow, std::int64_t length) const {
    for (std::int64_t g = 0; g < 2; ++g) {
      const std::int64_t window = layout_.groups[at(g)].window;
      const std::int64_t first = window == 0 ? 0 : std::max<std::int64_t>(0, length + 1 - window);
      for (std::int64_t p = first; p < length; ++p) {
        if (!readable(shadow, g, p)) return false;
      }
    }
    return true;
  }

  void truncate(Shadow& shadow) {
    const std::int64_t back = pick(0, 1) == 0 ? pick(0, 3) : pick(0, shadow.length());
    const std::int64_t length = std::max<std::int64_t>(shadow.length() - back, 0);
    if (can_truncate(shadow, length)) {
      cache_.truncate(shadow.id, length);
      shadow.cut(length);
      shadow.reserved = length;
      for (std::size_t g = 0; g < 2; ++g) {
        const std::int64_t pages = ceil_div(length, layout_.groups[g].page_tokens);
        if (shadow.kept_from[g] > pages) shadow.kept_from[g] = 0;
      }
    } else {
      EXPECT_THROW(cache_.truncate(shadow.id, length), InvalidArgument);
      ++refused_truncations_;
    }
    read_some(shadow);
  }

  void advance(Shadow& shadow) {
    cache_.advance_window(shadow.id);
    pass_window(shadow);
    read_some(shadow);
  }

  void pass_window(Shadow& shadow) {
    const LayerGroup& group = layout_.groups[1];
    const std::int64_t first = std::max<std::int64_t>(0, shadow.length() + 1 - group.window);
    shadow.kept_from[1] = std::max(shadow.kept_from[1], first / group.page_tokens);
  }

  void insert(Shadow& shadow) {
    const std::int64_t count = pick(0, 1) == 0 ? shadow.length() : pick(0, shadow.length());
    cache_.insert_prefix(shadow.id, std::span(shadow.tokens).first(at(count)));
    shadow.reserved = shadow.length();
    read_some(shadow);
  }

  void lookup() {
    if (live_.size() >= 16) return;
    Shadow wanted = any();
    wanted.cut(pick(0, wanted.length()));
    for (std::int64_t extra = pick(0, 20); extra > 0; --extra) wanted.push(0);
    const PrefixHit hit = cache_.open_prefix(wanted.tokens);
    ASSERT_LE(hit.tokens, wanted.length());
    wanted.cut(hit.tokens);
    wanted.id = hit.sequence;
    wanted.reserved = hit.tokens;
    wanted.kept_from[1] = 0;
    pass_window(wanted);
    read_all(wanted);
    live_.push_back(std::move(wanted));
  }

  void evict() {
    const std::int64_t wanted = pick(0, 5);
    const Statistics before = cache_.statistics();
    cache_.evict(wanted);
    for (std::int64_t g = 0; g < 2; ++g) {
      EXPECT_EQ(cache_.pool(g).used_pages(), before.groups[at(g)].used);
      EXPECT_EQ(cache_.pool(g).cached_pages(),
                std::max<std::int64_t>(before.groups[at(g)].cached - wanted, 0));
    }
  }

  void release(std::int64_t index) {
    const SequenceId id = live_[at(index)].id;
    cache_.release(id);
    EXPECT_THROW(cache_.release(id), InvalidArgument);
    live_[at(index)] = std::move(live_.back());
    live_.pop_back();
  }

  bool readable(const Shadow& shadow, std::int64_t g, std::int64_t position) const {
    const LayerGroup& group = layout_.groups[at(g)];
    const std::int64_t page = position / group.page_tokens;
    return page < ceil_div(group.sinks, group.page_tokens) || page >= shadow.kept_from[g];
  }

  // Calls visit(offset, bytes, expected) for each vector and its scales of one token in a page.
  template <class Visit>
  void each_piece(std::int64_t g, std::int64_t position, std::uint64_t history, Visit visit) const {
    const LayerGroup& group = layout_.groups[at(g)];
    const PageGeometry& geometry = cache_.geometry(g);
    for (std::int64_t layer = 0; layer < group.layers; ++layer) {
      for (std::int64_t head = 0; head < group.kv_heads; ++head) {
        const TokenOffsets offsets =
            token_offsets(group, geometry, layer, head, position % group.page_tokens);
        const std::uint64_t word =
            mix(history + static_cast<std::uint64_t>(g * 64 + layer * 8 + head));
        visit(offsets.k_values, value_bytes(group.k, group.k_dim), word);
        visit(offsets.k_scales, scale_bytes(group.k, group.k_dim), word >> 32);
        if (group.k_is_v) continue;
        visit(offsets.v_values, value_bytes(group.v, group.v_dim), ~word);
      }
    }
  }

  void write(const Shadow& shadow, std::int64_t position) {
    for (std::int64_t g = 0; g < 2; ++g) {
      const std::span<std::byte> page = cache_.writable_page_at(shadow.id, g, position);
      each_piece(g, position, shadow.history[at(position)],
                 [&](std::int64_t offset, std::int64_t bytes, std::uint64_t word) {
                   std::memcpy(page.subspan(at(offset), at(bytes)).data(), &word, at(bytes));
                 });
    }
  }

  void read(const Shadow& shadow, std::int64_t g, std::int64_t position) const {
    if (!readable(shadow, g, position)) {
      EXPECT_THROW(cache_.page_at(shadow.id, g, position), InvalidArgument);
      return;
    }
    const std::span<const std::byte> page = cache_.page_at(shadow.id, g, position);
    bool same = true;
    each_piece(g, position, shadow.history[at(position)],
               [&](std::int64_t offset, std::int64_t bytes, std::uint64_t word) {
                 same &=
                     std::memcmp(page.subspan(at(offset), at(bytes)).data(), &word, at(bytes)) == 0;
               });
    ASSERT_TRUE(same) << "group " << g << " position " << position << " of " << shadow.length();
  }

  void read_some(const Shadow& shadow) {
    ASSERT_EQ(cache_.length(shadow.id), shadow.length());
    ASSERT_EQ(cache_.sequence(shadow.id).reserved, shadow.reserved);
    if (shadow.length() == 0) return;
    for (std::int64_t g = 0; g < 2; ++g) {
      read(shadow, g, shadow.length() - 1);
      read(shadow, g, pick(0, shadow.length() - 1));
    }
  }

  void read_all(const Shadow& shadow) const {
    for (std::int64_t g = 0; g < 2; ++g) {
      for (std::int64_t p = 0; p < shadow.length(); ++p) read(shadow, g, p);
    }
  }

  void check_everything(std::int64_t operation) {
    ASSERT_EQ(cache_.find_inconsistency(), "") << "operation " << operation;
    std::vector<SequenceId> ids;
    for (const Shadow& shadow : live_) {
      read_all(shadow);
      ids.push_back(shadow.id);
    }
    const CacheView& view = builder_.build(ids);
    for (std::int64_t r = 0; r < view.rows; ++r) check_row(view, r, live_[at(r)]);
  }

  // A view that was updated in steps shows the same pages as the sequence itself.
  void check_row(const CacheView& view, std::int64_t r, const Shadow& shadow) {
    ASSERT_EQ(view.lengths[at(r)], shadow.length());
    for (std::int64_t g = 0; g < 2; ++g) {
      const GroupView& group = view.groups[at(g)];
      for (std::int64_t p = 0; p < shadow.length(); ++p) {
        const std::int32_t page =
            group.page_table[at(r * group.table_stride + p / group.page_tokens)];
        ASSERT_EQ(page >= 0, readable(shadow, g, p));
        if (page < 0) continue;
        ASSERT_EQ(group.memory + page * group.geometry.page_bytes,
                  cache_.page_at(shadow.id, g, p).data());
      }
    }
  }

  Layout layout_;
  KvCache cache_;
  CacheViewBuilder builder_;
  std::vector<Shadow> live_;
  std::uint64_t state_;
  std::int64_t refused_truncations_ = 0;
};

class CacheShadow : public ::testing::TestWithParam<Setup> {};

TEST_P(CacheShadow, PredictsEveryRead) { Fuzz(GetParam(), 20240607).run(250'000); }

INSTANTIATE_TEST_SUITE_P(
    Pages, CacheShadow,
    ::testing::Values(
        Setup{.full_page = 1, .window_page = 8, .window = 20, .sinks = 4, .pool_tokens = 600},
        Setup{.full_page = 8, .window_page = 1, .window = 7, .sinks = 0, .pool_tokens = 600},
        Setup{.full_page = 16, .window_page = 16, .window = 33, .sinks = 17, .pool_tokens = 1000},
        Setup{.full_page = 64, .window_page = 16, .window = 16, .sinks = 1, .pool_tokens = 2000}));

}  // namespace
}  // namespace touchstone::cache
