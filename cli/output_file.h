// A report on its way to disk. That it can be written is known before the work begins, and what was
// there before stays until all of it is written.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace touchstone::cli {

class OutputFile {
 public:
  // An empty path means no report. FileError when it cannot be written.
  explicit OutputFile(const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  bool wanted() const { return !path_.empty(); }
  void write(std::string_view text);

 private:
  std::filesystem::path path_;
  std::string beside_;  // written first, then renamed; empty: a pipe or a device, written as it is
};

}  // namespace touchstone::cli
