// What the CPU implementations share around a row: its history, its status word, its outputs.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/sample/sample_problem.h"
#include "touchstone/ops/softmax_topk.h"

namespace touchstone::sampling {

// A token that occurs in a history, and how often in its output part.
struct HistoryToken {
  std::int64_t token = 0;
  std::int64_t in_output = 0;
};

// The distinct tokens of the row's history, ascending; padding and what is no token left out.
void collect_history(const Sampling& p, std::int64_t row, std::vector<HistoryToken>& tokens);

// `above`: how many tokens are above -inf. NaN is told alone: beside it nothing else is certain.
std::int32_t row_status(const Sampling& p, bool nan, float largest, std::int64_t above);

void write_token(const Sampling& p, std::int64_t row, std::int64_t token, float log_probability,
                 std::int32_t status);
void write_top(const Sampling& p, std::int64_t row, std::int64_t rank, std::int64_t token,
               float log_probability);

// All outputs of a row without a distribution.
void refuse_row(const Sampling& p, std::int64_t row, std::int32_t status);

}  // namespace touchstone::sampling
