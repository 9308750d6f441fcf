// The tile instructions of x86 (AMX), which are in no SIMD target that is compiled.
#pragma once

namespace touchstone::inline v0 {

// Whether bf16 products run on tiles: the processor has them, the system lets this process use them, and
// testing::set_simd_target has chosen no target below AVX-512. The first call requests
// the permission of the system.
bool uses_amx_bf16();

}  // namespace touchstone::inline v0
