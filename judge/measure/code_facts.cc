// What the sources say of themselves: functions that nothing reaches, and tests that notice bugs.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <set>

#include "judge/contender/python.h"
#include "judge/measure/session.h"
#include "judge/sandbox/read_file.h"
#include "judge/sandbox/sandbox.h"
#include "judge/sandbox/work_folder.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxCountedSource = 4 << 20;
constexpr std::size_t kMaxMutants = 8;
constexpr double kMutantBuildSeconds = 30.0;
constexpr double kTestSeconds = 10.0;
constexpr double kOwnTestsSeconds = 15.0;

bool compiled(const Session& session) {
  return session.record.language == "c" || session.record.language == "cpp";
}

bool is_test_file(const fs::path& file) {
  const std::string stem = file.stem().string();
  return stem.starts_with("test_") || stem.ends_with("_test") || stem == "test";
}

// A copy of the contender's files, with one of them changed, and commands run beside it. Compilers
// may write beside the sources; what was compiled, or is interpreted, may write to /tmp only.
class Bench {
 public:
  explicit Bench(const Session& session) : session_(session) {
    fs::create_directories(folder_.path() / "source");
    std::error_code error;
    for (fs::directory_iterator i(session.contender.folder, error);
         !error && i != fs::directory_iterator(); i.increment(error)) {
      std::error_code ignored;  // what cannot be looked at, or is too large for a source, stays out
      if (i->is_symlink(ignored) || !i->is_regular_file(ignored)) continue;
      if (static_cast<int64_t>(i->file_size(ignored)) > kMaxCountedSource || ignored) continue;
      put(i->path().filename(), read_file(i->path(), kMaxCountedSource));
    }
    make_readable(folder_.path() / "source");
  }

  void put(const fs::path& file, const std::string& text) const {
    write_file(folder_.path() / "source" / file, text);
    make_readable(folder_.path() / "source" / file);
  }

  // Where the folder is seen from inside.
  std::string place() const {
    const Sandbox& sandbox = session_.record.sandbox;
    return sandbox.enabled && sandbox.files ? std::string("/judge")
                                            : fs::canonical(folder_.path()).string();
  }
  // A file of the contender: whole, so that none can pass for an option.
  std::string file(const fs::path& name) const { return place() + "/source/" + name.string(); }

  CommandResult run(std::vector<std::string> words, double seconds, bool compiler) const {
    JailSpec spec;
    add_system_libraries(spec);
    if (compiler) add_compilers(spec);
    if (!compiler && session_.record.language == "numpy" && find_python()) {
      add_python(spec, *find_python());
    }
    add_path(spec, session_.record.sandbox, folder_.path(), "/judge", compiler);
    spec.folder = place() + "/source";
    spec.forks = compiler ? "allow" : "report";
    spec.limits = {{"file_bytes", int64_t{256} << 20},
                   {"files", 256},
                   {"address_bytes", int64_t{16} << 30},
                   {"cpu_seconds", static_cast<int64_t>(seconds)},
                   {"memory_bytes", session_.options.limits.memory_bytes}};
    spec.environment = {"PATH=/usr/bin:/bin", "LC_ALL=C", "TMPDIR=/tmp", "HOME=/tmp"};
    spec.arguments = std::move(words);
    return run_in_jail(std::move(spec), session_.record.sandbox, seconds);
  }

  // The sources, and an adapter that is one, as a compiler wants them.
  std::vector<std::string> sources() const {
    std::vector<std::string> files;
    for (const fs::path& source : session_.record.binding.sources) files.push_back(file(source));
    return files;
  }

 private:
  const Session& session_;
  WorkFolder folder_;
};

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

// A position in a source where one operator becomes another.
struct Mutant {
  std::size_t at = 0;
  std::size_t length = 0;
  std::string_view by;
};

std::vector<Mutant> mutants_of(const std::string& text, bool python) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kChanges = {{
      {" + ", " - "},
      {" - ", " + "},
      {" * ", " + "},
      {" / ", " * "},
      {" < ", " <= "},
      {" += ", " -= "},
      {" > ", " >= "},
  }};
  std::vector<Mutant> all;
  std::size_t begin = 0;
  bool block_comment = false;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    const std::size_t first = line.find_first_not_of(" \t");
    const bool preprocessor = first != std::string::npos && line[first] == '#';
    if (line.find("/*") != std::string::npos) block_comment = true;
    const bool comment = block_comment || preprocessor;
    if (line.find("*/") != std::string::npos) block_comment = false;
    line = line.substr(0, line.find(python ? "#" : "//"));
    for (const auto& [from, to] : kChanges) {
      const std::size_t at = line.find(from);
      if (comment || at == std::string::npos) continue;
      all.push_back({begin + at, from.size(), to});
    }
    begin = end + 1;
  }
  // Spread over the file, the same ones every time.
  std::vector<Mutant> chosen;
  const std::size_t count = std::min(kMaxMutants, all.size());
  for (std::size_t i = 0; i < count; ++i) chosen.push_back(all[i * all.size() / count]);
  return chosen;
}

// Builds and runs the tests on the sources as they lie there. Nothing when they do not compile.
std::optional<bool> tests_pass(const Session& session, const Bench& bench, const fs::path& test) {
  if (session.record.language == "numpy") {
    constexpr const char* kRun =
        "import sys, runpy; test = sys.argv.pop(1); sys.path.insert(0, '.'); "
        "runpy.run_path(test, run_name='__main__')";
    const CommandResult run = bench.run(
        {find_python()->program, "-I", "-B", "-c", kRun, bench.file(test)}, kTestSeconds, false);
    return run.finished && run.status == 0;
  }
  const bool c = session.record.language == "c";
  std::vector<std::string> words = {
      c ? "/usr/bin/gcc" : "/usr/bin/g++", "-O1", "-w", "-pthread", "-fopenmp",
      c ? "-std=gnu17" : "-std=gnu++20"};
  for (const std::string& source : bench.sources()) words.push_back(source);
  for (const std::string& word :
       {bench.file(test), std::string("-o"), bench.place() + "/own_tests", std::string("-lm")}) {
    words.push_back(word);
  }
  const CommandResult built = bench.run(words, kMutantBuildSeconds, true);
  if (!built.finished || built.status != 0) return std::nullopt;
  const CommandResult run = bench.run({bench.place() + "/own_tests"}, kTestSeconds, false);
  return run.finished && run.status == 0;
}

fs::path find_test(const Session& session) {
  if (!fs::is_directory(session.contender.folder)) return {};
  const bool python = session.record.language == "numpy";
  for (const fs::directory_entry& entry : fs::directory_iterator(session.contender.folder)) {
    const std::string extension = entry.path().extension().string();
    const bool fits =
        python ? extension == ".py"
               : extension == ".c" || extension.starts_with(".cc") || extension == ".cpp";
    if (entry.is_regular_file() && fits && is_test_file(entry.path()))
      return entry.path().filename();
  }
  return {};
}

}  // namespace

void detect_dead_code(Session& session) {
  if (!compiled(session)) return;
  session.log_progress("functions nothing reaches");
  const Bench bench(session);
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
  for (const std::string& source : bench.sources()) words.push_back(source);
  if (!session.record.binding.adapter.empty()) {
    words.push_back(bench.file(session.record.binding.adapter));
  }
  for (const std::string& word :
       {std::string("-o"), bench.place() + "/reached", std::string("-lm")}) {
    words.push_back(word);
  }
  const CommandResult linked = bench.run(words, kMutantBuildSeconds, true);
  if (!linked.finished || linked.status != 0) return;  // mangled names, odd flags: nothing is said
  const std::set<std::string> dead = dead_functions(linked.output);
  session.record.facts["dead functions"] = fmt::format("{}", dead.size());
  if (!dead.empty()) {
    session.record.facts["never called"] = fmt::format("{}", fmt::join(dead, ", "));
  }
}

void run_own_tests(Session& session) {
  if (!compiled(session) && session.record.language != "numpy") return;
  const fs::path test = find_test(session);
  if (test.empty()) return;
  OwnTests& own = session.record.own_tests;
  own.present = true;
  session.log_progress("its own tests");
  const Bench bench(session);
  const std::optional<bool> good = tests_pass(session, bench, test);
  if (!good.has_value() || !*good) {
    own.detail = fmt::format("{} {} on the contender itself", test.string(),
                             good.has_value() ? "fails" : "does not build");
    return;
  }
  const fs::path source = session.record.binding.sources.front();
  const std::string text = read_file(session.contender.folder / source, kMaxCountedSource);
  const auto begin = Clock::now();
  for (const Mutant& mutant : mutants_of(text, session.record.language == "numpy")) {
    if (seconds_since(begin) > kOwnTestsSeconds) break;
    std::string broken = text;
    broken.replace(mutant.at, mutant.length, mutant.by);
    bench.put(source, broken);
    const std::optional<bool> passes = tests_pass(session, bench, test);
    if (!passes.has_value()) continue;
    ++own.mutants;
    if (!*passes) ++own.killed;
  }
  own.detail = fmt::format("{}, against copies with one operator changed", test.string());
}

}  // namespace touchstone::judge
