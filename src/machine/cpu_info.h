// Facts about this machine that are reported with measurements.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace touchstone::machine {

struct CpuCache {
  int level = 0;
  std::string type;        // "data", "instruction", "unified"
  std::int64_t bytes = 0;  // of one
  int count = 0;           // how many of them the usable cores have between them
};

struct CpuInfo {
  std::string model;
  int usable_cores = 0;  // that this process may run on
  std::vector<CpuCache> caches;
};

// Processors this process may run on; none where the system does not report them.
std::vector<int> usable_cpus();

// Empty fields where the system does not report them.
CpuInfo cpu_info();

// All last-level cache the usable cores can reach; 32 MiB where the system does not report it:
// enough for buffers that must not fit in the cache.
std::int64_t last_level_cache_bytes(const CpuInfo& info);

// Memory that can be allocated without swapping; the largest number where it is not known.
std::int64_t available_memory_bytes();

// "2026-01-31T12:34:56Z"
std::string utc_now();

}  // namespace touchstone::machine
