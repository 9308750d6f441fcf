// A judgment, from a contender on disk to a record.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "judge/measure/examination.h"

namespace touchstone::judge {

// All contenders of one task: each examined, then those that are right measured against each other.
// `peers` are measured too, but only to compare with: they get no record.
std::vector<Record> judge_all(std::span<const Contender> contenders, const Task& task,
                              const JudgeOptions& options, std::span<const Contender> peers = {});

Record judge(const Contender& contender, const Task& task, const JudgeOptions& options);

// One case run once, for --replay.
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

}  // namespace touchstone::judge
