// The cases of both attention tasks.
#pragma once

#include <cstdint>
#include <vector>

#include "judge/task/tasks/plan_builder.h"

namespace touchstone::judge::attention {

Plan make_plan(const TaskCard& card, uint64_t seed, bool small, bool backward);
std::vector<CaseSpec> make_timed(const TaskCard& card, uint64_t seed, bool small);

}  // namespace touchstone::judge::attention
