// Peak rate of products of bf16 on the tiles of AMX.
#pragma once

#include "touchstone/core/context.h"

namespace touchstone::machine {

// GFLOP/s with all threads of the context at once, operands in registers; 0 where there are no
// tiles.
double measure_amx_gflops(Context& context);

}  // namespace touchstone::machine
