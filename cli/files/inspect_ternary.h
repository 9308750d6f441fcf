#pragma once

#include <string>

namespace touchstone::cli {

// touchstone inspect --ternary: prints what was visited and what is wrong. kNo where anything is.
int inspect_ternary_file(const std::string& path, bool json);

}  // namespace touchstone::cli
