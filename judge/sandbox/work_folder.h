// A temporary directory that is removed with its owner.
#pragma once

#include <filesystem>

namespace touchstone::judge {

class WorkFolder {
 public:
  WorkFolder();
  ~WorkFolder();
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path outer_;
  std::filesystem::path path_;
};

// Makes a file, or a folder and all in it, readable for programs that run as another user, whatever
// the modes of the originals and the mask of this process were. Links are left alone.
void make_readable(const std::filesystem::path& path);

}  // namespace touchstone::judge
