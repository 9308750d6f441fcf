// Two contenders of one task, criterion by criterion: who has the edge, and by what evidence.
#pragma once

#include <string>
#include <vector>

#include "judge/report/record.h"

namespace touchstone::judge {

enum class Edge { first, second, tie, unresolved };

struct Criterion {
  std::string name;
  std::string first;  // what was measured
  std::string second;
  Edge edge = Edge::tie;
  std::string evidence;  // ids and, where there is one, the interval
};

struct Duel {
  std::string task;
  std::string first;
  std::string second;
  std::vector<Criterion> dimensions;
  std::vector<Criterion> details;  // probes, shapes, bytes and bits behind them
  std::string conclusion;
};

// Both records of the same task; InvalidArgument otherwise.
Duel duel(const Record& first, const Record& second);
std::string duel_text(const Duel& duel, bool color);

}  // namespace touchstone::judge
