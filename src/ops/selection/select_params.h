// Parameters of a selection that the block-wide components share.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace touchstone::selection {

// Of a row: one sum per segment is kept in shared memory.
inline constexpr int kMaxSegments = 2048;

struct SelectParams {
  std::int64_t vocabulary = 0;
  int token_bits = 0;  // of the largest token
  int segments = 0;
  int candidates = 0;  // capacity per CTA; of the row, at least k
  int cluster = 1;     // CTAs per row

  // Candidates of the whole row.
  TOUCHSTONE_HOST_DEVICE int capacity() const { return cluster * candidates; }
};

}  // namespace touchstone::selection
