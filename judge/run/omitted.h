// Outputs that a contender leaves out, where the card of the task allows it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "judge/contender/contender.h"

namespace touchstone::judge {

// Those that contender.json says it lacks.
std::vector<std::string> declared_omissions(const Contender& contender, const TaskCard& card);

// Those that the card allows to leave out.
std::vector<std::string> allowed_omissions(const TaskCard& card);

// Adds to `reply` what this call left out: as declared, or as the child noted ("omitted a,b"). The note
// lies in memory that the contender can write to, so that only what is `allowed` counts. What the memory
// of such an output held before is no answer: it becomes zero.
void mark_omitted(const std::vector<std::string>& declared, const std::vector<std::string>& allowed,
                  std::string_view note, const Call& call, Reply& reply);

}  // namespace touchstone::judge
