// oneDNN as a peer on the CPU: layer norm in f32 and bf16. Implemented by onednn.cc, or by
// no_onednn.cc where the library is not installed.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "bench/naive/naive.h"

namespace touchstone::bench {

// "2.6.3"; empty when this build has no oneDNN.
std::string onednn_version();

struct OneDnnCalls {
  NaiveNorm call;
  // The same, with the parameter gradients (always f32 there) converted to those of the operands.
  NaiveNorm checked;
};

// None where oneDNN cannot do the problem. Uses as many threads as the context. Calls are on one of
// the given sets of operands.
std::optional<OneDnnCalls> onednn_calls(Context& context, std::span<const NormOperands> sets);

}  // namespace touchstone::bench
