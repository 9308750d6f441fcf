// What the tests of snapshots and transfers have in common: a cache in an awkward state, and files
// in memory that can be damaged and sealed again.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "cache/snapshot/cache_test_support.h"
#include "cache/snapshot/snapshot_format.h"
#include "core/checksum.h"
#include "touchstone/cache/snapshot.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::cache::test {

using Bytes = std::vector<std::byte>;

inline constexpr TwoGroups kSizes{.full_page = 4, .window_page = 2, .window = 5, .sinks = 3};
inline constexpr std::int64_t kPages[2] = {40, 60};

inline KvCacheOptions small_options() {
  return {.layout = layout_of(kSizes), .pool_pages = {kPages[0], kPages[1]}};
}

inline void append(KvCache& cache, SequenceId id, std::int64_t tokens, std::uint64_t seed) {
  cache.reserve(id, tokens);
  for (std::int64_t i = 0; i < tokens; ++i) {
    const std::int64_t position = cache.length(id) + i;
    write_token(cache, id, position, seed + static_cast<std::uint64_t>(position));
  }
  cache.commit(id, tokens);
}

// Positions [from, to) hold what append() of the same seed wrote, where the window still is.
inline void expect_tokens(const KvCache& cache, SequenceId id, std::int64_t from, std::int64_t to,
                          std::uint64_t seed) {
  ASSERT_LE(to, cache.length(id));
  for (std::int64_t g = 0; g < state_of(cache).groups(); ++g) {
    const std::int64_t page_tokens = cache.layout().groups[static_cast<std::size_t>(g)].page_tokens;
    const PageTable& table = state_of(cache).sequence(id).groups[static_cast<std::size_t>(g)];
    for (std::int64_t p = from; p < to; ++p) {
      if (table.pages[static_cast<std::size_t>(p / page_tokens)].empty()) continue;
      ASSERT_TRUE(holds_token(cache, id, g, p, seed + static_cast<std::uint64_t>(p)))
          << "group " << g << " position " << p;
    }
  }
}

// Three sequences of 21, 18 and 14 tokens: the second is a fork of the first after 13 tokens, the
// third of the second after 17, cut back into a page that all share. The first has moved its
// window.
struct Family {
  explicit Family(KvCache& cache) {
    const SequenceId first = cache.create();
    append(cache, first, 13, 1000);
    const SequenceId second = cache.fork(first);
    append(cache, first, 8, 2000);
    append(cache, second, 4, 3000);
    const SequenceId third = cache.fork(second);
    append(cache, second, 1, 4000);
    cache.truncate(third, 14);
    cache.advance_window(first);
    cache.reserve(second, 9);  // never written
    ids = {first, second, third};
  }
  static void expect_at(const KvCache& cache, std::span<const SequenceId> family) {
    ASSERT_EQ(family.size(), 3U);
    EXPECT_EQ(cache.length(family[0]), 21);
    EXPECT_EQ(cache.length(family[1]), 18);
    EXPECT_EQ(cache.length(family[2]), 14);
    for (const SequenceId id : family) expect_tokens(cache, id, 0, 13, 1000);
    expect_tokens(cache, family[0], 13, 21, 2000);
    expect_tokens(cache, family[1], 13, 17, 3000);
    expect_tokens(cache, family[1], 17, 18, 4000);
    expect_tokens(cache, family[2], 13, 14, 3000);
  }
  std::vector<SequenceId> ids;
};

inline Bytes saved(const KvCache& cache, std::span<const SequenceId> ids) {
  Bytes file;
  save(cache, ids, [&](std::span<const std::byte> bytes) {
    file.insert(file.end(), bytes.begin(), bytes.end());
  });
  return file;
}

// As a file would be: short ones end in CorruptData.
inline std::vector<SequenceId> restored(KvCache& cache, std::span<const std::byte> file) {
  return restore(cache, [&](std::span<std::byte> wanted) {
    if (wanted.size() > file.size()) throw CorruptData("the end of the file");
    std::copy_n(file.begin(), wanted.size(), wanted.begin());
    file = file.subspan(wanted.size());
  });
}

// All that a failed call may not change. Views see the generation.
struct State {
  explicit State(const KvCache& cache)
      : generation(cache.generation()), statistics(cache.statistics()) {}

  void expect_same(const KvCache& cache) const {
    const Statistics now = cache.statistics();
    EXPECT_EQ(cache.generation(), generation);
    EXPECT_EQ(now.sequences, statistics.sequences);
    EXPECT_EQ(now.tokens, statistics.tokens);
    EXPECT_EQ(now.prefix_entries, statistics.prefix_entries);
    for (std::size_t g = 0; g < now.groups.size(); ++g) {
      EXPECT_EQ(now.groups[g].free, statistics.groups[g].free);
      EXPECT_EQ(now.groups[g].used, statistics.groups[g].used);
      EXPECT_EQ(now.groups[g].cached, statistics.groups[g].cached);
      EXPECT_EQ(now.groups[g].evicted, statistics.groups[g].evicted);
    }
    EXPECT_EQ(state_of(cache).find_inconsistency(), "");
  }

  std::uint64_t generation;
  Statistics statistics;
};

// Where the sections of a file of the small layout are.
struct Sections {
  explicit Sections(std::span<const std::byte> file) {
    std::memcpy(&header, file.data(), sizeof(header));
    groups = sizeof(header);
    // Unsigned: a forged number may wrap.
    sequences = groups + static_cast<std::size_t>(header.groups) * kGroupRecordBytes + 8;
    pages = sequences + static_cast<std::size_t>(header.sequence_bytes) + 8;
  }
  // Makes all checksums of a damaged file right again, as far as it still has sections.
  static void seal(Bytes& file) {
    const Sections at(file);
    const auto put = [&](std::size_t begin, std::size_t end) {
      if (begin > end || end > file.size() - 8) return;
      const std::uint64_t sum = checksum(std::span(file).subspan(begin, end - begin));
      std::memcpy(&file[end], &sum, 8);
    };
    put(0, offsetof(SnapshotHeader, checksum));
    put(at.groups, at.sequences - 8);
    put(at.sequences, at.pages - 8);
  }

  SnapshotHeader header;
  std::size_t groups;
  std::size_t sequences;
  std::size_t pages;
};

}  // namespace touchstone::inline v0::cache::test
