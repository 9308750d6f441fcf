// What the bookkeeping of the KV cache costs, and how fast its pages move.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "machine/statistics.h"

namespace touchstone::bench {

struct CacheRow {
  std::string name;           // "fork"
  std::string what;           // what one operation is
  machine::Summary us{};      // of one operation
  double amount = 0;          // pages or bytes that one operation handles; 0 = a time says it all
  std::string amount_name{};  // "pages", "bytes"
};

// Everything in turn in every round, on one thread. Files go to the system's directory for
// temporary ones and are removed.
std::vector<CacheRow> measure_cache(int rounds, const std::function<void(int round)>& progress);

}  // namespace touchstone::bench
