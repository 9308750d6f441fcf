// OpenMP, for comparison only. Implemented by openmp.cc, or by no_openmp.cc where the compiler has
// none.
#pragma once

#include <cstdint>

namespace touchstone::bench {

bool has_openmp();

// Threads of the parallel regions started from this thread, ours and those of libraries.
void set_openmp_threads(int threads);

// Calls body(task) for every task in [0, tasks) in one parallel region.
void openmp_loop(int threads, std::int64_t tasks, void (*body)(void* self, std::int64_t task),
                 void* self);

}  // namespace touchstone::bench
