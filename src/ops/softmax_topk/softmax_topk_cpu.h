// Between softmax_topk_cpu.cc, which distributes the work, and softmax_topk_cpu_epilogue.cc.
#pragma once

#include "ops/selection/cpu/cpu_select.h"
#include "ops/softmax_topk/softmax_topk_problem.h"

namespace touchstone::topk {

// The outputs of a row from its selected tokens; `top` are their values, with space for whole
// vectors.
void store_row(const SoftmaxTopkProblem& p, std::int64_t row, double temperature,
               const selection::RowSum& sum, const selection::SelectedTokens& tokens,
               const float* top);

}  // namespace touchstone::topk
