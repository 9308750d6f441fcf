// Which pages of a sequence a window still covers.
#pragma once

#include <cstdint>

#include "touchstone/cache/layout.h"

namespace touchstone::inline v0::cache {

// The page with the first position that the token at position `tokens` attends to, sinks aside.
inline std::int64_t first_needed_page(const LayerGroup& group, std::int64_t tokens) {
  if (group.window == 0 || tokens < group.window) return 0;
  return (tokens - group.window + 1) / group.page_tokens;
}

// The same without the page that the token itself goes into unless it attends to tokens there: with a
// window of 1 it attends to nothing earlier, and a freed page can be replaced by an empty one.
inline std::int64_t first_page_to_read(const LayerGroup& group, std::int64_t tokens) {
  if (group.window == 1) return (tokens + group.page_tokens - 1) / group.page_tokens;
  return first_needed_page(group, tokens);
}

}  // namespace touchstone::inline v0::cache
