// Ctrl-C ends the run after its step; a second one ends the program.
#pragma once

#include <csignal>

namespace touchstone::cli {

// Catches SIGINT and SIGTERM while it lives, once each.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  static bool interrupted();

 private:
  struct sigaction before_ {};
  struct sigaction before_term_ {};
};

}  // namespace touchstone::cli
