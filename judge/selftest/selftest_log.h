// What a self-test has done so far, in a file: one that was stopped goes on where it was.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>

#include "judge/selftest/selftest.h"

namespace touchstone::judge {

// One line of JSON for each contender, written when it is done. A file may hold several seeds; rows
// of other seeds, or of the other form, are left alone.
class SelfTestLog {
 public:
  SelfTestLog() = default;  // of nothing
  // FileError: cannot be read or written. CorruptData: something else than a log is in it; of the
  // last line alone a part may be missing, which a kill leaves behind.
  SelfTestLog(const std::filesystem::path& file, std::uint64_t seed, bool small);

  // Takes over what is known about the row, if anything is.
  bool restore(const std::string& id, SelfTestRow& row) const;
  void add(const std::string& id, const SelfTestRow& row);

 private:
  void read(const std::filesystem::path& file);

  std::uint64_t seed_ = 0;
  bool small_ = false;
  std::map<std::string, SelfTestRow> known_;  // by task/kind/name
  std::ofstream file_;
};

}  // namespace touchstone::judge
