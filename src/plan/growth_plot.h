// A picture of a plan: memory of one GPU over the length of the sequences.
#pragma once

#include <string>

#include "touchstone/plan/planner.h"

namespace touchstone::inline v0::plan {

// A whole SVG document: weights and overhead as bands, the cache growing above them, the same cache
// in int8 and int4 as lines, the memory of the GPU as a limit. `plan` is make_plan(request).
std::string growth_plot(const PlanRequest& request, const Plan& plan);

}  // namespace touchstone::inline v0::plan
