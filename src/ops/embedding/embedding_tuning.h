// Every threshold of embedding. CUDA: NVIDIA H200, 2026-11-16, not measured alone; what the kernels
// reach with them: docs/ops/embedding.md. CPU: chosen from the cost of a task, not measured.
#pragma once

#include <cstdint>

namespace touchstone::embedding_op {

// Work of one task: at 10 GB/s some 13 us, several times the cost of handing it over.
inline constexpr std::int64_t kCpuBytesPerTask = std::int64_t{128} << 10;
// Columns of dweight whose sums one task keeps in registers and the first cache.
inline constexpr std::int64_t kCpuColumnsPerTask = 1024;

// CUDA: threads of a block, and vectors of 16 bytes that a thread has in flight.
inline constexpr int kThreads = 256;
inline constexpr int kVectors = 4;

}  // namespace touchstone::embedding_op
