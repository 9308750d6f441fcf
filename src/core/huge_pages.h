// Large memory that is read in no order, one that caches of address translations can keep up with.
#pragma once

#include <cstdint>

namespace touchstone {

// Asks the system to keep what lies in [data, data + bytes) in huge pages, before it is first
// written. A hint: nothing is promised, and where there is no such thing nothing happens.
void prefer_huge_pages(void* data, std::int64_t bytes);

}  // namespace touchstone
