// Bytes from one place to another, whichever devices the places are on.
#pragma once

#include <cstdint>

#include "touchstone/core/device.h"

namespace touchstone {

// Waits for everything that was queued on the device, on any stream. The CPU queues nothing.
void wait_for(Device device);

// Complete at once between CPU memories; otherwise when wait_for has returned for both devices. The
// memory must not be in use by work that is queued: wait for the devices before the first copy.
void queue_copy(Device to, void* dst, Device from, const void* src, std::int64_t bytes);

}  // namespace touchstone
