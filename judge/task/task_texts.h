// The cards, statements and example adapters of the tasks, compiled into the program.
#pragma once

#include <string_view>

namespace touchstone::judge {

// "softmax_topk/task.json", "softmax_topk/adapter/adapter.cc"; empty when there is no such text.
std::string_view text(std::string_view name);

}  // namespace touchstone::judge
