// The judge, judged: a corpus of contenders whose verdicts are known goes through the same
// examination as any other, and the judge has to get them right.
//
//   good        implementations in different styles: none may be rejected
//   partial     good code without something that may be lacked: PARTIAL, and exactly what it lacks
//   mutant      good code with one planted bug: at least 99 % must be caught
//   trivial     contenders that do not do the work: all must fail
//   exploit     attempts to be called right by other means: all must be blocked
//   lookalike   honest code that does what cheats do: all must pass, none may be accused
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "judge/report/record.h"

namespace touchstone::judge {

// The share of mutants that must be caught.
inline constexpr double kMinCaught = 0.99;

struct SelfTestOptions {
  bool small = false;            // short cases, and a part of the corpus
  std::filesystem::path corpus;  // empty: the one of the source tree this program was built from
  bool sandbox = true;
  std::optional<uint64_t> seed;  // drawn from the system when absent
  // Entries whose "task/kind/name" contains this, or one of these, and not what follows a "!": "a,b,!c"
  std::string only;
  int sample = 0;  // size of a sample that does not depend on the seed; 0: all
  int jobs = 0;    // contenders at a time; 0: one for each core, up to 8
  // Rows that are done; one that was stopped goes on where it was. Needs a seed. Empty: none.
  std::filesystem::path log;
  std::function<void(std::string_view)> progress;  // may be empty
};

enum class CorpusKind { good, partial, mutant, trivial, exploit, lookalike };
std::string_view name_of(CorpusKind kind);

// One contender of the corpus.
struct CorpusEntry {
  std::string task;
  CorpusKind kind = CorpusKind::good;
  std::string name;
  std::string what;                          // one line, from the source itself
  std::map<std::string, std::string> flags;  // see tests/judge/corpus/exploits/softmax_topk.cc
  std::filesystem::path source;              // file or folder
  bool shared_source = false;                // one of many in its source: functions end in __name

  bool on_cuda() const { return source.extension() == ".cu"; }
  // Mutants are held to what the right code passes that they were made from.
  std::string device_task() const { return on_cuda() ? task + " on cuda" : task; }
};

// All entries, in a fixed order. CorruptData or FileError when the folder is not a corpus.
std::vector<CorpusEntry> read_corpus(const std::filesystem::path& corpus);

struct SelfTestRow {
  CorpusEntry entry;
  bool counted = true;  // false: the layer that blocks it is missing on this machine
  bool as_expected = false;
  Verdict verdict = Verdict::untested;
  std::string because;  // what the judge said, or why it was not counted
  double seconds = 0.0;
  // Of the right code that mutants were made from: what they are held to.
  std::set<std::string> passed_probes = {};
  std::set<std::string> passed_cases = {};
};

struct SelfTest {
  std::vector<SelfTestRow> rows;
  uint64_t seed = 0;
  Sandbox sandbox;
  double seconds = 0.0;

  int counted(CorpusKind kind, std::string_view task = {}) const;
  int as_expected(CorpusKind kind, std::string_view task = {}) const;
  bool judged() const;  // anything at all: a machine may lack what all of them need
  bool passed() const;  // anything was judged, and every kind is to its own standard
};

SelfTest run_selftest(const SelfTestOptions& options);
// The table, and every row that is not as expected.
std::string format_selftest(const SelfTest& result);
// Runs it and prints to standard output; 0 or 1.
int judge_selftest(bool small);

}  // namespace touchstone::judge
