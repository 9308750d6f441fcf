// The VNNI instructions of AVX-512, which are in no SIMD target that is compiled.
#pragma once

namespace touchstone::inline v0 {

// Whether the processor has them and testing::set_vnni has not turned them off.
bool uses_vnni();

}  // namespace touchstone::inline v0
