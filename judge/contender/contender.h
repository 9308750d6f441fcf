// A contender: one implementation of a task, found on disk and made ready to run.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "judge/task/task.h"

namespace touchstone::judge {

enum class Language { c, cpp, cuda, shared_library, numpy };

std::string_view name_of(Language language);     // "shared_library"
Language parse_language(std::string_view name);  // its inverse; InvalidArgument

// contender.json, or what was proposed from the signatures in its place.
struct Binding {
  std::map<std::string, std::string> functions;  // name in the contract -> name in the contender
  std::vector<std::filesystem::path> sources;    // relative to the contender's folder
  std::filesystem::path adapter;                 // C, C++ or Python file; may be empty
  bool proposed = false;                         // guessed by the judge
  std::vector<std::string> lacks = {};           // features of the card that it says it lacks
};

struct Contender {
  std::string name;
  std::filesystem::path folder;
  Language language = Language::cpp;
  Binding binding;
  bool peer = false;                     // contender.json says that others are measured beside it
  bool directory = false;                // all of its folder is its own, not one file among others
  std::string author = {};               // as contender.json names one
  std::vector<std::string> claims = {};  // of contender.json, line by line
};

// Reads a folder, a source file, a shared library or a Python file. Bad paths and bad adapters are
// InvalidArgument or CorruptData, never a verdict.
Contender read_contender(const std::filesystem::path& path, const Task& task);

struct BuildResult {
  bool built = false;
  std::filesystem::path library;  // what a child loads: the code and its ABI shim
  std::filesystem::path
      sanitized;     // the same under ASan and UBSan; empty where that has no meaning
  std::string log;   // compiler output, with the folder's name taken out
  int warnings = 0;  // at the fixed level of the judge
  double seconds = 0.0;
  int64_t code_bytes = 0;
  int64_t source_lines = 0;
};

// Compiles inside the sandbox with fixed flags; `work` is an empty folder of the judge's, which has
// to stay as long as children run. Names are resolved when a child starts: contenders that differ
// only in binding.functions may share one result.
BuildResult build_contender(const Contender& contender, const Task& task,
                            const std::filesystem::path& work, const struct Sandbox& sandbox,
                            bool sanitized = true);

}  // namespace touchstone::judge
