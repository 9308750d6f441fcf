// Folders to start from: what a person or a model needs to write a contender.
#pragma once

#include <filesystem>
#include <vector>

#include "judge/task/task.h"

namespace touchstone::judge {

// Writes into `folder`, which must not exist or be empty, one folder per task:
//   PROMPT.md   the statement
//   cpp/ c/ numpy/ cuda/   templates that build, start, and refuse every call
//   adapter/    code under foreign names with an adapter, which passes
// and a README.md with the commands. Returns what was written, relative to `folder`.
// InvalidArgument when the folder holds something already.
std::vector<std::filesystem::path> deploy(const std::filesystem::path& folder,
                                          const std::vector<const Task*>& tasks);

}  // namespace touchstone::judge
