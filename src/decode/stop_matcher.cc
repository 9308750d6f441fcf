#include "decode/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace touchstone::inline v0::decode {

std::string StopMatcher::next(std::string_view piece) {
  if (found_ >= 0) return {};
  held_ += piece;
  std::size_t end = std::string::npos;
  std::size_t start = 0;
  for (std::size_t i = 0; i < strings_.size(); ++i) {
    const std::size_t at = held_.find(strings_[i]);
    if (at == std::string::npos) continue;
    const std::size_t after = at + strings_[i].size();
    if (after < end || (after == end && at < start)) {
      end = after;
      start = at;
      found_ = static_cast<std::int32_t>(i);
    }
  }
  if (found_ >= 0) {
    std::string text = held_.substr(0, include_stop_ ? end : start);
    held_.clear();
    return text;
  }
  // The longest end of the text that begins a stop string.
  std::size_t keep = 0;
  for (const std::string& stop : strings_) {
    for (std::size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n) {
      if (held_.ends_with(std::string_view(stop).substr(0, n))) keep = n;
    }
  }
  std::string text = held_.substr(0, held_.size() - keep);
  held_.erase(0, text.size());
  return text;
}

std::string StopMatcher::finish() { return std::exchange(held_, {}); }

}  // namespace touchstone::inline v0::decode
