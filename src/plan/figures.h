// The parts of a plan that follow from its layout and do not decide what fits.
#pragma once

#include "touchstone/cache/planner.h"

namespace touchstone::cache {

// All of these take a request whose context is set.
DecodeStep decode_step(const PlanRequest& request, const Layout& layout);
Recomputation recomputation(const PlanRequest& request);
std::vector<Alternative> alternatives(const PlanRequest& request, const Plan& plan);

std::int64_t activation_bytes(const ModelSpec& model);

}  // namespace touchstone::cache
