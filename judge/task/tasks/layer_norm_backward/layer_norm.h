// The parts of the task: what a case consists of, and what the oracle says of it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "judge/task/compare.h"
#include "judge/task/task.h"

namespace touchstone::judge::layer_norm {

// One forward and its backward.
struct Problem {
  int64_t rows = 0;
  int64_t cols = 0;
  float eps = 0;
  std::vector<float> x, gamma, beta, dy;
};

// The data family that a case of the family `mixed` hides in its seed; any other case as it is.
CaseSpec resolve(const CaseSpec& spec);

// InvalidArgument when it is not a case of this task.
void check_spec(const CaseSpec& spec);

// All pairs of a case: one, two for the family `interleaved`, or as many as `many_caches` says.
std::vector<Problem> make_problems(const CaseSpec& spec);

struct Answer {
  Expected y, dx, dgamma, dbeta;
  // y and dx up to what errors of the sums of a row do to all of it; empty where no sum is long.
  Expected own_y = {}, own_dx = {};
};

// Values in float64, with the bound and magnitude of every element.
Answer expected_answer(const Problem& problem, const Tolerance& tolerance);
// The same answer with the bounds of another tolerance.
void set_bounds(const Problem& problem, const Tolerance& tolerance, Answer& answer);

// What errors of the sums of a row do to its y, or to its dx: a vector for each, for compare_apart().
// False where the row has NaN or infinity.
bool shared_errors(const Problem& problem, int64_t row, bool backward,
                   std::vector<std::vector<double>>& vectors);

Plan make_plan(const TaskCard& card, uint64_t seed, bool small);

// Where row i of the case after the relation comes from in the case before it.
std::vector<int64_t> row_order(const CaseSpec& spec, int64_t rows);

}  // namespace touchstone::judge::layer_norm
