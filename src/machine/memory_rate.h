// Memory bandwidth of this machine: the floor of every measured time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "touchstone/core/context.h"
#include "touchstone/core/tensor.h"

namespace touchstone::machine {

// Rates in GB/s (1e9), bytes read plus bytes written.
struct Ceiling {
  std::string copy_name;     // the copy that was fastest
  double copy_gbs = 0;       // its median
  double copy_best_gbs = 0;  // its best round
  double triad_gbs = 0;      // c = a + b: two reads for one write, as a backward has
  double read_gbs = 0;       // a sum: reads alone, as a selection has
  std::int64_t buffer_bytes = 0;
};

// Copies, adds and reads buffers several times larger than the last-level cache with the threads of
// a CPU context, every kernel once per round.
Ceiling measure_cpu_ceiling(Context& context, int rounds);

// Ways to copy memory with the threads of a context.
struct CpuCopy {
  std::string name;
  void (*copy)(char* to, const char* from, std::int64_t bytes);
};
// Those that go past the caches first where there are any, plain memcpy last.
std::vector<CpuCopy> cpu_copies();

// Copies with all threads of the context.
void parallel_copy(Context& context, const CpuCopy& how, void* to, const void* from,
                   std::int64_t bytes);

// Reads floats with all threads of the context: for a read rate taken in turns with what it bounds.
void parallel_read(Context& context, const void* from, std::int64_t bytes);

}  // namespace touchstone::machine
