// How fast the CPU multiplies and adds in registers: what products of matrices are held against.
#pragma once

#include "touchstone/core/context.h"

namespace touchstone::bench {

// GFLOP/s of f32, a multiplication and an addition counted as two, with all threads of the context
// at once and the SIMD target in use.
double measure_fma_gflops(Context& context);

}  // namespace touchstone::bench
