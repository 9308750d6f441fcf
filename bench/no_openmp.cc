// Takes the place of openmp.cc where there is no OpenMP.
#include "bench/openmp.h"

namespace touchstone::bench {

bool has_openmp() { return false; }

void set_openmp_threads(int /*threads*/) {}

void openmp_loop(int /*threads*/, std::int64_t tasks, void (*body)(void* self, std::int64_t task),
                 void* self) {
  for (std::int64_t task = 0; task < tasks; ++task) body(self, task);
}

}  // namespace touchstone::bench
