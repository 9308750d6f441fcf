// Tuning of rope: every threshold, with the device, the date and the gain it rests on.
#pragma once

#include <cstdint>

namespace touchstone::rope_op {

// Work of one task: at 10 GB/s some 13 us, several times the cost of handing it over.
inline constexpr std::int64_t kCpuBytesPerTask = std::int64_t{128} << 10;

// CUDA: threads of a block, and vectors of 16 bytes that a thread of `vectorized` has in flight.
inline constexpr int kThreads = 128;
inline constexpr int kVectors = 8;
// Heads that one thread rotates by the same angles, where there are threads enough.
inline constexpr int kHeadsPerThread = 16;
inline constexpr int kThreadsPerMultiprocessor = 512;

}  // namespace touchstone::rope_op
