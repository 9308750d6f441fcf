// What the gates of all tasks have in common. A contender here is a function in this process.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "judge/task/compare.h"
#include "judge/task/task.h"

namespace touchstone::judge::gate {

using Contender = std::function<std::vector<Reply>(const Case&)>;

// Every case that can make a verdict passes, with room to spare; complains with the case.
void expect_passes(const Task& task, const std::string& name, const Contender& contender,
                   uint64_t seed, bool small = true);

// At least one gating case or relation fails, in the short plan already.
void expect_found(const Task& task, const std::string& name, const Contender& contender,
                  uint64_t seed);

// Zeros, ones, NaN, a copy of the first input: no case with outputs passes, but for those whose
// right answer is trivial.
void expect_trivial_fail(const Task& task);

// The next lower precision fails in all cases of this family.
void expect_lower_precision_fails(const Task& task, const std::string& family);

// Probes of the short plan with a failing case.
std::set<std::string> failed_probes(const Task& task, const Contender& contender, uint64_t seed);

void expect_relations(const Task& task, const Contender& contender);
std::set<std::string> broken_relations(const Task& task, const Contender& contender);

// To a millionth of the bound.
void expect_agrees(const Expected& first, const std::vector<double>& second);

}  // namespace touchstone::judge::gate
