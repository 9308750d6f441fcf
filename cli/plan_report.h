// Plans as text, as Markdown and as JSON.
#pragma once

#include <string>
#include <vector>

#include "cli/output.h"
#include "touchstone/plan/planner.h"

namespace touchstone::cli {

std::string plan_text(const plan::PlanRequest& request, const plan::Plan& plan);
Json plan_json(const plan::PlanRequest& request, const plan::Plan& plan);

// Many plans as one table: models x GPUs x batches.
struct PlanRow {
  plan::PlanRequest request;
  plan::Plan plan;
};

// Per GPU: weights, the cache of the batch at 1K, 8K and 32K tokens, the longest context; then the
// step at the planned context, "-" where that does not fit.
std::string plan_table_text(const std::vector<PlanRow>& rows);
std::string plan_table_markdown(const std::vector<PlanRow>& rows);
Json plan_table_json(const std::vector<PlanRow>& rows);

}  // namespace touchstone::cli
