// Every threshold of rope. CUDA: NVIDIA H200, 2026-11-16, bench/probes/token_rate.cu, microseconds
// of 16384 tokens of 8 heads of 128, bf16; docs/notes/rope.md has the table. CPU: not measured.
#pragma once

#include <cstdint>

namespace touchstone::rope_op {

// Work of one task: at 10 GB/s some 13 us, several times the cost of handing it over.
inline constexpr std::int64_t kCpuBytesPerTask = std::int64_t{128} << 10;

// CUDA: threads of a block. With the two numbers below, and 32-bit indices, instead of 256 threads
// and 1024 per multiprocessor: 21.6 -> 19.2.
inline constexpr int kThreads = 128;
// Vectors of 16 bytes that a thread of `vectorized` has in flight. Not measured alone.
inline constexpr int kVectors = 8;
// Heads that one thread rotates by the same angles, where there are threads enough.
inline constexpr int kHeadsPerThread = 16;
inline constexpr int kThreadsPerMultiprocessor = 512;

}  // namespace touchstone::rope_op
