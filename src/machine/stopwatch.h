// Wall time since it was made.
#pragma once

#include <chrono>

namespace touchstone::machine {

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  double microseconds() const { return 1e6 * seconds(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace touchstone::machine
