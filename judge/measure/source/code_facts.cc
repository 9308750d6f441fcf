// What the sources say of themselves: functions, branches, repeated lines, and functions that
// nothing reaches.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "json/json.h"
#include "judge/contender/python.h"
#include "judge/measure/session.h"
#include "judge/measure/source/python_facts.h"
#include "judge/measure/source/source_copy.h"
#include "judge/measure/source/source_text.h"
#include "judge/sandbox/read_file.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxCountedSource = 4 << 20;
constexpr double kLinkSeconds = 30.0;
constexpr double kParseSeconds = 20.0;

bool is_c_family(const Session& session) {
  const std::string& language = session.record.language;
  return language == "c" || language == "cpp" || language == "cuda";
}

// The linker's list of what it threw away, as names of functions that the sources define.
std::set<std::string> dead_functions(const std::string& output) {
  std::set<std::string> names;
  const std::string mark = "'.text.";
  for (std::size_t at = output.find(mark); at != std::string::npos; at = output.find(mark, at)) {
    at += mark.size();
    const std::string name = output.substr(at, output.find('\'', at) - at);
    // Instances of the standard library come and go with their callers.
    const bool library = name.find("St") != std::string::npos && name.starts_with("_Z");
    if (!library && !name.starts_with("startup") && !name.starts_with("unlikely") &&
        !name.starts_with("exit") && !name.starts_with("hot")) {
      names.insert(name);
    }
  }
  return names;
}

void write_functions(const std::vector<FunctionText>& functions, Record& record) {
  record.facts["functions"] = fmt::format("{}", functions.size());
  if (functions.empty()) return;
  const auto longest = std::ranges::max_element(functions, {}, &FunctionText::lines);
  const auto hardest = std::ranges::max_element(functions, {}, &FunctionText::complexity);
  record.facts["longest function"] = fmt::format("{} lines ({})", longest->lines, longest->name);
  record.facts["complexity"] = fmt::format("{} at most ({})", hardest->complexity, hardest->name);
}

void write_dead(const std::vector<std::string>& dead, Record& record) {
  record.facts["dead functions"] = fmt::format("{}", dead.size());
  if (!dead.empty()) record.facts["never called"] = fmt::format("{}", fmt::join(dead, ", "));
}

void text_facts(Session& session) {
  std::vector<std::string> masked;
  std::vector<FunctionText> functions;
  for (const fs::path& source : session.record.binding.sources) {
    masked.push_back(
        masked_source(read_file(session.contender.folder / source, kMaxCountedSource)));
    for (FunctionText& function : functions_of(masked.back())) {
      functions.push_back(std::move(function));
    }
  }
  write_functions(functions, session.record);
  session.record.facts["duplicated lines"] = fmt::format("{}", duplicated_lines(masked));
}

// Functions that the linker discards when only those of the contract are kept.
void linked_facts(Session& session) {
  const SourceCopy copy(session);
  const bool c = session.record.language == "c";
  std::vector<std::string> words = {c ? "/usr/bin/gcc" : "/usr/bin/g++",
                                    "-O0",
                                    "-w",
                                    "-fopenmp",
                                    c ? "-std=gnu17" : "-std=gnu++20",
                                    "-ffunction-sections",
                                    "-nostartfiles",
                                    "-Wl,--gc-sections",
                                    "-Wl,--print-gc-sections"};
  std::string entry;
  for (const auto& [contract, name] : session.record.binding.functions) {
    words.push_back(fmt::format("-Wl,-u,{}", name));
    entry = name;
  }
  if (entry.empty()) return;
  words.push_back(fmt::format("-Wl,-e,{}", entry));
  for (const std::string& source : copy.sources()) words.push_back(source);
  for (const std::string& word :
       {std::string("-o"), copy.place() + "/reached", std::string("-lm")}) {
    words.push_back(word);
  }
  const CommandResult linked = copy.run(words, kLinkSeconds, SourceCopy::Tool::compiler);
  if (!linked.finished || linked.status != 0) return;  // mangled names, odd flags: nothing is said
  const std::set<std::string> dead = dead_functions(linked.output);
  write_dead({dead.begin(), dead.end()}, session.record);
}

void python_source_facts(Session& session) {
  const SourceCopy copy(session);
  std::vector<std::string> files;
  for (const fs::path& source : session.record.binding.sources) {
    files.push_back(copy.file(source));
  }
  const std::optional<PythonFacts> facts = python_facts(session, copy, files);
  if (!facts.has_value()) return;
  write_functions(facts->functions, session.record);
  write_dead(facts->dead, session.record);
  session.record.facts["duplicated lines"] = fmt::format("{}", facts->duplicated_lines);
  if (!facts->unused_imports.empty()) {
    session.record.facts["unused imports"] =
        fmt::format("{}", fmt::join(facts->unused_imports, ", "));
  }
}

}  // namespace

std::optional<PythonFacts> python_facts(const Session& session, const SourceCopy& copy,
                                        const std::vector<std::string>& files) {
  std::vector<std::string> entries;
  for (const auto& [contract, name] : session.record.binding.functions) entries.push_back(name);
  std::vector<std::string> words = {require_python().program, "-I", "-B",
                                    copy.put_script("python_facts.py", kPythonFacts),
                                    fmt::format("{}", fmt::join(entries, ","))};
  words.insert(words.end(), files.begin(), files.end());
  const CommandResult run = copy.run(words, kParseSeconds, SourceCopy::Tool::python);
  if (!run.finished || run.status != 0) {
    throw Error(fmt::format("its sources could not be parsed: {}",
                            run.finished ? run.output.substr(0, 200) : "no end"));
  }
  // It was printed by our own script, over sources that it does not run.
  const Json json = Json::parse_or_null(run.output);
  if (!json.is_object()) return std::nullopt;
  PythonFacts facts;
  for (const Json& f : json.at("functions")) {
    facts.functions.push_back({f.at(0).get<std::string>(), f.at(1).get<int>(), f.at(2).get<int>()});
  }
  facts.dead = json.at("dead").get<std::vector<std::string>>();
  facts.unused_imports = json.at("unused_imports").get<std::vector<std::string>>();
  facts.duplicated_lines = json.at("duplicated_lines").get<int>();
  for (const auto& [path, file] : json.at("files").items()) {
    PythonFile& entry = facts.files[path];
    entry.tests = {file.at("tests").get<int>(), file.at("asserts").get<int>()};
    for (const Json& m : file.at("mutations")) {
      entry.mutations.push_back(
          {m.at(0).get<std::size_t>(), m.at(1).get<std::size_t>(), m.at(2).get<std::string>()});
    }
  }
  return facts;
}

void collect_code_facts(Session& session) {
  session.log_progress("facts about the code");
  if (is_c_family(session)) text_facts(session);
  if (session.record.language == "c" || session.record.language == "cpp") linked_facts(session);
  if (session.record.language == "numpy") python_source_facts(session);
}

}  // namespace touchstone::judge
