// Process-wide switches for tests and measurements. Not for programs that run operators on several
// threads, and not included by touchstone.h.
#pragma once

#include <string>

#include "touchstone/core/export.h"

namespace touchstone::inline v0::testing {

// CPU operators use `target`, a name from simd_targets(), from now on in the whole process; "" =
// the best. InvalidArgument lists the known names. Not to be called while an operator runs.
TOUCHSTONE_API void set_simd_target(const std::string& target);

// CPU operators use the VNNI instructions of AVX-512 where the processor has them (the default), or
// do without from now on in the whole process. Not to be called while an operator runs.
TOUCHSTONE_API void set_vnni(bool enabled);

}  // namespace touchstone::inline v0::testing
