// Argument checks of attention and attention_backward, and the problems that they build.
#pragma once

#include "ops/attention_dense/dense_problem.h"
#include "touchstone/ops/attention.h"

namespace touchstone::dense_attention {

ForwardProblem check_forward(const Context& context, const AttentionArgs& args);
BackwardProblem check_backward(const Context& context, const AttentionBackwardArgs& args);

}  // namespace touchstone::dense_attention
