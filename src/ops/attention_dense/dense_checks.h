// What attention and attention_backward refuse, and the problems they make of the rest.
#pragma once

#include "ops/attention_dense/dense_problem.h"
#include "touchstone/ops/attention.h"

namespace touchstone::dense_attention {

ForwardProblem check_forward(const Context& context, const AttentionArgs& args);
BackwardProblem check_backward(const Context& context, const AttentionBackwardArgs& args);

}  // namespace touchstone::dense_attention
