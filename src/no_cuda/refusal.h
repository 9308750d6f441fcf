// Every entry point of src/no_cuda refuses with one message.
#pragma once

#include <string>

#include "touchstone/core/error.h"

namespace touchstone::no_cuda {

inline constexpr char kRefusal[] = "this build has no CUDA code";

// For the CUDA runtime, whose errors begin with "cuda: ".
[[noreturn]] inline void refuse_runtime() { throw Unsupported(std::string("cuda: ") + kRefusal); }

}  // namespace touchstone::no_cuda
