// Signed 64-bit sizes as indices of standard containers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/index.h"

namespace touchstone {

// values[at(i)] for a signed i >= 0.
}  // namespace touchstone
