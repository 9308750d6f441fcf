// What the CPU implementations share around a row: its values, its status word, its outputs.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/sample/sample_problem.h"
#include "ops/sample/sample_row.h"
#include "touchstone/ops/softmax_topk.h"

namespace touchstone::sampling {

// Step 1 of a row for all tokens, or for one: logits, bias and mask.
void read_values(const SampleProblem& p, std::int64_t row, std::vector<float>& values);
float value_of(const SampleProblem& p, std::int64_t row, std::int64_t token);

// Step 2 in place. Every token of the history once; padding is passed over.
void penalize(const SampleProblem& p, std::int64_t row, const RowControls& controls,
              std::vector<float>& values);

// `above`: how many tokens are above -inf. NaN is told alone: beside it nothing else is certain.
std::int32_t row_status(const SampleProblem& p, bool nan, float largest, std::int64_t above);

void write_token(const SampleProblem& p, std::int64_t row, std::int64_t token, float log_probability,
                 std::int32_t status);
void write_top(const SampleProblem& p, std::int64_t row, std::int64_t rank, std::int64_t token,
               float log_probability);

// All outputs of a row without a distribution.
void refuse_row(const SampleProblem& p, std::int64_t row, std::int32_t status);

// All of a row, by the plain implementation. `remark` is added to its status.
void sample_plain_row(const SampleProblem& p, std::int64_t row, std::int32_t remark);

}  // namespace touchstone::sampling
