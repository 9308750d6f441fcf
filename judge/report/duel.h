// Two contenders of one task, criterion by criterion: who has the edge, and by what evidence.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "judge/report/record.h"
#include "judge/report/remarks.h"
#include "judge/report/summary.h"

namespace touchstone::judge {

enum class Edge { first, second, tie, unresolved };

struct Criterion {
  std::string name;
  std::string first;  // what was measured
  std::string second;
  Edge edge = Edge::tie;
  std::string evidence;  // a line for each, with its name in front; one line where both share it
};

struct Duel {
  std::string task;
  std::string first;
  std::string second;
  std::vector<Criterion> dimensions;
  std::vector<Criterion> details;      // probes, shapes, bytes and bits behind them
  std::vector<Criterion> facts;        // what is listed and not compared
  std::string winner;                  // empty: none
  std::optional<double> margin;        // of the overall scores, winner less loser
  std::vector<std::string> first_won;  // criteria
  std::vector<std::string> second_won;
  std::vector<std::string> level;
  Remarks first_remarks;
  Remarks second_remarks;
  std::optional<Hybrid> hybrid;
  std::string conclusion;
};

// Both records of the same task; InvalidArgument otherwise.
Duel duel(const Record& first, const Record& second);
// The pairs of a page, in the order of the board: all of the best few, and the first against each
// other. A page of all pairs is read by no one.
std::vector<Duel> duels_of(const std::vector<Record>& records);
// The name, "level" or "": what stands in the column of the better one.
std::string better_name(const Duel& duel, Edge edge);
// "ours wins by 46 points; criteria won: ours 2 (speed, memory), naive 0; 6 level"
std::string score_line(const Duel& duel);
std::string duel_text(const Duel& duel, bool color);

}  // namespace touchstone::judge
