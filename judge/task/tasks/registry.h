// The tasks that are built into the program.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "judge/task/task.h"

namespace touchstone::judge {

// All tasks built into the program, in the order of the board.
const std::vector<std::unique_ptr<Task>>& tasks();
const Task& find_task(const std::string& id);  // InvalidArgument names the nearest

}  // namespace touchstone::judge
