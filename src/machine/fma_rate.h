// Peak rate of fused multiply-adds of the CPU: the floor of matrix products.
#pragma once

#include "touchstone/core/context.h"

namespace touchstone::machine {

// GFLOP/s of f32, a multiplication and an addition counted as two, with all threads of the context
// at once and the SIMD target in use.
double measure_fma_gflops(Context& context);

}  // namespace touchstone::machine
