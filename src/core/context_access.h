// The parts of a Context that operators use and callers do not: scratch memory and threads.
#pragma once

#include <cstdint>

#include "touchstone/core/context.h"

namespace touchstone::inline v0::detail {

struct ContextAccess {
  // Scratch of at least `bytes`, 256-byte aligned, valid until the next call with this context.
  // CPU scratch grows on demand; CUDA scratch does not (OutOfMemory says how much to reserve).
  static void* workspace(Context& context, std::int64_t bytes);
  static ThreadPool& pool(Context& context);
};

}  // namespace touchstone::inline v0::detail
