// Tuning of cross_entropy: every threshold, with the device, the date and the gain it rests on.
#pragma once

#include <cstdint>

namespace touchstone::cross_entropy_op {

// CPU: columns of a tile of logits. Part of what a token's dx is: its sums over the vocabulary are
// made tile by tile. At 4096 tokens a tile in f32 takes 8 MB.
inline constexpr std::int64_t kCpuTile = 512;

}  // namespace touchstone::cross_entropy_op
