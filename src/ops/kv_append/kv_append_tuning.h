// Every threshold of kv_append. NVIDIA H200, 2026-11-15; `touchstone bench kv_append --device cuda
// --case full`, 65536 tokens of 1024 values, as a fraction of copying as many bytes.
#pragma once

#include <cstdint>

namespace touchstone::inline v0::cache::tuning {

// Threads of a block, all kernels.
inline constexpr int kThreads = 256;
// Values of a thread in `paired` and `registers`: 32 bytes of bf16 in, 16 bytes of int8 out. One
// thread for K and V (`paired`): bf16 to int8 0.44 -> 0.51.
inline constexpr int kChunk = 16;
// 16-byte units of each of K and V that a lane of `copy` has in flight: bf16 to bf16 0.66 -> 0.92
// over `registers`.
inline constexpr unsigned kCopyUnitsInFlight = 4;
// Shared memory of a block of `portable`: what every GPU grants without opting in.
inline constexpr std::int64_t kPortableSharedBytes = 48 << 10;
// Work of one launch, so that indices fit in 32 bits.
inline constexpr std::int64_t kMaxThreadsPerLaunch = std::int64_t{1} << 30;

}  // namespace touchstone::inline v0::cache::tuning
