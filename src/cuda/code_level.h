// Which of the code compiled into this library the driver runs on a device. The compute capability
// does not decide it: a GPU after Hopper, or CUDA_FORCE_PTX_JIT=1, runs PTX of compute_90, in which
// the kernels that need wgmma have empty bodies, and a library built without code for Hopper has
// only empty bodies for all that need Hopper.
#pragma once

#include <cstdint>
#include <string>

#include "touchstone/core/context.h"

namespace touchstone::cuda {

enum class CodeLevel : std::uint8_t {
  ampere = 1,  // sm_80 and later
  hopper,      // compute_90: clusters, bulk copies, programmatic launch; runs on later GPUs
  sm_90a       // wgmma and setmaxnreg: on compute capability 9.0 only
};

CodeLevel code_level(const Context& context);

// Empty where sm_90a code runs, else "needs sm_90a code, device is sm_100".
std::string sm_90a_refusal(const Context& context);

}  // namespace touchstone::cuda
