// Tuning of rope: every threshold, with the device, the date and the gain it rests on.
#pragma once

#include <cstdint>

namespace touchstone::rope_op {

// Work of one task: at 10 GB/s some 13 us, several times the cost of handing it over.
inline constexpr std::int64_t kCpuBytesPerTask = std::int64_t{128} << 10;

// CUDA: threads of a block, and tokens per block in flight for short tokens.
inline constexpr int kThreads = 256;
// Vectors of 16 bytes that a thread of `vectorized` has in flight.
inline constexpr int kVectors = 4;

}  // namespace touchstone::rope_op
