// A shadow model that stores tokens per position predicts every read of the cache through a
// million random operations, at a pool that is full most of the time: sequences grow, keep parts of
// drafts, fork, shrink, are found by prefix, saved, restored, and moved to a second cache and back.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <ostream>
#include <set>
#include <vector>

#include "cache/snapshot/shadow_test_support.h"
#include "cache/snapshot/snapshot_test_support.h"
#include "core/index.h"
#include "tests/support/runners.h"
#include "touchstone/cache/cache_view.h"
#include "touchstone/cache/transfer.h"
#include "touchstone/core/checked.h"

namespace touchstone::inline v0::cache::test {
namespace {

struct Setup {
  TwoGroups sizes{};
  std::int64_t pool_tokens = 0;
};

void PrintTo(const Setup& setup, std::ostream* out) {
  *out << "pages of " << setup.sizes.full_page << " and " << setup.sizes.window_page << " tokens";
}

KvCacheOptions options_of(const Setup& setup) {
  return {.layout = layout_of(setup.sizes),
          .pool_pages = {ceil_div(setup.pool_tokens, setup.sizes.full_page),
                         ceil_div(setup.pool_tokens, setup.sizes.window_page)}};
}

// What insert_prefix was given: the tokens, and the pages that hold them.
struct Inserted {
  std::vector<std::int32_t> tokens{};
  std::array<std::vector<PageHandle>, 2> pages{};
};

// A file, and what must come out of it.
struct Saved {
  Bytes file{};
  std::vector<Shadow> sequences{};
  std::array<std::int64_t, 2> pages{};  // different ones, of each group
};

class Fuzz {
 public:
  Fuzz(const Setup& setup, std::uint64_t seed)
      : cache_(make_cache(options_of(setup))),
        host_(make_cache(options_of(setup))),
        layout_(cache_.layout()),
        builder_(cache_),
        state_(seed) {}

  // After each operation everything is recounted, after every 1000th all content is read.
  void run(std::int64_t operations) {
    for (std::int64_t i = 0; i < operations && !::testing::Test::HasFailure(); ++i) {
      const std::uint64_t host_before = host_.generation();
      step();
      ASSERT_TRUE(state_of(cache_).counters_consistent()) << "operation " << i;
      ASSERT_EQ(state_of(cache_).find_inconsistency(), "") << "operation " << i;
      if (host_.generation() != host_before) {
        ASSERT_TRUE(state_of(host_).counters_consistent()) << "operation " << i;
        ASSERT_EQ(state_of(host_).find_inconsistency(), "") << "operation " << i;
      }
      if (i % 1000 == 0) check_everything(i);
    }
    check_everything(operations);
    while (!live_.empty()) release(0);
    for (const Shadow& shadow : away_) host_.release(shadow.id);
    cache_.evict(1 << 30);
    for (std::int64_t g = 0; g < 2; ++g) {
      EXPECT_EQ(state_of(cache_).pool(g).free_pages(), state_of(cache_).pool(g).capacity());
      EXPECT_EQ(state_of(host_).pool(g).free_pages(), state_of(host_).pool(g).capacity());
    }
    EXPECT_EQ(state_of(cache_).prefixes().entries(), 0);
  }

  void expect_that_each_path_was_taken() const {
    const Statistics statistics = cache_.statistics();
    EXPECT_GT(statistics.groups[0].evicted, 0);
    EXPECT_GT(statistics.groups[0].copied + statistics.groups[1].copied, 0);
    EXPECT_GT(statistics.prefix_hit_tokens, 0);
    EXPECT_GT(statistics.refused_reservations, 0);
    EXPECT_GT(refused_truncations_, 0);
    EXPECT_GT(restored_tokens_, 0);
    EXPECT_GT(refused_restores_, 0);
    EXPECT_GT(tokens_back_, 0);
    EXPECT_GT(refused_moves_, 0);
    EXPECT_GT(refused_drafts_, 0);
    EXPECT_GT(kept_out_of_place_, 0);
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
    if (choice < 38) return append(any(), 1);
    if (choice < 50) return append(any(), pick(0, 40));
    if (choice < 60) return speculate();
    if (choice < 68) return fork(any());
    if (choice < 76) return truncate(any());
    if (choice < 84) return advance(any());
    if (choice < 89) return insert(any());
    if (choice < 92) return lookup();
    if (choice < 93) return evict();
    if (choice < 94) return save_some();
    if (choice < 95) return restore_some();
    if (choice < 97) return pick(0, 1) == 0 ? move_away() : move_back();
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
      EXPECT_EQ(state_of(cache_).sequence(shadow.id).reserved, shadow.reserved);
      read_some(shadow);
      return release(&shadow - live_.data());  // somebody has to go
    }
    shadow.reserved = std::max(shadow.reserved, shadow.length() + tokens);
    const std::int64_t committed = pick(0, 3) == 0 ? pick(0, tokens) : tokens;
    for (std::int64_t i = 0; i < committed; ++i) {
      shadow.push(static_cast<std::int32_t>(pick(0, 20) == 0 ? 1 : 0));
      write_token(cache_, shadow.id, shadow.length() - 1, shadow.history.back());
    }
    cache_.commit(shadow.id, committed);
    read_some(shadow);
  }

  // Drafts for some sequences are reserved at once, all written, and those on accepted paths kept.
  void speculate() {
    std::vector<std::size_t> indices = some(live_);
    std::vector<TokenCount> counts;
    for (const std::size_t index : indices) counts.push_back({live_[index].id, pick(0, 12)});
    const std::int64_t watermark = pick(0, 3) == 0 ? pick(0, 30) : 0;
    const ReserveEstimate estimate = cache_.estimate_reserve(counts, watermark);
    const State before(cache_);
    try {
      cache_.reserve(counts, watermark);
      EXPECT_TRUE(estimate.fits);
    } catch (const OutOfMemory&) {
      EXPECT_FALSE(estimate.fits);
      before.expect_same(cache_);
      ++refused_drafts_;
      return;
    }
    std::vector<std::vector<std::int64_t>> slots;
    std::vector<KeptSlots> kept;
    for (std::size_t i = 0; i < indices.size(); ++i) {
      Shadow& shadow = live_[indices[i]];
      const std::int64_t length = shadow.length();
      shadow.reserved = std::max(shadow.reserved, length + counts[i].tokens);
      slots.emplace_back();
      for (std::int64_t slot = 0; slot < counts[i].tokens; ++slot) {
        std::uint64_t value = mix(state_);  // of a rejected token
        if (pick(0, 2) > 0) {
          shadow.push(0);
          value = shadow.history.back();
          slots.back().push_back(slot);
          kept_out_of_place_ += slot + 1 - std::ssize(slots.back());
        }
        write_token(cache_, shadow.id, length + slot, value);
      }
    }
    for (std::size_t i = 0; i < indices.size(); ++i) kept.push_back({counts[i].id, slots[i]});
    cache_.keep(kept);
    for (const std::size_t index : indices) {
      read_from(live_[index], std::max<std::int64_t>(0, live_[index].length() - 12));
    }
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
    std::erase_if(inserted_, [&](const Inserted& old) {
      return !std::ranges::any_of(old.pages[0], [&](PageHandle p) { return indexed(0, p); }) &&
             !std::ranges::any_of(old.pages[1], [&](PageHandle p) { return indexed(1, p); });
    });
    Inserted now{.tokens = {shadow.tokens.begin(), shadow.tokens.begin() + count}};
    for (std::size_t g = 0; g < 2; ++g)
      now.pages[g] = state_of(cache_).sequence(shadow.id).groups[g].pages;
    forget_duplicates(now);
    inserted_.push_back(std::move(now));
    read_some(shadow);
  }

  // Where the index had another page of the same tokens, it did not take this one.
  void forget_duplicates(Inserted& now) const {
    const PrefixIndex& index = state_of(cache_).prefixes();
    const std::int64_t block_tokens = index.block_tokens();
    std::uint64_t parent = PrefixIndex::root(0);
    for (std::int64_t first = 0; first < std::ssize(now.tokens); first += block_tokens) {
      const std::int64_t count = std::min(block_tokens, std::ssize(now.tokens) - first);
      const auto entry = index.find(parent, std::span(now.tokens).subspan(at(first), at(count)));
      if (entry == PrefixIndex::kNone && count == block_tokens) return;
      for (std::size_t g = 0; g < 2; ++g) {
        const std::int64_t page_tokens = layout_.groups[g].page_tokens;
        for (std::int64_t i = 0; i * page_tokens < count; ++i) {
          PageHandle& page = now.pages[g][at(first / page_tokens + i)];
          const std::int64_t slot = index.first_slot(static_cast<std::int64_t>(g)) + i;
          // Part of a block that is there already makes no entry, and adds nothing to one.
          const PageHandle held =
              entry == PrefixIndex::kNone ? PageHandle{} : index.pages(entry)[at(slot)];
          const auto end = std::min(std::ssize(now.tokens), first + (i + 1) * page_tokens);
          if (!(held == page) && (!held.empty() || !finds(now.tokens, end, g, page))) page = {};
        }
      }
      parent = PrefixIndex::below(entry);
    }
  }

  // Whether the index finds a page by these tokens or more.
  bool finds(const std::vector<std::int32_t>& tokens, std::int64_t count, std::size_t g,
             PageHandle page) const {
    const auto group = static_cast<std::int64_t>(g);
    const PrefixIndex& index = state_of(cache_).prefixes();
    if (page.empty() || !index.holds(group, page.index)) return false;
    const auto prefix = index.prefix_of(group, page.index).tokens;
    return std::ssize(prefix) >= count &&
           std::equal(tokens.begin(), tokens.begin() + count, prefix.begin());
  }

  // Whether the index still has a page that it was given.
  bool indexed(std::size_t g, PageHandle page) const {
    const PagePool& pool = state_of(cache_).pool(static_cast<std::int64_t>(g));
    if (page.empty() || !(pool.handle_at(page.index) == page)) return false;
    return pool.state_at(page.index) != PageState::free && pool.kept(page);
  }

  // [group][page]: how many leading tokens of `wanted` are in an indexed page, counted from 0.
  using Coverage = std::array<std::vector<std::int64_t>, 2>;
  Coverage coverage_of(const std::vector<std::int32_t>& wanted) const {
    Coverage coverage;
    for (std::size_t g = 0; g < 2; ++g) {
      coverage[g].resize(at(ceil_div(std::ssize(wanted), layout_.groups[g].page_tokens)));
    }
    for (const Inserted& old : inserted_) {
      const auto end = std::ranges::mismatch(old.tokens, wanted);
      const std::int64_t common = end.in1 - old.tokens.begin();
      for (std::size_t g = 0; g < 2; ++g) {
        const std::int64_t page_tokens = layout_.groups[g].page_tokens;
        for (std::int64_t i = 0; i * page_tokens < common; ++i) {
          std::int64_t& covered = coverage[g][at(i)];
          const std::int64_t here = std::min(common, (i + 1) * page_tokens);
          if (here > covered && indexed(g, old.pages[g][at(i)])) covered = here;
        }
      }
    }
    return coverage;
  }

  // Whether indexed pages hold every position that the token after the first `tokens` sees.
  bool can_open(const Coverage& coverage, std::int64_t tokens) const {
    for (std::size_t g = 0; g < 2; ++g) {
      const LayerGroup& group = layout_.groups[g];
      const std::int64_t seen =
          group.window == 0 ? 0 : std::max<std::int64_t>(0, tokens + 1 - group.window);
      const std::int64_t sink_pages = ceil_div(group.sinks, group.page_tokens);
      for (std::int64_t i = ceil_div(tokens, group.page_tokens) - 1; i >= 0; --i) {
        const std::int64_t end = std::min(tokens, (i + 1) * group.page_tokens);
        if ((end > seen || i < sink_pages) && coverage[g][at(i)] < end) return false;
      }
    }
    return true;
  }

  void lookup() {
    if (live_.size() >= 16) return;
    Shadow wanted = any();
    wanted.cut(pick(0, wanted.length()));
    for (std::int64_t extra = pick(0, 20); extra > 0; --extra) wanted.push(0);
    const Coverage coverage = coverage_of(wanted.tokens);
    const PrefixHit hit = cache_.open_prefix(wanted.tokens);
    std::int64_t longest = wanted.length();
    while (!can_open(coverage, longest)) --longest;
    ASSERT_GE(hit.tokens, longest);
    wanted.cut(hit.tokens);
    wanted.id = hit.sequence;
    wanted.reserved = hit.tokens;
    wanted.kept_from[1] = 0;
    pass_window(wanted);
    read_from(wanted, 0);
    live_.push_back(std::move(wanted));
  }

  void evict() {
    const std::int64_t wanted = pick(0, 5);
    const Statistics before = cache_.statistics();
    cache_.evict(wanted);
    for (std::int64_t g = 0; g < 2; ++g) {
      EXPECT_EQ(state_of(cache_).pool(g).used_pages(), before.groups[at(g)].used);
      EXPECT_EQ(state_of(cache_).pool(g).cached_pages(),
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

  // Some of the sequences, in random order; their indices in `from`.
  std::vector<std::size_t> some(const std::vector<Shadow>& from) {
    std::vector<std::size_t> indices(from.size());
    for (std::size_t i = 0; i < indices.size(); ++i) {
      indices[i] = i;
      std::swap(indices[i], indices[at(pick(0, static_cast<std::int64_t>(i)))]);
    }
    indices.resize(std::min(indices.size(), at(pick(1, 4))));
    return indices;
  }

  static std::vector<SequenceId> ids_of(const std::vector<Shadow>& shadows) {
    std::vector<SequenceId> ids(shadows.size());
    std::ranges::transform(shadows, ids.begin(), &Shadow::id);
    return ids;
  }

  // Shadows of sequences that are now elsewhere: other ids, nothing reserved.
  static std::vector<Shadow> renamed(std::vector<Shadow> shadows, std::span<const SequenceId> ids) {
    EXPECT_EQ(shadows.size(), ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      shadows[i].id = ids[i];
      shadows[i].reserved = shadows[i].length();
    }
    return shadows;
  }

  std::array<std::int64_t, 2> distinct_pages(const std::vector<Shadow>& shadows) const {
    std::set<std::uint32_t> pages[2];
    for (const Shadow& shadow : shadows) {
      for (std::size_t g = 0; g < 2; ++g) {
        const PageTable& table = state_of(cache_).sequence(shadow.id).groups[g];
        const std::int64_t count = ceil_div(shadow.length(), layout_.groups[g].page_tokens);
        for (std::int64_t i = 0; i < count; ++i) {
          if (!table.pages[at(i)].empty()) pages[g].insert(table.pages[at(i)].index);
        }
      }
    }
    return {std::ssize(pages[0]), std::ssize(pages[1])};
  }

  void save_some() {
    Saved kept;
    for (const std::size_t index : some(live_)) kept.sequences.push_back(live_[index]);
    const std::vector<SequenceId> ids = ids_of(kept.sequences);
    kept.pages = distinct_pages(kept.sequences);
    kept.file = saved(cache_, ids);
    EXPECT_EQ(std::ssize(kept.file), snapshot_bytes(cache_, ids));
    if (saved_.size() < 4) saved_.emplace_back();
    saved_[at(pick(0, std::ssize(saved_) - 1))] = std::move(kept);
  }

  void restore_some() {
    if (saved_.empty()) return;
    const Saved& kept = saved_[at(pick(0, std::ssize(saved_) - 1))];
    if (kept.file.empty() || live_.size() + kept.sequences.size() > 16) return;
    const State before(cache_);
    const bool damage = pick(0, 3) == 0;
    Bytes file = kept.file;
    if (damage) file[at(pick(0, std::ssize(file) - 1))] ^= std::byte{16};
    std::vector<SequenceId> ids;
    try {
      ids = restored(cache_, file);
    } catch (const Error&) {
      before.expect_same(cache_);
      const Statistics& now = before.statistics;
      bool fits = true;
      for (std::size_t g = 0; g < 2; ++g) {
        fits &= kept.pages[g] <= now.groups[g].free + now.groups[g].cached;
      }
      EXPECT_TRUE(damage || !fits);
      ++refused_restores_;
      return;
    }
    ASSERT_FALSE(damage);
    for (std::int64_t g = 0; g < 2; ++g) {  // what was shared is shared
      EXPECT_EQ(state_of(cache_).pool(g).used_pages() - before.statistics.groups[at(g)].used,
                kept.pages[at(g)]);
    }
    for (Shadow& shadow : renamed(kept.sequences, ids)) {
      restored_tokens_ += shadow.length();
      read_some(shadow);
      live_.push_back(std::move(shadow));
    }
  }

  void move_away() { move_some(cache_, live_, host_, away_); }

  void move_back() {
    const std::size_t before = live_.size();
    move_some(host_, away_, cache_, live_);
    for (std::size_t i = before; i < live_.size(); ++i) {
      tokens_back_ += live_[i].length();
      read_some(live_[i]);
    }
  }

  void move_some(KvCache& from, std::vector<Shadow>& shadows, KvCache& to,
                 std::vector<Shadow>& moved) {
    const std::vector<std::size_t> indices = some(shadows);
    if (indices.empty() || moved.size() + indices.size() > 16) return;
    std::vector<Shadow> chosen;
    chosen.reserve(indices.size());
    for (const std::size_t index : indices) chosen.push_back(shadows[index]);
    const State here(from);
    const State there(to);
    std::vector<SequenceId> ids;
    try {
      ids = move_sequences(from, ids_of(chosen), to);
    } catch (const OutOfMemory&) {
      here.expect_same(from);
      there.expect_same(to);
      ++refused_moves_;
      return;
    }
    for (const Shadow& gone : chosen) {
      EXPECT_THROW(from.length(gone.id), InvalidArgument);
      std::erase_if(shadows, [&](const Shadow& shadow) { return shadow.id == gone.id; });
    }
    for (Shadow& shadow : renamed(std::move(chosen), ids)) moved.push_back(std::move(shadow));
  }

  bool readable(const Shadow& shadow, std::int64_t g, std::int64_t position) const {
    const LayerGroup& group = layout_.groups[at(g)];
    const std::int64_t page = position / group.page_tokens;
    return page < ceil_div(group.sinks, group.page_tokens) || page >= shadow.kept_from[g];
  }

  void read(const Shadow& shadow, std::int64_t g, std::int64_t position) const {
    if (!readable(shadow, g, position)) {
      EXPECT_THROW(state_of(cache_).page_at(shadow.id, g, position), InvalidArgument);
      return;
    }
    ASSERT_TRUE(holds_token(cache_, shadow.id, g, position, shadow.history[at(position)]))
        << "group " << g << " position " << position << " of " << shadow.length();
  }

  void read_some(const Shadow& shadow) {
    ASSERT_EQ(cache_.length(shadow.id), shadow.length());
    ASSERT_EQ(state_of(cache_).sequence(shadow.id).reserved, shadow.reserved);
    if (shadow.length() == 0) return;
    for (std::int64_t g = 0; g < 2; ++g) {
      read(shadow, g, shadow.length() - 1);
      read(shadow, g, pick(0, shadow.length() - 1));
    }
  }

  void read_from(const Shadow& shadow, std::int64_t first) const {
    for (std::int64_t g = 0; g < 2; ++g) {
      for (std::int64_t p = first; p < shadow.length(); ++p) read(shadow, g, p);
    }
  }

  void check_everything(std::int64_t operation) {
    ASSERT_EQ(state_of(cache_).find_inconsistency(), "") << "operation " << operation;
    std::vector<SequenceId> ids;
    for (const Shadow& shadow : live_) {
      read_from(shadow, 0);
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
                  state_of(cache_).page_at(shadow.id, g, p).data());
      }
    }
  }

  KvCache cache_;
  KvCache host_;  // the second tier
  const Layout& layout_;
  CacheViewBuilder builder_;
  std::vector<Shadow> live_;
  std::vector<Shadow> away_;  // in the second tier
  std::vector<Inserted> inserted_;
  std::vector<Saved> saved_;
  std::uint64_t state_;
  std::int64_t refused_truncations_ = 0;
  std::int64_t restored_tokens_ = 0;
  std::int64_t refused_restores_ = 0;
  std::int64_t tokens_back_ = 0;
  std::int64_t refused_moves_ = 0;
  std::int64_t refused_drafts_ = 0;
  std::int64_t kept_out_of_place_ = 0;
};

class CacheShadow : public ::testing::TestWithParam<Setup> {};

TEST_P(CacheShadow, PredictsEveryRead) {
  Fuzz fuzz(GetParam(), 20240607);
  fuzz.run(::touchstone::test::sanitized_size(250'000, 20'000));
  fuzz.expect_that_each_path_was_taken();
}

INSTANTIATE_TEST_SUITE_P(
    Pages, CacheShadow,
    ::testing::Values(Setup{{.full_page = 1, .window_page = 8, .window = 20, .sinks = 4}, 600},
                      Setup{{.full_page = 8, .window_page = 1, .window = 7, .sinks = 0}, 600},
                      Setup{{.full_page = 16, .window_page = 16, .window = 33, .sinks = 17}, 1000},
                      Setup{{.full_page = 64, .window_page = 16, .window = 16, .sinks = 1}, 2000}));

}  // namespace
}  // namespace touchstone::inline v0::cache::test
