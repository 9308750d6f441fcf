// The examination of one contender: everything but speed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>

#include "judge/contender/contender.h"
#include "judge/report/record.h"
#include "judge/run/runner.h"
#include "judge/sandbox/work_folder.h"
#include "judge/task/case_store.h"
#include "judge/task/task.h"

namespace touchstone::judge {

// What the judgments of one task and one seed have in common: cases with their right answers, and
// controls that no contender takes part in. For any number of threads.
class TaskReference {
 public:
  TaskReference(const Task& task, uint64_t seed, bool small)
      : plan(task.plan(seed, small)), cases(task) {
    cases.expect(plan.cases);
  }

  // Of some cases, how many the answer in the next lower precision fails.
  struct PrecisionControl {
    int cases = 0;
    int failed = 0;
  };
  const PrecisionControl& precision_control();

  const Plan plan;
  CaseStore cases;

 private:
  std::once_flag once_;
  PrecisionControl control_;
};

struct JudgeOptions {
  bool small = false;            // the short form: fewer cases and shapes
  bool sandbox = true;           // false is for debugging, and stamped on the report
  std::optional<uint64_t> seed;  // drawn from the system when absent
  bool shrink = true;            // look for the smallest case that fails
  bool sanitize = true;          // a subset of the cases under ASan and UBSan
  bool speed = true;             // judge_all measures; examine never does
  bool timing_only = false;      // judge_all takes all contenders for right and only measures
  // Only the verdict is wanted: the first gating failure ends the examination, and what costs time
  // but never a verdict is left out.
  bool brief = false;
  // With brief: after a failure that only costs points there are no experiments. For contenders that
  // are known to be wrong somewhere.
  bool one_failure = false;
  const BuildResult* built = nullptr;  // taken instead of building; it outlives the examination
  TaskReference* reference = nullptr;  // of this task, seed and form; null: one of its own
  Limits limits;
  // judge_all examines two contenders at once: these come one at a time, from either thread.
  // What is being done, for a person who waits; may be empty.
  std::function<void(std::string_view)> progress;
  // Called with the commitment to the seed before the contender is built or loaded; may be empty.
  std::function<void(std::string_view)> committed;
  // Called with each contender's record before speeds are measured; may be empty.
  std::function<void(const Record&)> examined;
};

uint64_t drawn_seed();  // from the system

// A contender, built and examined in everything but speed.
struct Examination {
  Record record;
  Contender contender;
  std::shared_ptr<WorkFolder> work;  // holds what record.build points to
};
Examination examine(const Contender& contender, const Task& task, const JudgeOptions& options);

// The record of a contender whose files cannot be read: NOBUILD, so that others can be judged.
Record unreadable_record(const std::string& name, const std::filesystem::path& path,
                         const Task& task, const std::string& why, const JudgeOptions& options);

// A contender that is only built: enough to be timed. Timed answers are checked by measure_speeds.
Examination build_only(const Contender& contender, const Task& task, const JudgeOptions& options);

}  // namespace touchstone::judge
