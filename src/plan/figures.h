// The parts of a plan that follow from its layout and do not decide what fits.
#pragma once

#include "touchstone/plan/planner.h"

namespace touchstone::inline v0::plan {

// All of these take a request whose context is set.
DecodeStep decode_step(const PlanRequest& request, const cache::Layout& layout);
Recomputation recomputation(const PlanRequest& request);
std::vector<Alternative> alternatives(const PlanRequest& request, const Plan& plan);

// The format of the weights, their bytes over all GPUs, and the activations of one GPU.
QuantFormat planned_weights(const PlanRequest& request);
std::int64_t planned_weight_bytes(const PlanRequest& request, std::int64_t parameters);
std::int64_t activation_bytes(const PlanRequest& request);

}  // namespace touchstone::inline v0::plan
