// oneDNN as a peer on the CPU: layer norm in f32 and bf16. Implemented by onednn.cc, or by
// no_onednn.cc where the library is not installed.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "touchstone/core/context.h"
#include "touchstone/core/dtype.h"

namespace touchstone::bench {

// "2.6.3"; empty when this build has no oneDNN.
std::string onednn_version();

// Layer norm on contiguous operands. `out` is y or dx.
struct NormOperands {
  DType dtype = DType::f32;
  bool layer = true;  // RMS norm: oneDNN has none
  bool backward = false;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  const void* x = nullptr;
  const void* dy = nullptr;
  const void* weight = nullptr;
  const void* bias = nullptr;
  void* out = nullptr;
  void* dweight = nullptr;
  void* dbias = nullptr;
};
using NormCall = std::function<void(const NormOperands&)>;

struct OneDnnCalls {
  NormCall call;
  // The same, with the parameter gradients (always f32 there) converted to those of the operands.
  NormCall checked;
};

// None where oneDNN cannot do the problem. Uses as many threads as the context. Calls are on one of
// the given sets of operands.
std::optional<OneDnnCalls> onednn_calls(Context& context, std::span<const NormOperands> sets);

}  // namespace touchstone::bench
