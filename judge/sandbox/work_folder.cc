#include "judge/sandbox/work_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <system_error>

#include "touchstone/core/error.h"

namespace touchstone::judge {

WorkFolder::WorkFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "touchstone-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) {
    throw FileError(fmt::format("{}: {}", pattern, std::generic_category().message(errno)));
  }
  path_ = pattern;
}

WorkFolder::~WorkFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace touchstone::judge
