#include "bench/openmp.h"

#include <omp.h>

namespace touchstone::bench {

bool has_openmp() { return true; }

void set_openmp_threads(int threads) { omp_set_num_threads(threads); }

void openmp_loop(int threads, std::int64_t tasks, void (*body)(void* self, std::int64_t task),
                 void* self) {
#pragma omp parallel for schedule(static) num_threads(threads)
  for (std::int64_t task = 0; task < tasks; ++task) body(self, task);
}

}  // namespace touchstone::bench
