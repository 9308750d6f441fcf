// Tests that came with the contender: how many, whether they can fail, and how many broken copies
// of the contender they notice.
#include <fmt/format.h>

#include <algorithm>
#include <array>

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

constexpr int64_t kMaxTestSource = 4 << 20;
constexpr std::size_t kMaxMutants = 8;
constexpr std::size_t kMaxTestFiles = 4;
constexpr double kMutantBuildSeconds = 30.0;
constexpr double kTestSeconds = 10.0;
constexpr double kOwnTestsSeconds = 15.0;

// Runs a file as a program; where it only defines tests, calls them: those without arguments, and
// the cases of unittest. What neither runs is told in the last line.
constexpr const char* kPythonTests = R"python(
import inspect, runpy, sys, unittest
sys.path.insert(0, '.')
space = runpy.run_path(sys.argv[1], run_name='__main__')
ran = skipped = 0
with open(sys.argv[1], encoding='utf-8') as file:
    runs_itself = '__main__' in file.read()
if not runs_itself:
    for name, value in list(space.items()):
        if inspect.isclass(value) and issubclass(value, unittest.TestCase):
            suite = unittest.defaultTestLoader.loadTestsFromTestCase(value)
            result = unittest.TextTestRunner(stream=sys.stderr).run(suite)
            ran += result.testsRun
            if not result.wasSuccessful():
                sys.exit(1)
        elif name.startswith('test') and inspect.isfunction(value):
            needed = [p for p in inspect.signature(value).parameters.values()
                      if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY,
                                                            p.POSITIONAL_OR_KEYWORD)]
            if needed:
                skipped += 1
                continue
            value()
            ran += 1
print(f'\nown tests: ran {ran} skipped {skipped}')
)python";

enum class TestOutcome { passed, failed, not_ended, not_built };

struct TestRun {
  TestOutcome outcome = TestOutcome::passed;
  std::string said;  // the last line of what it printed
};

std::string last_line(const std::string& output) {
  std::size_t end = output.find_last_not_of(" \n\r\t");
  if (end == std::string::npos) return {};
  const std::size_t begin = output.rfind('\n', end);
  std::string line = output.substr(begin == std::string::npos ? 0 : begin + 1,
                                   end - (begin == std::string::npos ? 0 : begin + 1) + 1);
  return line.substr(0, 160);
}

bool is_test_file(const fs::path& file) {
  const std::string stem = file.stem().string();
  return stem.starts_with("test_") || stem.ends_with("_test") || stem == "test";
}

// Code that is called a test, or lies in a folder of tests, and is none of those that are counted.
bool may_hold_tests(const fs::path& file) {
  constexpr std::array<std::string_view, 7> kCode = {".c",  ".cc", ".cpp", ".cxx",
                                                     ".cu", ".py", ".sh"};
  if (std::ranges::find(kCode, file.extension().string()) == kCode.end()) return false;
  const std::string folder = file.parent_path().filename().string();
  return is_test_file(file) || folder == "test" || folder == "tests";
}

class OwnTestRuns {
 public:
  explicit OwnTestRuns(Session& session)
      : session_(session), copy_(session), python_(session.record.language == "numpy") {}

  // All test files of its folder and the folders in it. What looks like a test and is not counted is
  // noted.
  std::vector<fs::path> find() const {
    std::vector<fs::path> files;
    bool& all_counted = session_.record.own_tests.all_counted;
    for (const fs::path& file : copy_.files()) {
      const std::string extension = file.extension().string();
      const bool fits =
          python_ ? extension == ".py"
                  : extension == ".c" || extension.starts_with(".cc") || extension == ".cpp";
      if (!session_.contender.directory) {
        // One file among others: only the test that is named after it is its own.
        const std::string stem = session_.record.binding.sources.front().stem().string();
        const std::string name = file.stem().string();
        if (name != "test_" + stem && name != stem + "_test") continue;
      }
      if (fits && is_test_file(file)) {
        files.push_back(file);
      } else if (may_hold_tests(file)) {
        all_counted = false;
      }
    }
    all_counted = all_counted && copy_.complete();
    std::ranges::sort(files);
    return files;
  }

  // Counts tests and what can fail them; the operators of the contender that can be exchanged.
  void look(const std::vector<fs::path>& files) {
    OwnTests& own = session_.record.own_tests;
    const fs::path source = session_.record.binding.sources.front();
    text_ = read_file(session_.contender.folder / source, kMaxTestSource);
    if (!python_) {
      for (const fs::path& file : files) {
        add(own,
            tests_of(masked_source(read_file(session_.contender.folder / file, kMaxTestSource))));
      }
      mutations_ = spread(mutations_of(masked_source(text_)), kMaxMutants);
      return;
    }
    std::vector<std::string> names = {copy_.file(source)};
    for (const fs::path& file : files) names.push_back(copy_.file(file));
    const std::optional<PythonFacts> facts = python_facts(session_, copy_, names);
    if (!facts.has_value()) {
      own.all_counted = false;
      return;
    }
    for (std::size_t i = 1; i < names.size(); ++i) add(own, facts->files.at(names[i]).tests);
    mutations_ = spread(facts->files.at(names[0]).mutations, kMaxMutants);
  }

  TestRun run(const fs::path& test) const { return python_ ? run_python(test) : run_native(test); }

  // All test files on one broken copy: noticed where one of them fails.
  TestRun run_all(const std::vector<fs::path>& files) const {
    for (const fs::path& file : files) {
      TestRun run_of_file = run(file);
      if (run_of_file.outcome != TestOutcome::passed) return run_of_file;
    }
    return {};
  }

  // A copy that computes the same. Tests that tell it from the contender look at its text, and would
  // notice every broken copy by that.
  TestRun run_same(const std::vector<fs::path>& files) const {
    const fs::path source = session_.record.binding.sources.front();
    copy_.put(source, text_ + (python_ ? "\n# the same\n" : "\n// the same\n"));
    return run_all(files);
  }

  void against_mutants(const std::vector<fs::path>& files) {
    OwnTests& own = session_.record.own_tests;
    const fs::path source = session_.record.binding.sources.front();
    const auto begin = Clock::now();
    for (const Mutation& mutation : mutations_) {
      if (seconds_since(begin) > kOwnTestsSeconds) {
        ++own.not_run;
        continue;
      }
      std::string broken = text_;
      broken.replace(mutation.at, mutation.length, mutation.by);
      copy_.put(source, broken);
      const TestOutcome outcome = run_all(files).outcome;
      if (outcome == TestOutcome::not_built) {
        ++own.not_run;
        continue;
      }
      ++own.mutants;
      if (outcome != TestOutcome::passed) ++own.killed;
      if (outcome == TestOutcome::not_ended) ++own.not_ended;
    }
  }

 private:
  static void add(OwnTests& own, const TestText& text) {
    own.tests += text.tests;
    own.asserts += text.asserts;
  }

  static TestRun ended(const CommandResult& run) {
    if (!run.finished) return {TestOutcome::not_ended, ""};
    return {run.status == 0 ? TestOutcome::passed : TestOutcome::failed, last_line(run.output)};
  }

  TestRun run_python(const fs::path& test) const {
    return ended(copy_.run({require_python().program, "-I", "-B",
                            copy_.put_script("own_tests.py", kPythonTests), copy_.file(test)},
                           kTestSeconds, SourceCopy::Tool::python));
  }

  TestRun run_native(const fs::path& test) const {
    const bool c = session_.record.language == "c" && test.extension() == ".c";
    std::vector<std::string> words = {
        c ? "/usr/bin/gcc" : "/usr/bin/g++", "-O1", "-w", "-pthread", "-fopenmp",
        c ? "-std=gnu17" : "-std=gnu++20"};
    for (const std::string& source : copy_.sources()) words.push_back(source);
    for (const std::string& word :
         {copy_.file(test), std::string("-o"), copy_.place() + "/own_tests", std::string("-lm")}) {
      words.push_back(word);
    }
    const CommandResult built = copy_.run(words, kMutantBuildSeconds, SourceCopy::Tool::compiler);
    if (!built.finished || built.status != 0) {
      return {TestOutcome::not_built, last_line(built.output)};
    }
    return ended(
        copy_.run({copy_.place() + "/own_tests"}, kTestSeconds, SourceCopy::Tool::program));
  }

  Session& session_;
  SourceCopy copy_;
  bool python_;
  std::string text_;
  std::vector<Mutation> mutations_;
};

const char* outcome_words(TestOutcome outcome) {
  switch (outcome) {
    case TestOutcome::passed:
      return "passes";
    case TestOutcome::failed:
      return "fails";
    case TestOutcome::not_ended:
      return "did not end";
    case TestOutcome::not_built:
      return "does not build";
  }
  return "";
}

}  // namespace

void run_own_tests(Session& session, bool right) {
  const std::string& language = session.record.language;
  OwnTests& own = session.record.own_tests;
  if (language != "c" && language != "cpp" && language != "numpy") {
    own.all_counted = false;
    return;
  }
  OwnTestRuns runs(session);
  std::vector<fs::path> files = runs.find();
  if (files.empty()) return;
  own.present = true;
  session.log_progress("its own tests");
  runs.look(files);
  if (!right) {
    own.detail = "not run: the contender itself is wrong";
    return;
  }
  std::vector<std::string> names;
  const std::size_t found = files.size();
  if (found > kMaxTestFiles) files.resize(kMaxTestFiles);
  for (const fs::path& file : files) {
    names.push_back(file.string());
    const TestRun good = runs.run(file);
    if (good.outcome == TestOutcome::passed) {
      if (good.said.find("skipped 0") == std::string::npos &&
          good.said.starts_with("own tests: ran ")) {
        names.back() +=
            fmt::format(" ({}; those with arguments are not run)", good.said.substr(11));
      }
      continue;
    }
    own.detail = fmt::format("not run: {} {} on the contender itself{}{}", file.string(),
                             outcome_words(good.outcome), good.said.empty() ? "" : ": ", good.said);
    return;
  }
  if (const TestRun same = runs.run_same(files); same.outcome != TestOutcome::passed) {
    own.detail = fmt::format("not counted: a test {} on a copy with one more comment{}{}",
                             outcome_words(same.outcome), same.said.empty() ? "" : ": ", same.said);
    return;
  }
  runs.against_mutants(files);
  own.detail = fmt::format("{}, against copies with one operator changed", fmt::join(names, ", "));
  if (found > files.size()) {
    own.detail += fmt::format("; {} of {} test files were run", files.size(), found);
  }
}

}  // namespace touchstone::judge
