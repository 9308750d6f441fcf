// What python_facts.py says of Python sources.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "judge/measure/source/source_copy.h"
#include "judge/measure/source/source_text.h"

namespace touchstone::judge {

// python_facts.py, whole.
extern const char* const kPythonFacts;

struct PythonFile {
  TestText tests;
  std::vector<Mutation> mutations;
};
struct PythonFacts {
  std::vector<FunctionText> functions;
  std::vector<std::string> dead;
  std::vector<std::string> unused_imports;
  int duplicated_lines = 0;
  std::map<std::string, PythonFile> files;  // by the requested name
};
// Parses the files in the jail. Nothing where one is no Python.
std::optional<PythonFacts> python_facts(const Session& session, const SourceCopy& copy,
                                        const std::vector<std::string>& files);

}  // namespace touchstone::judge
