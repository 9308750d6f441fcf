#include "io/fuzz/allocation_count.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::size_t> allocated{0};

}  // namespace

// Not inlined: beside their callers GCC takes free() for the wrong end of operator new.
// NOLINTBEGIN
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  allocated += bytes;
  if (void* const memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
// std::stable_sort allocates its buffer this way.
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  allocated += bytes;
  return std::malloc(bytes);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
// NOLINTEND

namespace touchstone::inline v0::io {

void reset_allocated_bytes() { allocated = 0; }
std::size_t allocated_bytes() { return allocated; }

}  // namespace touchstone::inline v0::io
