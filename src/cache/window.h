// Which pages of a sequence a window still covers.
#pragma once

#include <cstdint>

#include "touchstone/cache/layout.h"
#include "touchstone/core/checked.h"

namespace touchstone::inline v0::cache {

// The page with the first position that the token at position `tokens` attends to, sinks aside.
inline std::int64_t first_needed_page(const LayerGroup& group, std::int64_t tokens) {
  if (group.window == 0 || tokens < group.window) return 0;
  return (tokens - group.window + 1) / group.page_tokens;
}

// The same without the page that the token itself goes into unless it attends to tokens there: with
// a window of 1 it attends to nothing earlier, and a freed page can be replaced by an empty one.
inline std::int64_t first_page_to_read(const LayerGroup& group, std::int64_t tokens) {
  if (group.window == 1) return (tokens + group.page_tokens - 1) / group.page_tokens;
  return first_needed_page(group, tokens);
}

// The most pages that sinks, a window and `chunk` tokens after it lie in, wherever they begin.
inline std::int64_t window_pages(const LayerGroup& group, std::int64_t chunk) {
  const std::int64_t sinks = (group.sinks + group.page_tokens - 1) / group.page_tokens;
  // The first of the tokens attends to window - 1 earlier ones, which may begin in the last slot of
  // a page.
  const std::int64_t tokens = checked_add(group.window - 1, chunk, "layout: window");
  return sinks + 1 + (tokens - 1 + group.page_tokens - 1) / group.page_tokens;
}

}  // namespace touchstone::inline v0::cache
