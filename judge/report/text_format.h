// Numbers, shapes and verdicts as people read them; shared by board, duel and HTML report.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "judge/report/record.h"

namespace touchstone::judge {

std::string format_bytes(double bytes);          // "1.5 MiB"
std::string format_seconds(double seconds);      // "3.21 ms"
std::string format_shape(const CaseSpec& spec);  // "rows 4096, cols 1024"
std::string format_interval(const Interval& interval,
                            std::string_view unit = "");  // "1.8 (1.7 to 1.9)"
std::string format_points(double points);                 // "97", "99.9", "100"
std::string format_score(const Score& score);             // the same, or "-"
// What a contender calls itself may hold anything; a terminal obeys escape codes.
std::string printable(std::string_view text);
std::string plural(int64_t count, std::string_view noun);  // "1 case", "3 cases"
std::string dimension_title(std::string_view dimension);   // "own tests"
std::string dimension_short(std::string_view dimension);   // "correct", for a narrow column
// What the twin says of the session of one task, and how well its speeds are known; empty when
// nothing was timed.
std::string format_noise(const std::vector<Record>& records);
// Which isolation layers were active; names the missing ones.
std::string format_sandbox(const Sandbox& sandbox);

// Records by task, in the order in which tasks first come.
std::vector<std::vector<Record>> by_task(const std::vector<Record>& records);

}  // namespace touchstone::judge
