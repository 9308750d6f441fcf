// Process-wide switches for tests and measurements. Not for programs that run operators on several
// threads, and not included by touchstone.h.
#pragma once

#include <string>

#include "touchstone/core/export.h"

namespace touchstone::inline v0::testing {

// CPU operators use `target`, a name from simd_targets(), from now on in the whole process; "" =
// the best. InvalidArgument lists the known names. Not to be called while an operator runs.
TOUCHSTONE_API void set_simd_target(const std::string& target);

}  // namespace touchstone::inline v0::testing
