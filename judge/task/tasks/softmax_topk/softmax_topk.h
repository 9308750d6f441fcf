// The parts of the task: what a case consists of, and what the oracle says of it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "judge/task/compare.h"
#include "judge/task/task.h"

namespace touchstone::judge::softmax_topk {

struct Problem {
  int64_t rows = 0;
  int64_t vocab = 0;
  int64_t k = 0;
  std::vector<float> logits;
};

// The data family that a case of the family `mixed` hides in its seed; any other case as it is.
CaseSpec resolve(const CaseSpec& spec);
void check_spec(const CaseSpec& spec);  // InvalidArgument when it is not a case of this task
Problem make_problem(const CaseSpec& spec);

// Where row i of the case after the relation comes from in the case before it; -1: a new row.
std::vector<int64_t> row_order(const CaseSpec& spec, int64_t rows);

// One row in float64.
struct Row {
  bool has_nan = false;
  bool all_masked = false;
  double largest = 0;       // of the logits
  double sum = 0;           // of the exponentials
  std::vector<float> kept;  // the k largest logits, largest first
  double common_error = 0;  // relative error that all probabilities of the row share
  double tie_error = 0;     // relative, of one exponential at distance 0
  double own_error = 0;     // relative, what a probability at distance 0 does not share with others

  double probability(float logit) const;
  double bound(float logit, const Tolerance& t) const;
  // Without what the sum contributes.
  double own_bound(float logit, const Tolerance& t) const;
  // How far apart two probabilities may be and still count as equal.
  double gap(float logit, const Tolerance& t) const;
};
Row analyze_row(std::span<const float> logits, int64_t k, const Tolerance& tolerance);

// Complains through the two errors about one row of the answer.
struct RowErrors {
  OutputError probabilities;
  OutputError indices;
  // What each probability has to be up to a factor common to its row; empty: not wanted. A bound of
  // 0 stands where there is nothing to compare.
  Expected own = {};
};
void check_row(const Problem& problem, int64_t row, std::span<const float> probabilities,
               std::span<const int32_t> indices, const Tolerance& tolerance, RowErrors& errors);

}  // namespace touchstone::judge::softmax_topk
