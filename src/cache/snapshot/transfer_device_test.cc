// Save, restore and move between a cache on the device and one on the host. Tokens are written and
// recognized on the host; on the way they pass through the pages of the device.
#include <gtest/gtest.h>

#include "cache/snapshot/snapshot_test_support.h"
#include "tests/support/refusal.h"
#include "tests/support/runners.h"
#include "touchstone/cache/transfer.h"

namespace touchstone::inline v0::cache::test {
namespace {

using ::touchstone::test::expect_refusal;
using ::touchstone::test::on_gpu;
using ::touchstone::test::test_device;

KvCacheOptions host_options() {
  KvCacheOptions options = small_options();
  options.page_locked = on_gpu();
  return options;
}

class DeviceTransfer : public ::testing::Test {
 protected:
  void expect_consistent() const {
    EXPECT_EQ(state_of(host_).find_inconsistency(), "");
    EXPECT_EQ(state_of(device_).find_inconsistency(), "");
  }

  KvCache host_ = make_cache(host_options());
  KvCache device_ = make_cache(small_options(), test_device());
  Family family_{host_};
};

TEST_F(DeviceTransfer, MovesToTheDeviceAndBack) {
  const Bytes before = saved(host_, family_.ids);
  const std::vector<SequenceId> there = move_sequences(host_, family_.ids, device_);
  EXPECT_EQ(state_of(host_).pool(0).used_pages(), 0);
  const std::vector<SequenceId> back = move_sequences(device_, there, host_);
  EXPECT_EQ(state_of(device_).pool(0).used_pages(), 0);
  Family::expect_at(host_, back);
  EXPECT_EQ(saved(host_, back), before);  // what is shared too
  expect_consistent();
}

TEST_F(DeviceTransfer, MovesBetweenCachesOnTheDevice) {
  KvCache second = make_cache(small_options(), test_device());
  const std::vector<SequenceId> there = copy_sequences(host_, family_.ids, device_);
  const std::vector<SequenceId> on = move_sequences(device_, there, second);
  Family::expect_at(host_, copy_sequences(second, on, host_));
  expect_consistent();
}

TEST_F(DeviceTransfer, CopiesWithoutWaiting) {
  Transfer there = copy_sequences_async(host_, family_.ids, device_);
  Transfer back = copy_sequences_async(device_, there.sequences(), host_);
  // Freed and overwritten on the device by work queued later; what is on its way is not touched.
  const std::vector<SequenceId> on_device = there.sequences();
  there.wait();
  for (const SequenceId id : on_device) device_.release(id);
  back.wait();
  EXPECT_TRUE(back.done());
  Family::expect_at(host_, back.sequences());
  Transfer moved = std::move(back);
  EXPECT_EQ(moved.sequences().size(), family_.ids.size());
  expect_consistent();
}

TEST_F(DeviceTransfer, CopiesWithoutWaitingRefuseAsTheOthers) {
  expect_refusal("copy_sequences_async: to: expected another cache",
                 [&] { copy_sequences_async(host_, family_.ids, host_); });
  expect_consistent();
}

// A page of the device is the same bytes in a file, and those come back through either.
TEST_F(DeviceTransfer, SavesAndRestoresTheSameBytes) {
  const Bytes file = saved(host_, family_.ids);
  const std::vector<SequenceId> there = copy_sequences(host_, family_.ids, device_);
  EXPECT_EQ(saved(device_, there), file);
  const std::vector<SequenceId> again = restored(device_, file);
  EXPECT_EQ(saved(device_, again), file);
  Family::expect_at(host_, restored(host_, saved(device_, again)));
  Family::expect_at(host_, move_sequences(device_, again, host_));
  expect_consistent();
}

// Pages that need an eviction wait on the host.
TEST_F(DeviceTransfer, RestoresIntoPagesThatWereCached) {
  KvCacheOptions options = small_options();
  options.pool_pages = {10, 15};
  KvCache tight = make_cache(options, test_device());
  const SequenceId old = tight.create();
  tight.reserve(old, 20);
  tight.commit(old, 20);
  tight.insert_prefix(old, std::vector<std::int32_t>(20, 7));
  tight.release(old);
  const Bytes file = saved(host_, family_.ids);
  const std::vector<SequenceId> there = restored(tight, file);
  EXPECT_GT(tight.statistics().groups[0].evicted, 0);
  EXPECT_EQ(saved(tight, there), file);
  Family::expect_at(host_, move_sequences(tight, there, host_));
  EXPECT_EQ(state_of(tight).find_inconsistency(), "");
}

// A copy on write is queued; whoever reads the page afterwards reads the copy.
TEST_F(DeviceTransfer, FollowsACopyOnWrite) {
  const std::vector<SequenceId> there = copy_sequences(host_, family_.ids, device_);
  const SequenceId child = device_.fork(there[2]);
  device_.reserve(child, 1);
  EXPECT_GT(device_.statistics().groups[0].copied, 0);
  const std::vector<SequenceId> back = copy_sequences(device_, {&child, 1}, host_);
  EXPECT_EQ(host_.length(back[0]), 14);
  expect_tokens(host_, back[0], 0, 13, 1000);
  expect_tokens(host_, back[0], 13, 14, 3000);
  expect_consistent();
}

TEST_F(DeviceTransfer, ADamagedFileChangesNothing) {
  Bytes file = saved(host_, family_.ids);
  file[Sections(file).pages + 20] ^= std::byte{1};
  const State before(device_);
  EXPECT_THROW(restored(device_, file), CorruptData);
  before.expect_same(device_);
}

TEST(DeviceCache, HasNoPageLockedPages) {
  KvCacheOptions options = small_options();
  options.page_locked = true;
  expect_refusal("kv_cache: page_locked: expected a device of cpu, got cuda:0",
                 [&] { CacheState(Device::cuda(0), nullptr, options); });
}

}  // namespace
}  // namespace touchstone::inline v0::cache::test
