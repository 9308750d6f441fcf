// Stops a child between its calls and lets it go on for them: who is not being asked neither works
// ahead, nor works on, nor disturbs another's call.
#pragma once

#include <sys/types.h>

#include "judge/sandbox/descriptor.h"

namespace touchstone::judge {

class Freezer {
 public:
  explicit Freezer(pid_t pid);
  // By a signal that no process can catch or block.
  void freeze();          // returns when no thread of the child runs any more
  void request_freeze();  // returns at once; the child stops within microseconds
  void thaw();

 private:
  bool all_stopped() const;

  pid_t pid_;
  Descriptor stat_;
  bool frozen_ = false;
};

}  // namespace touchstone::judge
