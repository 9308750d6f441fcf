// The version of Touchstone, written once: CMake and packagers read these three lines.
#pragma once

#include "touchstone/core/export.h"

#define TOUCHSTONE_VERSION_MAJOR 0
#define TOUCHSTONE_VERSION_MINOR 1
#define TOUCHSTONE_VERSION_PATCH 0

namespace touchstone::inline v0 {

// Version of the library that was linked, as "major.minor.patch". A program can compare it with the
// macros above to check that its headers and its library belong together.
TOUCHSTONE_API const char* version() noexcept;

}  // namespace touchstone::inline v0
