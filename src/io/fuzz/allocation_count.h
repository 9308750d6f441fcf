// Counts what a test program allocates: it replaces operator new.
#pragma once

#include <cstddef>

namespace touchstone::inline v0::io {

void reset_allocated_bytes();
// Bytes of all calls of operator new since then, released or not.
std::size_t allocated_bytes();

}  // namespace touchstone::inline v0::io
