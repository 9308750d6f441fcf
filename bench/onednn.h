// oneDNN as a peer on the CPU: layer norm in f32 and bf16. Implemented by onednn.cc, or by
// no_onednn.cc where the library is not installed.
#pragma once

#include <optional>
#include <string>

#include "bench/norm_data.h"

namespace touchstone::bench {

// "2.6.3"; empty when this build has no oneDNN.
std::string onednn_version();

struct OneDnnCalls {
  NormCall call;
  // The same, with the parameter gradients (always f32 there) converted to those of the set.
  NormCall checked;
};

// None where oneDNN cannot do the problem. Uses as many threads as the context. `data` must
// outlive the calls, and its tensors must stay where they are.
std::optional<OneDnnCalls> onednn_calls(Context& context, const NormProblem& problem,
                                        NormData& data);

}  // namespace touchstone::bench
