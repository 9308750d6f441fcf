// The CUDA kernels of sampling: for the host.
#pragma once

#include "ops/sample/sample_problem.h"

namespace touchstone::sampling {

// Very many rows that are not long, by lane maxima; sample_cuda_maxima.cu.
bool suits_maxima(const Context& context, const Sampling& p);
void sample_by_maxima(Context& context, const Sampling& p);

inline bool penalises(const Sampling& p) {
  const bool any = p.repetition_penalty != nullptr || p.frequency_penalty != nullptr ||
                   p.presence_penalty != nullptr;
  return any && p.history_length > 0;
}

// Whether values are the logits as they are.
inline bool is_plain(const Sampling& p) {
  return p.bias == nullptr && p.allowed == nullptr && !penalises(p);
}

}  // namespace touchstone::sampling
