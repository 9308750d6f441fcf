// From a failing case to the smallest one that still fails.
#pragma once

#include <functional>

#include "judge/task.h"

namespace touchstone::judge {

struct Shrunk {
  CaseSpec spec;  // the smallest that failed; the first one where nothing smaller did
  int tried = 0;  // how often the contender was asked
};

// Greedy: takes the first smaller neighbour that still fails and goes on from there, until none
// does or `budget` questions were asked. `still_fails` runs the contender.
Shrunk shrink(const Task& task, CaseSpec spec,
              const std::function<bool(const CaseSpec&)>& still_fails, int budget = 200);

}  // namespace touchstone::judge
