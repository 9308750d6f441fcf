// Which pages of a sequence a window still sees.
#pragma once

#include <cstdint>

#include "touchstone/cache/layout.h"

namespace touchstone::cache {

// The page with the first position that the token at position `tokens` sees, sinks aside.
inline std::int64_t first_needed_page(const LayerGroup& group, std::int64_t tokens) {
  if (group.window == 0 || tokens < group.window) return 0;
  return (tokens - group.window + 1) / group.page_tokens;
}

}  // namespace touchstone::cache
