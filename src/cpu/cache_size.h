// How much of the machine's cache an operator may count on.
#pragma once

#include <cstdint>

namespace touchstone::inline v0 {

// Bytes of the largest cache that the first CPU can reach; an estimate where the system does not
// report it.
std::int64_t last_level_cache_bytes();

}  // namespace touchstone::inline v0
