// How long a step takes when it is repeated.
#pragma once

#include <functional>

#include "touchstone/core/context.h"

namespace touchstone::inline v0::model {

// Of one of many repetitions, after some to warm up. On CUDA the step is recorded once, on a stream
// of its own, and replayed: launches from the host do not count.
double seconds_of(Context& context, const std::function<void(Context&)>& step);

}  // namespace touchstone::inline v0::model
