// What a judgment leaves behind. Scores, boards, duels and pages are pure functions of records:
// nothing is known to a report that is not in here, and old records can be scored by new rules.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "judge/contender/contender.h"
#include "judge/sandbox/sandbox.h"
#include "judge/task/task.h"

namespace touchstone::judge {

inline constexpr int kRecordSchema = 1;

enum class Verdict {
  pass,
  partial,       // right in all it does, and refuses what the task allows it to lack
  wrong,         // a case has the wrong answer, or none
  unsafe,        // memory was touched that is not the contender's, or it crashed
  unstable,      // the same case right once and wrong once
  limit,         // over the time or the memory
  nobuild,       // does not compile, link or load
  rule,          // uses what the sandbox forbids
  proven_cheat,  // an experiment shows an answer that was not computed
  impossible,    // faster than the memory of this machine, twice
  untested,      // this machine lacks what it needs: nothing is said about the contender
  judge_error    // a control of the judge failed: nothing is said about the contender
};

std::string_view name_of(Verdict verdict);     // "PROVEN-CHEAT", as on the board
Verdict parse_verdict(std::string_view name);  // its inverse; InvalidArgument

struct CaseRecord {
  std::string id;  // "c17", "r3": what sentences of a report refer to
  CaseSpec spec;
  std::string title;  // of a relation; empty for a case
  std::vector<std::string> probes;
  bool gates = true;  // its failure alone is a verdict; else it costs points
  Ending ending = Ending::ok;
  CaseCheck check;
  std::string lack = {};  // the feature that the contender lacks and the case needs: it was refused
  double seconds = 0.0;   // of its first run, by the wall clock: what another one will cost
};

// What kind of failure it is: "wrong dx", "no number in y", "crashed", "refused". A smaller case has to
// fail in the same way to stand for it.
std::string failure_kind(Ending ending, const CaseCheck& check);

// A feature of the card that the contender does not have.
struct LackRecord {
  std::string id;
  std::string title;
  std::string where;      // the condition, or the output that is left out
  bool declared = false;  // in contender.json
  int refused = 0;        // cases that were refused for it, or answered without the output,
  int cases = 0;          // cases that need it
};

struct ProbeRecord {
  Probe probe;
  bool tested = false;
  bool passed = false;
  std::vector<std::string> failed;  // ids of the cases that failed
};

struct Witness {  // a failure, shrunk, with the command that shows it again
  std::string case_id;
  CaseSpec smallest;
  std::string reason;
  std::string replay;
};

// Something an experiment showed that is not the answer of one case.
struct Finding {
  std::string id;       // "f2"
  std::string kind;     // one of the kinds of score.h: crashed, sanitizer, leak, cached_answer, ...
  std::string text;     // one line, as it is printed
  std::string case_id;  // where it was seen; may be empty
};

struct Interval {
  double value = 0.0;
  double low = 0.0;
  double high = 0.0;
  int samples = 0;
};

struct SpeedRecord {  // one timed shape
  std::string id;     // "s1"
  CaseSpec shape;
  Interval seconds;
  std::map<std::string, Interval> ratio_to;  // peer -> this contender's time over the peer's
  double fastest_seconds = 0.0;              // of all right contenders of the session
  double bytes = 0.0;
  double flops = 0.0;
  double copy_seconds = 0.0;     // what moving the bytes costs at least, as measured here
  double compute_seconds = 0.0;  // what the arithmetic costs at least, as measured here
  double floor_seconds = 0.0;    // the larger of the two: the bound that is nearer
  double share_of_roof = 0.0;    // floor over time
  std::string roof;              // which one it is: "copy" or "peak"
  bool impossible = false;
};

struct MemoryPoint {
  int64_t n = 0;
  int64_t io_bytes = 0;     // inputs and outputs
  int64_t extra_bytes = 0;  // most held beyond them, state included
  int64_t least_bytes = 0;  // of it, what every implementation needs
  int64_t kept_bytes = 0;   // still held after the last call
  double seconds = 0.0;     // of the timed calls, run once more; 0 where that was not measured
};

struct MemoryRecord {
  std::string parameter;  // which one grows
  std::vector<MemoryPoint> ladder;
  std::optional<double>
      exponent;  // of the extra bytes in n; nothing when there are none to speak of
  std::optional<double> leaked_bytes_per_call;
  std::optional<double> time_exponent;  // of the seconds in n
  int64_t sizes = 0;                    // of the plan; 0: not recorded
  // Sizes are missing where a call did not end well, or for want of time: growth is not known then.
  bool whole() const { return static_cast<int64_t>(ladder.size()) >= sizes && !ladder.empty(); }
};

// How often the pages of one input were read, with only a few of them readable at a time.
struct InputReads {
  std::string input;
  int64_t pages = 0;
  int64_t reads = 0;
  double per_page() const { return static_cast<double>(reads) / static_cast<double>(pages); }
};

// An untimed run in which pages are taken away again after they were read.
struct TrafficRecord {
  std::string not_measured = "not run";  // why; empty when it was
  CaseSpec shape;
  int64_t window_pages = 0;  // readable at a time
  std::vector<InputReads> inputs;
};

// Something a contender says of itself, beside what was measured.
struct ClaimRecord {
  std::string id;       // "k1"
  std::string text;     // the line as it was written
  std::string source;   // "contender.json", "README.md:12"
  std::string measure;  // of the card; empty: no pattern of the card matches
  std::optional<double> claimed;
  std::string peer;                      // for a speed: against whom
  std::string state = "not measurable";  // or "held", "broken"
  std::string because;                   // the number that was measured
};

// What stands beside the code. Listed, never scored.
struct DocumentationRecord {
  std::vector<std::string> files;
  int64_t words = 0;
  std::vector<std::string> topics;   // titles of the card's topics that are written about
  std::vector<std::string> missing;  // and those that are not
};

// The same contender under another seed.
struct SeedRun {
  uint64_t seed = 0;
  Verdict verdict = Verdict::untested;
  std::map<std::string, double> scores;  // by dimension, and "overall"; what was tested
};

struct DeterminismRecord {
  int cases = 0;                       // run again
  int repeated = 0;                    // of these, with the same bits at the same addresses
  int moved = 0;                       // and with the same bits at other addresses
  std::vector<std::string> differing;  // ids
};

struct OwnTests {
  bool present = false;
  std::string detail;       // how they were run, or why not
  int mutants = 0;          // broken copies of the contender's code they were run against
  int killed = 0;           // of these, noticed
  int tests = 0;            // functions that test, or one where the file itself is the test
  int asserts = 0;          // places that can fail a test
  int not_ended = 0;        // broken copies on which they did not end; counted as noticed
  int not_run = 0;          // broken copies that did not compile, or for which no time was left
  bool all_counted = true;  // false: there may be tests that were not counted
};

struct Score {
  std::optional<double> value;  // 0-100; nothing when untested
  double low = 0.0;
  double high = 0.0;
  std::vector<std::string> evidence;  // ids of cases, speeds, probes, findings
  std::string because;                // one line
};

struct Record {
  int schema = kRecordSchema;
  std::string task;
  int task_version = 1;
  std::string contender;
  std::string author;  // as contender.json names one; may be empty
  std::string path;    // as it was given, for replay commands
  std::string language;
  std::string source_hash;
  Binding binding;
  std::string seed_commitment;                 // SHA-256, printed before the contender is loaded
  uint64_t seed = 0;                           // revealed after
  bool small = false;                          // the short form
  std::map<std::string, std::string> machine;  // CPU, cores, compiler, date, ...
  Sandbox sandbox;
  BuildResult build;
  std::vector<CaseRecord> cases;
  std::vector<CaseRecord> relations;
  std::vector<ProbeRecord> probes;
  std::vector<LackRecord> lacks;
  // One sentence that separates the cases that failed or were refused from the others by their
  // parameters: "fails exactly where group > 1: 76 of 76". Empty where none does.
  std::string diagnosis;
  std::vector<Witness> witnesses;
  std::vector<Finding> findings;
  std::vector<SpeedRecord> speeds;
  std::string speeds_withheld;   // why; empty when they are given or were not requested
  std::optional<Interval> twin;  // the A/A ratio of the session
  MemoryRecord memory;
  DeterminismRecord determinism;
  OwnTests own_tests;
  TrafficRecord traffic;
  std::vector<ClaimRecord> claims;
  DocumentationRecord documentation;
  std::vector<SeedRun> seeds;                // of --seeds, this one included; empty without
  std::map<std::string, std::string> facts;  // warnings, size, lines, symbols
  std::map<std::string, double> weights;     // of the task card
  std::string judge_error;                   // what went wrong on our side; empty when nothing did
  std::string untested;  // what this machine lacks to judge it; empty when nothing
  Verdict verdict = Verdict::untested;
  std::string verdict_because;
  std::map<std::string, Score> scores;               // by dimension, and "overall"
  double seconds = 0.0;                              // the whole judgment
  std::map<std::string, double> phase_seconds = {};  // of it, by what was done
};

std::string to_json(const Record& record);
Record record_from_json(const std::string& text);  // CorruptData says what is wrong

// Several records in one file: what `touchstone judge --json` writes.
std::string to_json(const std::vector<Record>& records);
std::vector<Record> records_from_json(const std::string& text);

}  // namespace touchstone::judge
