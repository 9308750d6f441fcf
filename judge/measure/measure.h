// Speeds: contenders of one task, interleaved in blocks, each timed answer checked.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "judge/measure/examination.h"

namespace touchstone::judge {

// Whether its speed can be compared: it passes, or what it lacks is not on the timed shapes.
bool can_be_timed(const Record& record, const Task& task, const JudgeOptions& options);

// Measures all that passed, and `peers` beside them, and writes speeds, the twin's ratio and what
// the timed cases showed into the records of `examined`.
void measure_speeds(const Task& task, std::vector<Examination>& examined,
                    std::vector<Examination>& peers, const JudgeOptions& options);

}  // namespace touchstone::judge
