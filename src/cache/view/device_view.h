// Single entries of a page table that is in CUDA memory.
#pragma once

#include <cstdint>

#include "touchstone/core/context.h"

namespace touchstone::inline v0::cache {

struct TableEntry {
  std::int64_t index = 0;
  std::int32_t page = 0;
};

// table[entry.index] = entry.page for `count` entries, all in CUDA memory: device_view_cuda.cu, or
// src/no_cuda in a CPU-only build.
void write_table_entries(Context& context, const TableEntry* entries, std::int64_t count,
                         std::int32_t* table);

}  // namespace touchstone::inline v0::cache
