// A plan as text and as JSON.
#pragma once

#include <string>

#include "cli/output.h"
#include "touchstone/cache/planner.h"

namespace touchstone::cli {

std::string plan_text(const cache::PlanRequest& request, const cache::Plan& plan);
Json plan_json(const cache::PlanRequest& request, const cache::Plan& plan);

// "bf16", "int4 (a scale and a minimum per 32)"
std::string format_text(const QuantFormat& format);

}  // namespace touchstone::cli
