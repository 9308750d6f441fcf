// Draws of RandomPurpose::shuffle: one for every use, so that none repeats the numbers of another.
#pragma once

#include <cstdint>

namespace touchstone::inline v0::train {

inline constexpr std::uint32_t kShuffleStart = 0;    // of the windows, by epoch
inline constexpr std::uint32_t kShuffleOrder = 1;    // of the windows in an epoch
inline constexpr std::uint32_t kShuffleSplit = 2;    // documents held out, by index
inline constexpr std::uint32_t kShuffleAnchors = 3;  // of block drafts, by row and part

}  // namespace touchstone::inline v0::train
