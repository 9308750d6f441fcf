// How the judge waits for a child to complete a command: it spins where it has a processor to
// itself and sleeps on a futex otherwise, and checks time, memory and the child's life meanwhile.
#pragma once

#include <atomic>
#include <cstdint>

#include "judge/run/child_memory.h"
#include "judge/run/process_stats.h"
#include "judge/sandbox/child/protocol.h"
#include "judge/sandbox/sandbox.h"

namespace touchstone::judge {

// leader_gone: the first thread ended while others go on, and the kernel names no memory of the process.
enum class Waited { done, ended, late, over_memory, over_threads, leader_gone };

class CompletionWait {
 public:
  CompletionWait(protocol::Control& control, Jail& jail, bool spin)
      : control_(control), jail_(jail), spin_(spin) {}

  struct Used {
    double queued_seconds = 0.0;  // of the first thread, ready to run
    double cpu_seconds = 0.0;     // of all threads
  };
  struct WaitLimits {
    double seconds = 1.0;
    int64_t cpus = 1;                     // that the child may run on
    const ProcessStats* stats = nullptr;  // null: memory is not counted yet
    Used before;                          // what it had used when the wait began
    ChildMemory* memory = nullptr;
    int64_t most_bytes = 0;  // resident pages, and memory outside of the process
    int64_t most_threads = 0;
  };

  // Writes the command's number and wakes the child.
  void post(uint32_t number);
  // Says go. Returns at once.
  void go(uint32_t number);
  // Until `word` holds `number`.
  Waited wait(std::atomic<uint32_t>& word, uint32_t number, const WaitLimits& limits);
  // The most private pages that were seen during the last wait, in bytes; 0 where it was short.
  int64_t most_private_bytes() const { return most_private_; }

 private:
  protocol::Control& control_;
  Jail& jail_;
  bool spin_;
  int64_t most_private_ = 0;
};

}  // namespace touchstone::judge
