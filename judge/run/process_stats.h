// What the kernel reports about a running child, which the child cannot change.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "judge/sandbox/descriptor.h"

namespace touchstone::judge {

// Scheduling of a thread, as the kernel counts it.
struct ThreadTimes {
  double running_seconds = 0.0;
  double queued_seconds = 0.0;  // ready to run, while others had the processor
};

// A thread by its stat file.
struct ThreadState {
  char state = 'X';      // as `ps` has it; X: gone
  bool exiting = false;  // on its way out, by itself or because the process ends
  int threads = 1;       // of its process
};
ThreadState read_thread_state(int stat);

class ProcessStats {
 public:
  explicit ProcessStats(pid_t pid);

  struct Memory {
    int64_t resident = 0;  // all pages
    int64_t file = 0;      // of files: code, mostly
    int64_t shared = 0;    // shared memory: the arena
    int64_t peak = 0;      // most pages since the last forget_peak
    int64_t tables = 0;    // the kernel's own, to find the pages
    int64_t threads = 0;
  };
  Memory memory() const;  // zeros once the process is gone
  // Two of the numbers above, quicker: all pages, and those that are of files or shared.
  struct Pages {
    int64_t resident = 0;
    int64_t backed = 0;
  };
  Pages pages() const;
  // Whether its first thread has ended while others go on. The kernel names no pages of such a process; one
  // that ends as a whole has none for a while, too.
  bool leader_gone() const;
  void forget_peak() const;
  double cpu_seconds() const;        // processor time of all its threads
  ThreadTimes thread_times() const;  // of its first thread, the one that makes the calls

 private:
  pid_t pid_;
  Descriptor statm_;
  Descriptor status_;
  Descriptor schedstat_;
};

// The times of the calling thread.
class OwnThreadTimes {
 public:
  OwnThreadTimes();
  ThreadTimes thread_times() const;

 private:
  Descriptor schedstat_;
};

}  // namespace touchstone::judge
