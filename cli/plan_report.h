// A plan as text and as JSON.
#pragma once

#include <string>

#include "cli/output.h"
#include "touchstone/plan/planner.h"

namespace touchstone::cli {

std::string plan_text(const plan::PlanRequest& request, const plan::Plan& plan);
Json plan_json(const plan::PlanRequest& request, const plan::Plan& plan);

// "12.55 GiB": two digits, because a plan is compared with a limit.
std::string size_text(std::int64_t bytes);
// "16848", or "no limit".
std::string tokens_text(std::int64_t tokens);
// "bf16", "int4 (a scale and a minimum per 32)"
std::string format_text(const QuantFormat& format);

}  // namespace touchstone::cli
