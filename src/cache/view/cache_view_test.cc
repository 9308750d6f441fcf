#include "touchstone/cache/cache_view.h"

#include <gtest/gtest.h>

#include <vector>

#include "cache/cache_test_device.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::cache {
namespace {

using Ranges = std::vector<ChangedRange>;

Ranges copy_of(std::span<const ChangedRange> ranges) { return {ranges.begin(), ranges.end()}; }

void append(KvCache& cache, SequenceId id, std::int64_t tokens) {
  cache.reserve(id, tokens);
  cache.commit(id, tokens);
}

class CacheViewTest : public ::testing::Test {
 protected:
  CacheViewTest()
      : cache_(make_cache({.layout = layout(), .pool_pages = {64, 64}})), builder_(cache_) {
    for (int i = 0; i < 3; ++i) ids_.push_back(cache_.create());
    for (const SequenceId id : ids_) append(cache_, id, 15);
  }
  static Layout layout() {
    LayerGroup full{.layers = 1, .kv_heads = 1, .k_dim = 8, .v_dim = 8, .page_tokens = 8};
    LayerGroup windowed = full;
    windowed.window = 8;
    return {{full, windowed}};
  }

  KvCache cache_;
  CacheViewBuilder builder_;
  std::vector<SequenceId> ids_;
};

TEST_F(CacheViewTest, ShowsPagesLengthsAndFill) {
  const CacheView& view = builder_.build(ids_);
  ASSERT_EQ(view.rows, 3);
  const GroupView& group = view.groups[0];
  EXPECT_EQ(view.lengths[1], 15);
  EXPECT_EQ(group.last_page_fill[1], 7);
  EXPECT_EQ(group.page_tokens, 8);
  for (std::size_t p = 0; p < 2; ++p) {
    const auto expected = state_of(cache_).sequence(ids_[1]).groups[0].pages[p].index;
    EXPECT_EQ(group.page_table[static_cast<std::size_t>(group.table_stride) + p],
              static_cast<std::int32_t>(expected));
  }
  EXPECT_EQ(group.page_table[2], -1);
  // The first view is new from end to end.
  EXPECT_EQ(copy_of(view.changed_rows), (Ranges{{0, 3}}));
  EXPECT_EQ(copy_of(group.changed_table), (Ranges{{0, 3 * group.table_stride}}));
}

TEST_F(CacheViewTest, NamesOnlyWhatChanged) {
  builder_.build(ids_);
  EXPECT_TRUE(builder_.build(ids_).changed_rows.empty());
  append(cache_, ids_[1], 1);  // fills its page
  const CacheView& view = builder_.build(ids_);
  EXPECT_EQ(copy_of(view.changed_rows), (Ranges{{1, 2}}));
  EXPECT_TRUE(view.groups[0].changed_table.empty());
  EXPECT_EQ(view.groups[0].last_page_fill[1], 8);
  append(cache_, ids_[1], 1);  // begins a page
  builder_.build(ids_);
  const std::int64_t stride = view.groups[0].table_stride;
  EXPECT_EQ(copy_of(view.groups[0].changed_table), (Ranges{{stride + 2, stride + 3}}));
  cache_.advance_window(ids_[1]);  // 17 tokens: the next sees from position 10 on
  builder_.build(ids_);
  EXPECT_TRUE(view.groups[0].changed_table.empty());
  EXPECT_EQ(copy_of(view.groups[1].changed_table), (Ranges{{stride, stride + 1}}));
  EXPECT_EQ(view.groups[1].first_positions[1], 8);
  EXPECT_EQ(view.groups[1].page_table[static_cast<std::size_t>(stride)], -1);
}

TEST_F(CacheViewTest, FollowsForksTruncationAndOtherRows) {
  const SequenceId child = cache_.fork(ids_[0]);
  const SequenceId rows[] = {ids_[0], child};
  const CacheView& view = builder_.build(rows);
  const auto stride = static_cast<std::size_t>(view.groups[0].table_stride);
  EXPECT_EQ(view.groups[0].page_table[1], view.groups[0].page_table[stride + 1]);
  append(cache_, child, 1);  // copies the shared page
  builder_.build(rows);
  EXPECT_NE(view.groups[0].page_table[1], view.groups[0].page_table[stride + 1]);
  EXPECT_EQ(
      copy_of(view.groups[0].changed_table),
      (Ranges{{static_cast<std::int64_t>(stride) + 1, static_cast<std::int64_t>(stride) + 2}}));
  cache_.truncate(child, 3);
  builder_.build(rows);
  EXPECT_EQ(view.groups[0].page_table[stride + 1], -1);
  EXPECT_EQ(view.lengths[1], 3);
  // More pages than the table is wide: it is laid out anew, and all of it counts as changed.
  append(cache_, ids_[0], 100);
  builder_.build(rows);
  EXPECT_EQ(view.groups[0].table_stride, 16);
  EXPECT_EQ(copy_of(view.groups[0].changed_table), (Ranges{{0, 32}}));
}

TEST_F(CacheViewTest, KnowsWhenItIsStaleAndRefusesReleasedSequences) {
  const CacheView& view = builder_.build(ids_);
  EXPECT_TRUE(builder_.is_current(view));
  cache_.release(ids_[2]);
  EXPECT_FALSE(builder_.is_current(view));
  EXPECT_THROW(builder_.build(ids_), InvalidArgument);
  EXPECT_EQ(view.rows, 3);
  ids_.pop_back();
  EXPECT_EQ(builder_.build(ids_).rows, 2);
  EXPECT_EQ(builder_.build({}).rows, 0);
}

}  // namespace
}  // namespace touchstone::inline v0::cache
