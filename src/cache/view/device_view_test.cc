// Views with arrays on a device: the same numbers as those on the host, whatever changed between.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "cache/cache_test_device.h"
#include "tests/support/random.h"
#include "tests/support/refusal.h"
#include "tests/support/runners.h"
#include "touchstone/cache/cache_view.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::cache {
namespace {

template <class T>
std::vector<T> on_host(Device device, std::span<const T> values) {
  const std::vector<std::byte> bytes = read_bytes(device, values.data(), values.size_bytes());
  std::vector<T> result(values.size());
  std::memcpy(result.data(), bytes.data(), bytes.size());
  return result;
}

template <class T>
std::vector<T> copy_of(std::span<const T> values) {
  return {values.begin(), values.end()};
}

// Of each row, without the empty slots at its end: a table that was wider once stays so.
std::vector<std::vector<std::int32_t>> pages_of(const std::vector<std::int32_t>& table,
                                                std::int64_t rows) {
  std::vector<std::vector<std::int32_t>> result;
  const std::int64_t stride = rows == 0 ? 0 : std::ssize(table) / rows;
  for (std::int64_t r = 0; r < rows; ++r) {
    auto& pages = result.emplace_back(table.begin() + r * stride, table.begin() + (r + 1) * stride);
    while (!pages.empty() && pages.back() == -1) pages.pop_back();
  }
  return result;
}

void expect_same(const CacheView& actual, const CacheView& expected) {
  const Device device = actual.device;
  ASSERT_EQ(device, ::touchstone::test::test_device());
  ASSERT_EQ(actual.generation, expected.generation);
  ASSERT_EQ(actual.rows, expected.rows);
  ASSERT_EQ(on_host(device, actual.lengths), copy_of(expected.lengths));
  ASSERT_EQ(on_host(device, actual.reserved), copy_of(expected.reserved));
  ASSERT_EQ(actual.groups.size(), expected.groups.size());
  for (std::size_t g = 0; g < actual.groups.size(); ++g) {
    const GroupView& a = actual.groups[g];
    const GroupView& b = expected.groups[g];
    ASSERT_EQ(std::ssize(a.page_table), a.table_stride * actual.rows);
    ASSERT_EQ(a.memory, b.memory);
    ASSERT_EQ(a.pages, b.pages);
    ASSERT_EQ(a.layer_group, b.layer_group);
    ASSERT_EQ(pages_of(on_host(device, a.page_table), actual.rows),
              pages_of(copy_of(b.page_table), actual.rows));
    ASSERT_EQ(on_host(device, a.first_positions), copy_of(b.first_positions));
    ASSERT_EQ(on_host(device, a.last_page_fill), copy_of(b.last_page_fill));
  }
}

class DeviceView : public ::testing::Test {
 protected:
  static KvCacheOptions options() {
    const LayerGroup full{.layers = 1, .kv_heads = 1, .k_dim = 8, .v_dim = 8, .page_tokens = 4};
    LayerGroup windowed = full;
    windowed.page_tokens = 2;
    windowed.window = 6;
    return {.layout = {{full, windowed}}, .pool_pages = {4000, 4000}};
  }
  void grow(SequenceId id, std::int64_t tokens) {
    cache_.reserve(id, tokens);
    cache_.commit(id, tokens);
  }

  KvCache cache_ = make_cache(options(), ::touchstone::test::test_device());
  CacheViewBuilder builder_{cache_};
  Context context_{{.device = ::touchstone::test::test_device()}};
  std::vector<SequenceId> ids_;
};

TEST_F(DeviceView, EqualsTheHostsAfterEveryStep) {
  const ::touchstone::test::Random random(21);
  for (int i = 0; i < 3; ++i) ids_.push_back(cache_.create());
  for (int step = 0; step < 600; ++step) {
    const std::uint64_t draw = random.bits(step);
    SequenceId& id = ids_[draw % ids_.size()];
    switch (draw / 64 % 12) {
      case 0:
        if (ids_.size() < 40) ids_.push_back(cache_.fork(id));
        break;
      case 1:
        if (ids_.size() < 2) break;
        cache_.release(id);
        std::swap(id, ids_.back());
        ids_.pop_back();
        break;
      case 2:
        cache_.release(id);
        id = cache_.create();
        break;
      case 3:
        cache_.advance_window(id);
        break;
      case 4:
        cache_.reserve(id, 3);
        break;
      case 5:
        grow(id, 37);
        break;
      case 6:
        grow(id, 5);
        builder_.build(ids_);  // a view that the device never gets
        break;
      case 7:
        std::swap(ids_.front(), ids_.back());
        break;
      default:
        grow(id, 1);
    }
    // A builder of its own has nothing to remember wrongly.
    CacheViewBuilder fresh(cache_);
    expect_same(builder_.build(context_, ids_), fresh.build(ids_));
    if (HasFatalFailure()) FAIL() << "step " << step;
  }
}

TEST_F(DeviceView, NoRows) {
  const CacheView& view = builder_.build(context_, {});
  EXPECT_EQ(view.rows, 0);
  EXPECT_TRUE(view.groups[0].page_table.empty());
}

// What a captured graph holds on to.
TEST_F(DeviceView, AddressesStayWhileNothingOutgrowsThem) {
  for (int i = 0; i < 4; ++i) {
    ids_.push_back(cache_.create());
    grow(ids_.back(), 1);
  }
  const CacheView before = builder_.build(context_, ids_);
  const std::vector<GroupView> groups(before.groups.begin(), before.groups.end());
  for (int step = 0; step < 12; ++step) {
    for (const SequenceId id : ids_) grow(id, 1);
    const CacheView& view = builder_.build(context_, ids_);
    EXPECT_EQ(view.lengths.data(), before.lengths.data());
    EXPECT_EQ(view.groups[0].page_table.data(), groups[0].page_table.data());
  }
}

TEST_F(DeviceView, RefusesAContextElsewhere) {
  if (!::touchstone::test::on_gpu()) GTEST_SKIP() << "needs a cache on CUDA";
  Context elsewhere;
  ::touchstone::test::expect_refusal("cache_view: context: expected one on cuda:0, got cpu",
                                     [&] { builder_.build(elsewhere, ids_); });
}

TEST(KvCacheDevice, RefusesADeviceThatIsNotThere) {
  KvCacheOptions options{
      .layout = {{{.layers = 1, .kv_heads = 1, .k_dim = 8, .v_dim = 8, .page_tokens = 4}}},
      .pool_pages = {1}};
  EXPECT_THROW(make_cache(options, Device::cuda(1000)), Error);
}

}  // namespace
}  // namespace touchstone::inline v0::cache
