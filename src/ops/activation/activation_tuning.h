// Every threshold of activation and gate. CUDA: NVIDIA H200, 2026-11-16, not measured alone; what
// the kernels reach with them: docs/ops/activation.md. CPU: chosen from the cost of a task, not
// measured.
#pragma once

#include <cstdint>

namespace touchstone::activation_op {

// CPU: work of one task, a multiple of every vector; some 20 us of a core.
inline constexpr std::int64_t kCpuElementsPerTask = std::int64_t{32} << 10;

// CUDA: threads of a block, and vectors of 16 bytes of each input that a thread has in flight.
inline constexpr int kThreads = 256;
inline constexpr int kVectors = 2;

}  // namespace touchstone::activation_op
