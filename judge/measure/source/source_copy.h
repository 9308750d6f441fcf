// A copy of a contender's files in a folder of the judge, and commands run beside it in a jail: for
// looks at the code that may change it. Compilers may write beside the sources; what was compiled,
// or is interpreted, may write to /tmp only.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "judge/measure/session.h"
#include "judge/sandbox/sandbox.h"
#include "judge/sandbox/work_folder.h"

namespace touchstone::judge {

class SourceCopy {
 public:
  // The sources, the adapter and the small files beside them; of a contender that is a folder, those
  // of the folders in it too.
  explicit SourceCopy(const Session& session);

  void put(const std::filesystem::path& file, const std::string& text) const;

  // Where the folder is seen from inside: sources lie in source/.
  std::string place() const;
  // A file of the contender: whole, so that none can pass for an option.
  std::string file(const std::filesystem::path& name) const;
  // A script of the judge, beside the copy; returns its name in the jail.
  std::string put_script(const std::string& name, const std::string& text) const;

  enum class Tool { compiler, python, program };
  // What a compiler left is gone before the next one runs: by it a source could count its builds.
  CommandResult run(std::vector<std::string> words, double seconds, Tool tool) const;

  // All that was copied, relative to the contender's folder.
  const std::vector<std::filesystem::path>& files() const { return files_; }
  // False where something was too large, too deep or too much to be copied.
  bool complete() const { return complete_; }

  // Sources and adapter, for a compiler.
  std::vector<std::string> sources() const;

 private:
  void remove_outputs() const;

  const Session& session_;
  WorkFolder folder_;
  std::vector<std::filesystem::path> files_;
  bool complete_ = true;
};

}  // namespace touchstone::judge
