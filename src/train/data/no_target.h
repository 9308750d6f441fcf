// The target of a position without a loss: ignore_index of cross_entropy(), as in PyTorch.
#pragma once

#include <cstdint>

namespace touchstone::inline v0::train {

inline constexpr std::int32_t kNoTarget = -100;

}  // namespace touchstone::inline v0::train
