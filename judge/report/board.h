// The board in a terminal.
#pragma once

#include <string>
#include <vector>

#include "judge/report/record.h"

namespace touchstone::judge {

// One table per task, best score of a column marked +, worst marked -, then at most 12 lines per
// contender. `color` adds escape codes.
std::string board_text(const std::vector<Record>& records, bool color);

}  // namespace touchstone::judge
