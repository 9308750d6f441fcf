#pragma once

namespace touchstone::no_cuda {

inline constexpr char kRefusal[] = "this build has no CUDA code";

}  // namespace touchstone::no_cuda
