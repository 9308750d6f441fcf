// How the sorted lists of a segment's rows are merged on CUDA: each CTA merges some lists in shared
// memory, and the lists that remain are merged again, until there is one.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

#include "decode/beam/select.h"

namespace touchstone::inline v0::decode::beam {

// A candidate while it is merged: larger keys first, then lower ids. Key 0 is no candidate.
struct MergeEntry {
  unsigned long long key = 0;  // ordered bits of the score
  std::uint32_t id = 0;        // row of the segment above the slot in its list
  std::uint32_t unused = 0;
};

// 12 bytes of shared memory per entry: 96 KB, which every GPU from compute capability 8.0 on has.
inline constexpr std::int64_t kMaxMergeEntries = 2 * kMaxDeviceKeep;

struct MergePlan {
  std::int64_t length = 0;    // of a list in shared memory: a power of two
  std::int64_t lists = 0;     // per CTA: a power of two, at least 2
  std::int64_t max_rows = 0;  // of a segment

  explicit MergePlan(std::span<const Segment> segments) {
    std::int64_t keep = 1;
    for (const Segment& s : segments) {
      keep = std::max(keep, s.keep);
      max_rows = std::max(max_rows, s.rows);
    }
    const auto ceil2 = [](std::int64_t n) {
      return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(n)));
    };
    length = ceil2(keep);
    lists = std::min(std::max<std::int64_t>(2, kMaxMergeEntries / length), ceil2(max_rows));
  }
  std::int64_t blocks(std::int64_t lists_left) const { return (lists_left + lists - 1) / lists; }
  // Two buffers of lists between the launches; 0 where one launch suffices.
  std::int64_t scratch_entries(std::int64_t segments) const {
    const std::int64_t left = blocks(max_rows);
    return left == 1 ? 0 : segments * length * (left + blocks(left));
  }
};

}  // namespace touchstone::inline v0::decode::beam
