// Finds stop strings in text that comes in pieces, and holds back what may become one.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace touchstone::inline v0::decode {

class StopMatcher {
 public:
  // `strings` outlive it; none is empty.
  StopMatcher(std::span<const std::string> strings, bool include_stop)
      : strings_(strings), include_stop_(include_stop) {}

  // Text that is sure to be part of the result. The string that is complete first ends the text,
  // however it was cut into pieces; of two that end together the longer one, then the first.
  std::string next(std::string_view piece);
  // The text that was held back; nothing after a stop.
  std::string finish();
  // Index of the stop string that was found, or -1.
  std::int32_t found() const { return found_; }

 private:
  std::span<const std::string> strings_;
  bool include_stop_;
  std::string held_{};
  std::int32_t found_ = -1;
};

}  // namespace touchstone::inline v0::decode
