// Sequences apart from any cache: what is saved to a file or moved to another cache.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/cache_state.h"

namespace touchstone::inline v0::cache {

// Pages of a group are numbered in the order in which the tables, one after the other, name them
// first; a page that sequences share has one number.
struct SequenceSet {
  struct Table {
    std::int64_t first_kept = 0;         // as in PageTable
    std::vector<std::uint32_t> pages{};  // kNoPage where the window has passed
  };
  struct Entry {
    std::int64_t length = 0;
    std::vector<Table> groups{};
  };

  std::vector<Entry> sequences{};
  std::vector<std::int64_t> page_counts{};  // of each group
};

// A page of a cache that is part of a set.
struct PageOrigin {
  PageHandle page{};
  std::int64_t tokens = 0;  // those that some sequence of the set can read
};

struct GatheredSet {
  SequenceSet set{};
  std::vector<std::vector<PageOrigin>> origins{};  // [group][number]
};

// Committed tokens only. InvalidArgument for a stale id.
GatheredSet gather(const CacheState& cache, std::span<const SequenceId> ids);

}  // namespace touchstone::inline v0::cache
