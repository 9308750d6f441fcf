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
  // Others of the machine do not get in; whoever works in there may be another user.
  outer_ = pattern;
  path_ = outer_ / "work";
  std::filesystem::create_directory(path_);
  std::filesystem::permissions(path_, std::filesystem::perms::all);
}

WorkFolder::~WorkFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(outer_, ignored);
}

void make_readable(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  constexpr auto kFile = fs::perms::owner_read | fs::perms::owner_write | fs::perms::group_read |
                         fs::perms::others_read;
  constexpr auto kFolder =
      kFile | fs::perms::owner_exec | fs::perms::group_exec | fs::perms::others_exec;
  const auto share = [&](const fs::path& one) {
    const fs::file_status status = fs::symlink_status(one);
    if (fs::is_directory(status)) fs::permissions(one, kFolder);
    if (fs::is_regular_file(status)) fs::permissions(one, kFile);
  };
  share(path);
  if (!fs::is_directory(fs::symlink_status(path))) return;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(path)) {
    share(entry.path());
  }
}

}  // namespace touchstone::judge
