// The memory of a child, wherever it keeps it: in its pages, in files of the judge that it can
// write to, in the temporary files of its jail.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "judge/run/arena.h"
#include "judge/run/process_stats.h"
#include "judge/sandbox/descriptor.h"

namespace touchstone::judge {

class ChildMemory {
 public:
  // `log_fd` takes the child's standard output. `temporary` are file systems of the child alone.
  ChildMemory(pid_t pid, const ProcessStats& stats, const Arena& arena, int log_fd,
              const std::vector<std::string>& temporary);

  // Bytes in files that belong to no process; buffers that the judge itself placed are not counted.
  int64_t outside() const;
  // The same, and keeps the largest since forget_outside(); for a watchdog to call.
  int64_t watch_outside();
  void forget_outside();
  int64_t most_outside() const { return most_outside_; }

  // What the contender holds now: pages of its own, and whatever is shared beyond the `mapped`
  // bytes of buffers that the judge gave it.
  int64_t own(int64_t mapped) const;

 private:
  const ProcessStats& stats_;
  const Arena& arena_;
  int log_fd_;
  std::vector<Descriptor> temporary_;
  int64_t temporary_before_ = 0;
  int64_t most_outside_ = 0;
};

}  // namespace touchstone::judge
