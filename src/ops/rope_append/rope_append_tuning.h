// Every threshold of rope_append. NVIDIA H200, 2026-11-17; not measured alone: the kernel as a
// whole is timed with a decode step (docs/design/decoding.md, `touchstone bench generate
// --profile`).
#pragma once

#include <cstdint>

namespace touchstone::rope_append_op::tuning {

// Warps of a block, each with a head.
inline constexpr int kWarps = 4;
// Elements that a lane moves at a time where rows are aligned.
inline constexpr int kLaneElements = 4;
// Shared memory of a block: what every GPU grants without opting in.
inline constexpr std::int64_t kSharedBytes = 48 << 10;
// Work of one launch, so that indices fit in 32 bits.
inline constexpr std::int64_t kMaxVectors = std::int64_t{1} << 30;

}  // namespace touchstone::rope_append_op::tuning
