#include "touchstone/cache/snapshot.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <string>

#include "cache/snapshot/snapshot_test_support.h"
#include "tests/support/refusal.h"

namespace touchstone::inline v0::cache::test {
namespace {

namespace fs = std::filesystem;

// An empty directory that goes away.
class Directory {
 public:
  Directory() : path_(fs::path(testing::TempDir()) / "touchstone_snapshot_test") {
    fs::remove_all(path_);
    fs::create_directory(path_);
  }
  ~Directory() { fs::remove_all(path_); }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  fs::path operator/(const char* name) const { return path_ / name; }
  std::ptrdiff_t files() const {
    return std::distance(fs::directory_iterator(path_), fs::directory_iterator());
  }

 private:
  fs::path path_;
};

template <class Kind>
void expect_refused(KvCache& cache, std::span<const std::byte> file, const std::string& message) {
  const State before(cache);
  try {
    restored(cache, file);
    ADD_FAILURE() << "restored; expected '" << message << "'";
  } catch (const Kind& error) {
    EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
  }
  before.expect_same(cache);
}

TEST(Snapshot, BringsSequencesBackSharingIncluded) {
  const Directory directory;
  KvCache cache = make_cache(small_options());
  const Family family(cache);
  save(cache, family.ids, directory / "family.kv");
  EXPECT_EQ(directory.files(), 1);
  EXPECT_EQ(static_cast<std::int64_t>(fs::file_size(directory / "family.kv")),
            snapshot_bytes(cache, family.ids));

  KvCache other = make_cache(small_options());
  const std::vector<SequenceId> ids = restore(other, directory / "family.kv");
  EXPECT_EQ(state_of(other).find_inconsistency(), "");
  Family::expect_at(other, ids);
  // As many pages as before, but for those that were only reserved.
  cache.truncate(family.ids[1], 18);
  for (std::int64_t g = 0; g < 2; ++g) {
    EXPECT_EQ(state_of(other).pool(g).used_pages(), state_of(cache).pool(g).used_pages())
        << "group " << g;
  }
  // They live on: a shared page is copied when one of them writes.
  append(other, ids[2], 3, 5000);
  append(other, ids[0], 1, 6000);
  other.release(ids[1]);
  expect_tokens(other, ids[2], 13, 14, 3000);
  expect_tokens(other, ids[2], 14, 17, 5000);
  EXPECT_EQ(state_of(other).find_inconsistency(), "");
  // And into the cache they came from, beside the originals.
  Family::expect_at(cache, restore(cache, directory / "family.kv"));
  Family::expect_at(cache, family.ids);
  EXPECT_EQ(state_of(cache).find_inconsistency(), "");
}

TEST(Snapshot, OfRestoredIsTheSameFile) {
  KvCache cache = make_cache(small_options());
  const Family family(cache);
  const Bytes file = saved(cache, family.ids);
  KvCache other = make_cache(small_options());
  EXPECT_EQ(saved(other, restored(other, file)), file);
}

// Snapshots can stand one after the other, in a stream with other things.
TEST(Snapshot, IsReadToItsEndAndNoFurther) {
  KvCache cache = make_cache(small_options());
  const Family family(cache);
  const Bytes one = saved(cache, {family.ids.data(), 1});
  Bytes stream = saved(cache, family.ids);
  stream.insert(stream.end(), one.begin(), one.end());
  std::span<const std::byte> rest = stream;
  const ByteSource source = [&](std::span<std::byte> wanted) {
    ASSERT_LE(wanted.size(), rest.size());
    std::copy_n(rest.begin(), wanted.size(), wanted.begin());
    rest = rest.subspan(wanted.size());
  };
  KvCache other = make_cache(small_options());
  Family::expect_at(other, restore(other, source));
  EXPECT_EQ(rest.size(), one.size());
  EXPECT_EQ(restore(other, source).size(), 1U);
  EXPECT_TRUE(rest.empty());
}

// Pages far larger than any buffer, most of them read straight to their place.
TEST(Snapshot, OfLargePages) {
  const KvCacheOptions options{
      .layout = {{{.layers = 3, .kv_heads = 4, .k_dim = 128, .v_dim = 128, .page_tokens = 128}}},
      .pool_pages = {5}};
  KvCache cache = make_cache(options);
  std::uint64_t word = 1;
  for (std::uint64_t& value :
       std::span(reinterpret_cast<std::uint64_t*>(state_of(cache).memory_data(0)),
                 static_cast<std::size_t>(state_of(cache).memory(0).bytes() / 8))) {
    value = word = mix(word);
  }
  const SequenceId id = cache.create();
  cache.reserve(id, 5 * 128 - 3);
  cache.commit(id, 5 * 128 - 3);
  const Bytes file = saved(cache, {&id, 1});
  EXPECT_EQ(std::ssize(file), snapshot_bytes(cache, {&id, 1}));
  KvCache other = make_cache(options);
  const SequenceId copy = restored(other, file).at(0);
  for (std::int64_t p = 0; p < 4 * 128; p += 128) {
    EXPECT_TRUE(
        std::ranges::equal(state_of(other).page_at(copy, 0, p), state_of(cache).page_at(id, 0, p)));
  }
  const TokenOffsets last =
      token_offsets(options.layout.groups[0], state_of(cache).geometry(0), 2, 3, 124);
  const auto offset = static_cast<std::size_t>(last.v_values);
  const auto here = state_of(other).page_at(copy, 0, 5 * 128 - 4).subspan(offset);
  EXPECT_TRUE(std::ranges::equal(here.first(256),
                                 state_of(cache).page_at(id, 0, 5 * 128 - 4).subspan(offset, 256)));
  EXPECT_EQ(std::ranges::count(here.subspan(256), std::byte{0}), 3 * 256);
}

TEST(Snapshot, OfNothingAndOfEmptySequences) {
  KvCache cache = make_cache(small_options());
  EXPECT_TRUE(restored(cache, saved(cache, {})).empty());
  const SequenceId id = cache.create();
  cache.reserve(id, 10);
  const std::vector<SequenceId> ids = restored(cache, saved(cache, std::vector{id, id}));
  ASSERT_EQ(ids.size(), 2U);
  EXPECT_EQ(cache.length(ids[0]), 0);
  append(cache, ids[1], 5, 1);
  EXPECT_EQ(state_of(cache).find_inconsistency(), "");
}

// Slots after the last token, tokens taken back, and the gaps between sections.
TEST(Snapshot, HoldsNothingThatWasNotSaved) {
  constexpr std::byte kSecret{0xa5};
  KvCache cache = make_cache(small_options());
  for (std::int64_t g = 0; g < 2; ++g) {
    std::memset(state_of(cache).memory_data(g), 0xa5,
                static_cast<std::size_t>(state_of(cache).memory(g).bytes()));
  }
  const SequenceId id = cache.create();
  cache.reserve(id, 11);
  for (std::int64_t g = 0; g < 2; ++g) {  // zeros are what may be seen
    for (std::int64_t p = 0; p < 9; ++p) {
      const std::span<std::byte> page = state_of(cache).writable_page_at(id, g, p);
      each_piece(cache, g, p, 0, [&](std::int64_t offset, std::int64_t bytes, std::uint64_t) {
        std::memset(&page[static_cast<std::size_t>(offset)], 0, static_cast<std::size_t>(bytes));
      });
    }
  }
  cache.commit(id, 11);
  cache.truncate(id, 9);
  const Bytes file = saved(cache, {&id, 1});
  const Sections at(file);
  const std::size_t sums = 8 * static_cast<std::size_t>(state_of(cache).pool(0).used_pages() +
                                                        state_of(cache).pool(1).used_pages() + 1);
  const auto pages = std::span(file).subspan(at.pages, file.size() - sums - at.pages);
  EXPECT_EQ(std::ranges::count(pages, kSecret), 0);
}

TEST(Snapshot, RefusesStaleIdsBeforeItWrites) {
  const Directory directory;
  KvCache cache = make_cache(small_options());
  Family family(cache);
  cache.release(family.ids[1]);
  ::touchstone::test::expect_refusal("kv_cache: sequence: sequence 1 was released",
                                     [&] { save(cache, family.ids, directory / "family.kv"); });
  EXPECT_EQ(directory.files(), 0);
  ::touchstone::test::expect_refusal("save: sink: ", [&] { save(cache, {}, ByteSink{}); });
  ::touchstone::test::expect_refusal("restore: source: ", [&] { restore(cache, ByteSource{}); });
}

TEST(Snapshot, NamesTheFileThatTheSystemRefuses) {
  const Directory directory;
  KvCache cache = make_cache(small_options());
  const Family family(cache);
  const State before(cache);
  const auto expect_file_error = [&](const std::function<void()>& call) {
    try {
      call();
      ADD_FAILURE() << "accepted";
    } catch (const FileError& error) {
      EXPECT_NE(std::string(error.what()).find("touchstone_snapshot_test"), std::string::npos)
          << error.what();
    }
  };
  expect_file_error([&] { save(cache, family.ids, directory / "no" / "file.kv"); });
  expect_file_error([&] { restore(cache, directory / "no.kv"); });
  expect_file_error([&] { restore(cache, directory / ""); });
  fs::create_directory(directory / "directory");
  expect_file_error([&] { save(cache, family.ids, directory / "directory"); });
  EXPECT_EQ(directory.files(), 1);  // nothing is left behind
  // Opened without waiting for somebody who writes into it.
  ASSERT_EQ(mkfifo((directory / "pipe.kv").c_str(), 0600), 0);
  expect_file_error([&] { restore(cache, directory / "pipe.kv"); });
  before.expect_same(cache);
}

// No file of this process may grow beyond so many bytes: to the library, a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST(Snapshot, AFullDiskLeavesTheOldFile) {
  const Directory directory;
  KvCache cache = make_cache(small_options());
  const Family family(cache);
  save(cache, {family.ids.data(), 1}, directory / "family.kv");
  {
    const FileSizeLimit limit(1000);
    EXPECT_THROW(save(cache, family.ids, directory / "family.kv"), FileError);
  }
  EXPECT_EQ(directory.files(), 1);
  EXPECT_EQ(restore(cache, directory / "family.kv").size(), 1U);
}

TEST(Snapshot, ASinkThatThrowsEndsIt) {
  struct Stop {};
  KvCache cache = make_cache(small_options());
  const Family family(cache);
  const State before(cache);
  EXPECT_THROW(save(cache, family.ids, [](std::span<const std::byte>) { throw Stop{}; }), Stop);
  const Bytes file = saved(cache, family.ids);
  std::size_t calls = 0;
  EXPECT_THROW(restore(cache,
                       [&](std::span<std::byte> bytes) {
                         if (++calls > 1) throw Stop{};
                         std::copy_n(file.begin(), bytes.size(), bytes.begin());
                       }),
               Stop);
  before.expect_same(cache);
}

TEST(Snapshot, ReplacesAFileOnlyWhenWhole) {
  const Directory directory;
  KvCache cache = make_cache(small_options());
  const Family family(cache);
  save(cache, {family.ids.data(), 1}, directory / "family.kv");
  save(cache, family.ids, directory / "family.kv");
  EXPECT_EQ(directory.files(), 1);
  EXPECT_EQ(restore(cache, directory / "family.kv").size(), 3U);
}

TEST(Snapshot, IsRefusedByOtherLayoutsFieldByField) {
  KvCache cache = make_cache(small_options());
  const Family family(cache);
  const Bytes file = saved(cache, family.ids);
  const auto expect_field = [&](const char* message, auto change) {
    KvCacheOptions options = small_options();
    change(options.layout);
    options.pool_pages.resize(options.layout.groups.size(), 50);
    KvCache other = make_cache(options);
    expect_refused<InvalidArgument>(other, file, message);
  };
  const auto expect_group = [&](const char* message, std::size_t g, auto change) {
    expect_field(message, [&](Layout& layout) { change(layout.groups[g]); });
  };
  expect_field("restore: groups: expected 1, got 2", [](Layout& l) { l.groups.pop_back(); });
  expect_field("restore: groups: expected 3, got 2",
               [](Layout& l) { l.groups.push_back(l.groups[0]); });
  expect_group("group 0: layers: expected 2, got 1", 0, [](LayerGroup& g) { g.layers = 2; });
  expect_group("group 0: kv_heads: expected 1, got 2", 0, [](LayerGroup& g) { g.kv_heads = 1; });
  expect_group("group 0: k_dim: expected 3, got 2", 0, [](LayerGroup& g) { g.k_dim = 3; });
  expect_group("group 0: v_dim: expected 1, got 3", 0, [](LayerGroup& g) { g.v_dim = 1; });
  expect_group("group 0: k.dtype", 0, [](LayerGroup& g) { g.k.dtype = DType::f8_e4m3; });
  expect_group("group 0: k.group_size: expected 1, got 2", 0,
               [](LayerGroup& g) { g.k.group_size = 1; });
  expect_group("group 0: k.asymmetric: expected 1, got 0", 0,
               [](LayerGroup& g) { g.k.asymmetric = true; });
  expect_group("group 0: k.scale_dtype", 0, [](LayerGroup& g) { g.k.scale_dtype = DType::f32; });
  expect_group("group 0: v.dtype", 0, [](LayerGroup& g) { g.v.dtype = DType::f16; });
  expect_group("group 1: page_tokens: expected 4, got 2", 1,
               [](LayerGroup& g) { g.page_tokens = 4; });
  expect_group("group 1: window: expected 6, got 5", 1, [](LayerGroup& g) { g.window = 6; });
  expect_group("group 1: sinks: expected 0, got 3", 1, [](LayerGroup& g) { g.sinks = 0; });
  expect_group("group 1: k_is_v: expected 0, got 1", 1, [](LayerGroup& g) { g.k_is_v = false; });
  // What is not looked at may differ.
  KvCacheOptions options = small_options();
  options.layout.groups[0].k.group_size = 2;            // said as 0 before
  options.layout.groups[0].v.scale_dtype = DType::f32;  // bf16 has no scales
  options.layout.groups[1].v.dtype = DType::i4;         // the values are in the keys
  KvCache other = make_cache(options);
  Family::expect_at(other, restored(other, file));
}

TEST(Snapshot, IsRefusedWhenItIsNotOne) {
  KvCache cache = make_cache(small_options());
  const Family family(cache);
  const Bytes file = saved(cache, family.ids);
  const auto changed = [&](auto change) {
    SnapshotHeader header;
    std::memcpy(&header, file.data(), sizeof(header));
    change(header);
    Bytes result = file;
    std::memcpy(result.data(), &header, sizeof(header));
    Sections::seal(result);
    return result;
  };
  using Header = SnapshotHeader;
  expect_refused<CorruptData>(cache, {}, "end of the file");
  expect_refused<CorruptData>(cache, Bytes(1000), "does not begin like one");
  expect_refused<Unsupported>(cache, changed([](Header& h) { h.version = 7; }),
                              "version: expected 1, got 7");
  expect_refused<Unsupported>(cache, changed([](Header& h) { h.byte_order = 0x0d0c0b0a; }),
                              "byte order");
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  for (const std::int64_t value : {kHuge, -kHuge, std::int64_t{-1}, std::int64_t{3}}) {
    expect_refused<CorruptData>(cache, changed([&](Header& h) { h.file_bytes = value; }), "");
    expect_refused<Error>(cache, changed([&](Header& h) { h.groups = value; }), "");
    if (value == 3) continue;  // there are three
    expect_refused<CorruptData>(cache, changed([&](Header& h) { h.sequences = value; }), "");
    expect_refused<CorruptData>(cache, changed([&](Header& h) { h.sequence_bytes = value; }), "");
  }
  expect_refused<CorruptData>(cache, changed([](Header& h) { h.unused = 1; }), "header");
  Bytes longer = changed([](Header& h) { h.file_bytes += 8; });
  longer.resize(longer.size() + 8);
  expect_refused<CorruptData>(cache, longer, "longer than its content");
}

// One sequence of 13 tokens: pages 0 to 3 of the full group; of the windowed one 0 and 1 (sinks), a
// gap of two, 2 to 4. In the file: length, first_kept, 4 numbers, first_kept, 7 numbers.
TEST(Snapshot, IsRefusedWhenATableMakesNoSense) {
  KvCache cache = make_cache(small_options());
  const SequenceId id = cache.create();
  append(cache, id, 13, 1);
  cache.advance_window(id);
  const Bytes file = saved(cache, {&id, 1});
  const Sections at(file);
  const auto forged = [&](std::size_t offset, auto value) {
    Bytes result = file;
    std::memcpy(&result[at.sequences + offset], &value, sizeof(value));
    Sections::seal(result);
    return result;
  };
  const auto number = [&](std::size_t group, std::size_t i, std::uint32_t value) {
    return forged((group == 0 ? 16 : 40) + 4 * i, value);
  };
  const std::size_t kept[2] = {8, 32};
  using Number = std::int64_t;
  EXPECT_EQ(forged(0, Number{13}), file);
  EXPECT_EQ(forged(kept[1], Number{4}), file);
  EXPECT_EQ(number(0, 3, 3), file);
  EXPECT_EQ(number(1, 2, kNoPage), file);
  for (const Number length : {Number{-1}, Number{5}, Number{17}, Number{1} << 40, INT64_MAX}) {
    expect_refused<CorruptData>(cache, forged(0, length), "");
  }
  // A window where there is none, beyond what the next token sees, or of negative begin.
  expect_refused<CorruptData>(cache, forged(kept[0], Number{1}), "window where it cannot be");
  for (const Number first : {Number{5}, Number{-1}, INT64_MAX}) {
    expect_refused<CorruptData>(cache, forged(kept[1], first), "window where it cannot be");
  }
  // A gap that is a page, and a page that is a gap.
  expect_refused<CorruptData>(cache, forged(kept[1], Number{3}), "page where it cannot be");
  expect_refused<CorruptData>(cache, number(1, 2, 0), "page where it cannot be");
  expect_refused<CorruptData>(cache, number(1, 4, kNoPage), "page where it cannot be");
  expect_refused<CorruptData>(cache, number(0, 0, kNoPage), "page where it cannot be");
  // Twice in one sequence, out of order, out of range.
  expect_refused<CorruptData>(cache, number(0, 1, 0), "page where it cannot be");
  expect_refused<CorruptData>(cache, number(0, 1, 2), "page where it cannot be");
  expect_refused<CorruptData>(cache, number(0, 3, 4), "page where it cannot be");
  // Pages of the file that nobody uses: their number alone is changed.
  Bytes more = file;
  const std::size_t count = at.groups + sizeof(GroupDescription);
  more[count] = std::byte{5};
  Sections::seal(more);
  expect_refused<CorruptData>(cache, more, "shorter than its content");
}

// Two sequences may share a page only at the same positions.
TEST(Snapshot, IsRefusedWhenAPageIsAtTwoPositions) {
  KvCache cache = make_cache(small_options());
  const SequenceId first = cache.create();
  append(cache, first, 8, 1);
  const SequenceId second = cache.fork(first);
  Bytes file = saved(cache, std::vector{first, second});
  const Sections at(file);
  const std::size_t table = at.sequences + (8 + 8 + 2 * 4 + 8 + 4 * 4) + 16;  // of the second
  const std::uint32_t swapped[2] = {1, 0};
  std::uint32_t numbers[2] = {};
  std::memcpy(numbers, &file[table], 8);
  ASSERT_EQ(numbers[0] + 2 * numbers[1], 2U);
  std::memcpy(&file[table], swapped, 8);
  Sections::seal(file);
  expect_refused<CorruptData>(cache, file, "page where it cannot be");
}

TEST(Snapshot, IsRefusedWhenThePagesDoNotFitAndNothingIsEvicted) {
  KvCache cache = make_cache(small_options());
  const Family family(cache);
  const Bytes file = saved(cache, family.ids);
  KvCacheOptions options = small_options();
  options.pool_pages = {10, 15};
  KvCache small = make_cache(options);
  const std::vector<std::int32_t> prompt(20, 7);
  const SequenceId id = small.create();
  append(small, id, 20, 1);
  small.insert_prefix(id, prompt);
  // 5 pages of the full group in use: too few free ones.
  expect_refused<OutOfMemory>(small, file, "kv_cache: restore: expected");
  small.release(id);
  EXPECT_EQ(small.statistics().groups[0].cached, 5);
  // The last byte decides; until it is verified, cached pages stay where they are.
  Bytes damaged = file;
  damaged.back() ^= std::byte{1};
  expect_refused<CorruptData>(small, damaged, "damaged: checksums");
  const PrefixHit hit = small.open_prefix(prompt);
  EXPECT_EQ(hit.tokens, 20);
  small.release(hit.sequence);
  Family::expect_at(small, restored(small, file));
  EXPECT_GT(small.statistics().groups[0].evicted, 0);
  EXPECT_EQ(state_of(small).find_inconsistency(), "");
}

}  // namespace
}  // namespace touchstone::inline v0::cache::test
