// Shared by the CPU implementations, per row: its values, its status word, its outputs.
#pragma once

#include <cstdint>
#include <span>

#include "ops/sample/sample_problem.h"
#include "ops/sample/sample_row.h"
#include "touchstone/ops/row_status.h"

namespace touchstone::sampling {

// Step 1 for all tokens of a row (`values` has vocabulary elements), or for one: logits, bias and
// mask.
void read_values(const SampleProblem& p, std::int64_t row, std::span<float> values);
float value_of(const SampleProblem& p, std::int64_t row, std::int64_t token);

// Step 2 in place. Every token of the history once; padding is skipped.
void penalize(const SampleProblem& p, std::int64_t row, const RowControls& controls,
              std::span<float> values);

// `above`: tokens above -inf. NaN is reported alone.
RowStatus row_status(const SampleProblem& p, bool nan, float largest, std::int64_t above);

void write_token(const SampleProblem& p, std::int64_t row, std::int64_t token,
                 float log_probability, RowStatus status);
void write_top(const SampleProblem& p, std::int64_t row, std::int64_t rank, std::int64_t token,
               float log_probability);

// All outputs of a row without a distribution.
void store_invalid_row(const SampleProblem& p, std::int64_t row, RowStatus status);

// A whole row by the plain implementation. `remark` is added to its status.
void sample_plain_row(const SampleProblem& p, std::int64_t row, RowStatus remark);

}  // namespace touchstone::sampling
