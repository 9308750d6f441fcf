// Thousands of damaged files. Nothing but the original is accepted, and a refusal leaves no trace.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "cache/snapshot/snapshot_test_support.h"
#include "tests/support/runners.h"

namespace touchstone::inline v0::cache::test {
namespace {

constexpr std::int64_t kFiles = ::touchstone::test::sanitized_size(100'000, 20'000);

class SnapshotFuzz : public ::testing::Test {
 protected:
  SnapshotFuzz()
      : cache_(make_cache(small_options())), family_(cache_), file_(saved(cache_, family_.ids)) {}

  std::size_t pick(std::size_t count) { return (state_ = mix(state_)) % count; }

  // Refused, with one of our errors, or restored to something consistent. Whether it was restored.
  bool try_restore(std::span<const std::byte> file) {
    const State before(cache_);
    std::vector<SequenceId> ids;
    try {
      ids = restored(cache_, file);
    } catch (const Error&) {
      before.expect_same(cache_);
      return false;
    }
    EXPECT_EQ(state_of(cache_).find_inconsistency(), "");
    for (const SequenceId id : ids) cache_.release(id);
    return true;
  }

  // 1 to 8 bytes overwritten, a piece moved over another, cut short, extended, or a piece removed.
  Bytes damaged() {
    Bytes file = file_;
    const std::size_t at = pick(file.size());
    const std::size_t from = pick(file.size());
    const std::size_t most = std::min(file.size() - at, file.size() - from);
    const std::size_t count = std::min<std::size_t>(1 + pick(64), most);
    switch (pick(6)) {
      case 0:
        file[at] ^= static_cast<std::byte>(1U << pick(8));
        break;
      case 1:
        for (std::size_t i = at; i < std::min(at + 8, file.size()); ++i) {
          file[i] = static_cast<std::byte>(pick(256));
        }
        break;
      case 2:
        std::memmove(&file[at], &file[from], count);
        break;
      case 3:
        file.resize(at);
        break;
      case 4:
        file.insert(file.begin() + static_cast<std::ptrdiff_t>(at), count, std::byte{0});
        break;
      default:
        file.erase(file.begin() + static_cast<std::ptrdiff_t>(at),
                   file.begin() + static_cast<std::ptrdiff_t>(at + count));
    }
    return file;
  }

  // A number of the header, the groups or the sequences becomes one that is likely to hurt.
  Bytes forged() {
    constexpr std::int64_t kNasty[] = {
        0, 1, -1, 2, 3, 7, 16, 0xffffffff, 1LL << 31, 1LL << 32, 1LL << 62, 0x7fffffffffffffff};
    Bytes file = file_;
    const Sections at(file);
    const std::size_t width = pick(3) == 0 ? 8 : 4;
    const std::size_t offset = pick((at.pages - 8) / 4) * 4;
    std::int64_t value = 0;
    std::memcpy(&value, &file[offset], width);
    if (pick(2) == 0) {
      value += static_cast<std::int64_t>(pick(5)) - 2;
    } else {
      value = kNasty[pick(std::size(kNasty))];
    }
    std::memcpy(&file[offset], &value, width);
    Sections::seal(file);
    return file;
  }

  KvCache cache_;
  Family family_;
  Bytes file_;
  std::uint64_t state_ = 4711;
};

TEST_F(SnapshotFuzz, EveryFlippedBitIsRefused) {
  for (std::size_t bit = 0; bit < file_.size() * 8; bit += ::touchstone::test::kSanitized ? 7 : 1) {
    Bytes file = file_;
    file[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    ASSERT_FALSE(try_restore(file)) << "bit " << bit;
  }
}

TEST_F(SnapshotFuzz, EveryCutIsRefused) {
  for (std::size_t size = 0; size < file_.size(); ++size) {
    ASSERT_FALSE(try_restore(std::span(file_).first(size))) << size << " bytes";
  }
  EXPECT_TRUE(try_restore(file_));
}

TEST_F(SnapshotFuzz, RandomDamageIsRefused) {
  for (std::int64_t i = 0; i < kFiles; ++i) {
    const Bytes file = damaged();
    const bool same_beginning =
        file.size() >= file_.size() && std::equal(file_.begin(), file_.end(), file.begin());
    ASSERT_EQ(try_restore(file), same_beginning) << "file " << i;
  }
  Family::expect_at(cache_, family_.ids);
}

// With checksums that are right, only the meaning protects. What is accepted must make sense.
TEST_F(SnapshotFuzz, ForgedNumbersAreRefusedOrHarmless) {
  std::int64_t accepted = 0;
  for (std::int64_t i = 0; i < kFiles; ++i) accepted += try_restore(forged()) ? 1 : 0;
  EXPECT_GT(accepted, 0);           // a length within the last page, a number that stayed the same
  EXPECT_LT(accepted, kFiles / 2);  // and not everything
  Family::expect_at(cache_, family_.ids);
}

// The same through a file, whose size is known: what follows the end is refused too.
TEST_F(SnapshotFuzz, FilesOfAnotherSizeAreRefused) {
  const std::string path = testing::TempDir() + "touchstone_snapshot_fuzz.kv";
  for (int i = 0; i < 500; ++i) {
    const Bytes file = i == 0 ? file_ : damaged();
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(file.data()), std::ssize(file));
    const State before(cache_);
    try {
      for (const SequenceId id : restore(cache_, path)) cache_.release(id);
      ASSERT_EQ(file, file_) << "file " << i;
    } catch (const CorruptData&) {
      ASSERT_NE(file, file_);
      before.expect_same(cache_);
    } catch (const Unsupported&) {
      before.expect_same(cache_);
    }
  }
  std::remove(path.c_str());
}

}  // namespace
}  // namespace touchstone::inline v0::cache::test
