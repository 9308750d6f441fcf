// The textbook loops, as a compiler at -O3 makes them: one pass per quantity, nothing vectorized by
// hand. Rows are shared between the threads of the context, so that what shows is the code and not
// the number of cores.
#pragma once

#include "bench/norm_data.h"

namespace touchstone::bench {

NormCall naive_cpu_call(Context& context, const NormProblem& problem, const NormData& data);

}  // namespace touchstone::bench
