// Speeds: contenders of one task, interleaved in blocks, each timed answer checked.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "judge/judge.h"

namespace touchstone::judge {

// Measures all that passed, and `peers` beside them, and writes speeds, the twin's ratio and what
// the timed cases showed into the records of `examined`.
void measure_speeds(const Task& task, std::vector<Examination>& examined,
                    std::vector<Examination>& peers, const JudgeOptions& options);

// Holds the calling thread on some cores, and gives it back those it had.
class Pinned {
 public:
  explicit Pinned(const std::vector<int>& cpus);  // none: stays where it is
  ~Pinned();
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

 private:
  std::vector<int> before_;
};
std::vector<int> usable_cpus();

// What moving `bytes` costs at least on these cores, half of them read and half of them written, by
// the fastest of several copies with buffers of that size.
double copy_floor_seconds(double bytes, const std::vector<int>& cpus);

}  // namespace touchstone::judge
