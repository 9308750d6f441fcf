// Thresholds of ternary_project. Not measured alone on any device: a projection is a small part of
// a training step.
#pragma once

#include <cstdint>

namespace touchstone::inline v0::ternary_op::tuning {

// CPU: groups of 128 that a task takes, and values of one group that several tasks share.
inline constexpr std::int64_t kGroupsPerTask = 256;
inline constexpr std::int64_t kValuesPerTask = 1 << 15;

// CUDA: threads of a block, a warp per group.
inline constexpr int kThreads = 256;

}  // namespace touchstone::inline v0::ternary_op::tuning
