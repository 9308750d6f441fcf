// A judgment, from a contender on disk to a record.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "judge/contender.h"
#include "judge/record.h"
#include "judge/runner.h"
#include "judge/task.h"

namespace touchstone::judge {

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
  // With brief: a failure that does not gate the verdict ends it too. For contenders that are known
  // to be wrong somewhere.
  bool first_failure = false;
  const BuildResult* built = nullptr;  // taken instead of building; it outlives the examination
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

// A folder that goes away with its owner.
class WorkFolder {
 public:
  WorkFolder();
  ~WorkFolder();
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// A contender, built and examined in everything but speed.
struct Examination {
  Record record;
  Contender contender;
  std::shared_ptr<WorkFolder> work;  // holds what record.build points to
};
Examination examine(const Contender& contender, const Task& task, const JudgeOptions& options);

// All contenders of one task: each examined, then those that are right measured against each other.
// `peers` are measured too, but only to compare with: they get no record.
std::vector<Record> judge_all(std::span<const Contender> contenders, const Task& task,
                              const JudgeOptions& options, std::span<const Contender> peers = {});

Record judge(const Contender& contender, const Task& task, const JudgeOptions& options);

// One case run once, as a replay command asks for it.
struct Replay {
  Case asked;
  std::vector<Reply> replies;
  CaseCheck check;
  std::string build_log;  // when it did not build
};
Replay replay(const Contender& contender, const Task& task, const CaseSpec& spec,
              const JudgeOptions& options);

// The two cases of a relation, one after the other in one process.
Replay replay(const Contender& contender, const Task& task, const Relation& relation,
              const JudgeOptions& options);

// The command that judges a contender, and those that show a case or a relation again.
std::string judge_command(std::string_view path, std::string_view task);
std::string replay_command(std::string_view path, std::string_view task, const CaseSpec& spec);
std::string replay_command(std::string_view path, std::string_view task, const Relation& relation);

}  // namespace touchstone::judge
