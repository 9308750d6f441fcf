// Copies of bytes between any two devices.
#pragma once

#include <cstdint>

#include "touchstone/core/device.h"

namespace touchstone::inline v0 {

// A device and, on CUDA, the stream in whose order its memory is used.
struct StreamLocation {
  Device device{};
  void* stream = nullptr;  // cudaStream_t; null = the default stream
};

// Waits for everything that was queued on the stream. The CPU queues nothing.
void wait_for(const StreamLocation& location);

// Complete at once between CPU memories. Otherwise queued on the stream of `to`, or of `from` where
// `to` is the CPU; between two streams the caller waits for `from` first.
void queue_copy(const StreamLocation& to, void* dst, const StreamLocation& from, const void* src,
                std::int64_t bytes);

}  // namespace touchstone::inline v0
