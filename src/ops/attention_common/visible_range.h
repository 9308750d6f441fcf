// The keys one query attends to, as ranges.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace touchstone::attention_common {

TOUCHSTONE_HOST_DEVICE inline std::int64_t smaller(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}
TOUCHSTONE_HOST_DEVICE inline std::int64_t larger(std::int64_t a, std::int64_t b) {
  return a < b ? b : a;
}

// A query attends to [0, sinks) and [begin, end), where sinks <= begin <= end unless it is fully
// masked.
struct VisibleRange {
  std::int64_t sinks = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

TOUCHSTONE_HOST_DEVICE inline bool attends(const VisibleRange& visible, std::int64_t position) {
  return position < visible.end && (position < visible.sinks || position >= visible.begin);
}

}  // namespace touchstone::attention_common
