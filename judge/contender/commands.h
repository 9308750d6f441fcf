// Command lines that reports print: for judging a contender again and for replaying a case.
#pragma once

#include <string>
#include <string_view>

#include "judge/task/task.h"

namespace touchstone::judge {

// The command that judges a contender, and those that show a case or a relation again.
std::string judge_command(std::string_view path, std::string_view task);
std::string replay_command(std::string_view path, std::string_view task, const CaseSpec& spec);
std::string replay_command(std::string_view path, std::string_view task, const Relation& relation);

}  // namespace touchstone::judge
