// The state of one sequence.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/page_pool.h"

namespace touchstone::inline v0::cache {

// The pages of a sequence in one layer group. Position p is in pages[p / page_tokens].
struct PageTable {
  std::vector<PageHandle> pages{};
  // Pages from the end of the sinks to here were freed by the window; their handles are empty.
  std::int64_t first_kept = 0;
  // Grows with every change but pages added at the end.
  std::uint64_t version = 0;
};

struct Sequence {
  std::int64_t length = 0;    // tokens that can be read
  std::int64_t reserved = 0;  // allocated slots; [length, reserved) can be written
  std::vector<PageTable> groups{};
};

}  // namespace touchstone::inline v0::cache
