// What it costs to start a parallel loop and to wait for its end.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "machine/statistics.h"

namespace touchstone::bench {

struct ForkJoinRow {
  std::string runtime;  // "touchstone", "openmp"
  int threads = 0;
  machine::Summary us;  // one loop of one empty task per thread
};

// 1, 2, 4 ... `most` threads (0 = every core), both runtimes in turn in every round.
std::vector<ForkJoinRow> measure_fork_join(int most, int rounds,
                                           const std::function<void(int threads)>& progress);

}  // namespace touchstone::bench
