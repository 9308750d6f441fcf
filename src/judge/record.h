// What a judgement leaves behind. Scores, boards, duels and pages are pure functions of records:
// nothing is known to a report that is not in here, and old records can be scored by new rules.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "judge/runner.h"
#include "judge/task.h"

namespace touchstone::judge {

inline constexpr int kRecordSchema = 1;

enum class Verdict {
  pass, wrong, unsafe, unstable, limit, nobuild, rule, proven_cheat, impossible, untested,
  judge_error
};

struct CaseRecord {
  std::string id;  // "c17": what sentences of a report refer to
  CaseSpec spec;
  std::vector<std::string> probes;
  Ending ending = Ending::ok;
  CaseCheck check;
};

struct Witness {  // a failure, shrunk, with the command that shows it again
  std::string case_id;
  CaseSpec smallest;
  std::string reason;
  std::string replay;
};

struct Interval {
  double value = 0.0, low = 0.0, high = 0.0;
  int samples = 0;
};

struct SpeedRecord {  // one timed shape
  std::string id;
  CaseSpec shape;
  Interval seconds;
  std::map<std::string, Interval> ratio_to;  // peer's name -> its time over ours
  double share_of_roof = 0.0;
  std::string roof;  // "copy" or "peak"
  bool impossible = false;
};

struct MemoryRecord {
  std::vector<std::pair<int64_t, int64_t>> extra_bytes;  // N -> peak bytes over inputs and outputs
  double exponent = 0.0;
  int64_t state_bytes = 0;
  int64_t least_state_bytes = 0;  // of the best known way
  int64_t leaked_bytes_per_call = 0;
};

struct Score {
  std::optional<double> value;        // 0-100; nothing when untested
  double low = 0.0, high = 0.0;
  std::vector<std::string> evidence;  // ids of cases, speeds, probes, facts
  std::string because;                // one line
};

struct Record {
  int schema = kRecordSchema;
  std::string task;
  int task_version = 1;
  std::string contender;
  std::string language;
  std::string source_hash;
  Binding binding;
  std::string seed_commitment;  // SHA-256, printed before the contender is loaded
  uint64_t seed = 0;            // revealed after
  std::map<std::string, std::string> machine;  // CPU, cores, compiler, date, ...
  Sandbox sandbox;
  BuildResult build;
  std::vector<CaseRecord> cases;
  std::vector<CaseRecord> relations;
  std::map<std::string, bool> probes;
  std::vector<Witness> witnesses;
  std::vector<SpeedRecord> speeds;
  std::string speeds_withheld;  // why, when the A/A control failed
  Interval twin;                // the A/A ratio of this run
  MemoryRecord memory;
  bool deterministic = true;
  std::map<std::string, std::string> facts;  // warnings, size, lines, symbols
  Verdict verdict = Verdict::untested;
  std::string verdict_because;
  std::map<std::string, Score> scores;  // by dimension, and "overall"
  double seconds = 0.0;                 // the whole judgement
};

std::string to_json(const Record& record);
Record record_from_json(const std::string& text);  // CorruptData says what is wrong

}  // namespace touchstone::judge
