// std::partial_sort as a peer of the selections on the CPU: the first k tokens by logit beside the
// sum of exponentials. Rows are shared between the threads of the context, so that what shows is the
// code and not the number of cores.
#pragma once

#include <cstdint>
#include <functional>

#include "touchstone/core/context.h"
#include "touchstone/core/dtype.h"

namespace touchstone::bench {

// softmax_topk with values and tokens [rows, k], or sample with log-probability and token [rows], on
// contiguous operands.
struct SelectionOperands {
  DType dtype = DType::f32;
  bool sampled = false;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t k = 0;
  const void* logits = nullptr;
  const std::int64_t* seed = nullptr;
  const std::int64_t* position = nullptr;
  float* values = nullptr;
  std::int32_t* tokens = nullptr;
};
using SelectionCall = std::function<void(const SelectionOperands&)>;
// `like`: of the shape and dtype of the calls.
SelectionCall partial_sort_selection(Context& context, const SelectionOperands& like);

}  // namespace touchstone::bench
