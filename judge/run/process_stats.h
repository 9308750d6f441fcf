// What the kernel says about a running child: a witness the child cannot bend.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "judge/sandbox/descriptor.h"

namespace touchstone::judge {

// What the kernel gave a thread.
struct Turns {
  double running_seconds = 0.0;
  double queued_seconds = 0.0;  // ready to run, while others had the processor
};

class Watch {
 public:
  explicit Watch(pid_t pid);

  struct Memory {
    int64_t resident = 0;  // all pages
    int64_t file = 0;      // of files: code, mostly
    int64_t shared = 0;    // shared memory: the arena
    int64_t peak = 0;      // most pages since the last forget_peak
    int64_t threads = 0;
  };
  Memory memory() const;     // zeros once the process is gone
  int64_t resident() const;  // the same number as above, quicker
  void forget_peak() const;
  double cpu_seconds() const;  // processor time of all its threads
  Turns turns() const;         // of its first thread, the one that makes the calls

 private:
  pid_t pid_;
  Descriptor statm_;
  Descriptor status_;
  Descriptor schedstat_;
};

// The turns of the calling thread.
class OwnTurns {
 public:
  OwnTurns();
  Turns turns() const;

 private:
  Descriptor schedstat_;
};

}  // namespace touchstone::judge
