// From a failure to the smallest one of its kind: fewer rows and columns, then fewer numbers.
#pragma once

#include <functional>

#include "judge/task/task.h"

namespace touchstone::judge {

struct Shrunk {
  CaseSpec spec;  // the smallest that failed; the first one where nothing smaller did
  int tried = 0;  // how often the contender was asked
};

using StillFails = std::function<bool(const CaseSpec&)>;

// Greedy: takes the first smaller neighbor that still fails and goes on from there, until none
// does or `budget` questions were asked. `still_fails` runs the contender.
Shrunk shrink(const Task& task, CaseSpec spec, const StillFails& still_fails, int budget = 200);

// The same shape with fewer numbers in it: elements that do not matter become 0, in halves and
// halves of halves, and those that do become 1 or lose their fraction where they can. What is left
// stands in the edits of the case. Cases of more than 4096 numbers are left as they are.
Shrunk simplify(const Task& task, CaseSpec spec, const StillFails& still_fails, int budget = 200);

struct ShrunkRelation {
  Relation relation;
  int tried = 0;
};

// As shrink(), for two cases at once: the first becomes smaller, and what changes from the first to
// the second stays.
ShrunkRelation shrink_relation(const Task& task, Relation relation,
                               const std::function<bool(const Relation&)>& still_fails,
                               int budget = 200);

}  // namespace touchstone::judge
