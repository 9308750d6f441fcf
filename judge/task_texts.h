// The cards and statements of the tasks, compiled into the program.
#pragma once

#include <string_view>

namespace touchstone::judge {

// "softmax_topk/task.json", "softmax_topk/PROMPT.md"; empty when there is no such text.
std::string_view text(std::string_view name);

}  // namespace touchstone::judge
