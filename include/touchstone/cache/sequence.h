// What the cache knows about one sequence. Read it through KvCache::sequence().
#pragma once

#include <cstdint>
#include <vector>

#include "touchstone/cache/page_pool.h"

namespace touchstone::cache {

// Names a sequence of one cache. Stale after release; worthless to any other cache.
struct SequenceId {
  std::uint32_t index = 0xffffffffU;
  std::uint32_t generation = 0;
  std::uint32_t cache = 0;

  friend constexpr bool operator==(SequenceId, SequenceId) = default;
};

// The pages of a sequence in one layer group. Position p is in pages[p / page_tokens].
struct PageTable {
  std::vector<PageHandle> pages{};
  // Pages from the end of the sinks to here are gone: the window has passed them. Their handles are
  // empty.
  std::int64_t first_kept = 0;
  // Grows with every change but pages added at the end.
  std::uint64_t version = 0;
};

struct Sequence {
  std::int64_t length = 0;    // tokens that can be read
  std::int64_t reserved = 0;  // tokens there is room for; [length, reserved) can be written
  std::vector<PageTable> groups{};
};

}  // namespace touchstone::cache
