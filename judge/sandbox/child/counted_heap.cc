// A heap that counts: bytes that are held now, and the most since the count was last taken up. It is
// loaded in front of the C library into an interpreter whose memory is measured.
#include <malloc.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "heap_watch.h"

extern "C" {
void* __libc_malloc(size_t);
void __libc_free(void*);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
}

namespace {

std::atomic<int64_t> g_held{0};
std::atomic<int64_t> g_most{0};

void* added(void* block) {
  if (block == nullptr) return nullptr;
  const auto bytes = static_cast<int64_t>(malloc_usable_size(block));
  const int64_t now = g_held.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  int64_t most = g_most.load(std::memory_order_relaxed);
  while (now > most && !g_most.compare_exchange_weak(most, now, std::memory_order_relaxed)) {
  }
  return block;
}

void removed(void* block) {
  if (block == nullptr) return;
  g_held.fetch_sub(static_cast<int64_t>(malloc_usable_size(block)), std::memory_order_relaxed);
}

}  // namespace

#define TOUCHSTONE_HEAP __attribute__((visibility("default")))

extern "C" {

TOUCHSTONE_HEAP int64_t touchstone_heap_held() { return g_held.load(); }
TOUCHSTONE_HEAP int64_t touchstone_heap_most() { return g_most.load(); }
TOUCHSTONE_HEAP void touchstone_heap_forget() { g_most.store(g_held.load()); }

TOUCHSTONE_HEAP void* malloc(size_t bytes) { return added(__libc_malloc(bytes)); }
TOUCHSTONE_HEAP void* calloc(size_t count, size_t size) {
  return added(__libc_calloc(count, size));
}
TOUCHSTONE_HEAP void free(void* block) {
  removed(block);
  __libc_free(block);
}
TOUCHSTONE_HEAP void* realloc(void* block, size_t bytes) {
  // While a block is moved, both copies are there.
  const int64_t before = block == nullptr ? 0 : static_cast<int64_t>(malloc_usable_size(block));
  void* at = __libc_realloc(block, bytes);
  if (at == nullptr && bytes != 0) return nullptr;
  g_held.fetch_sub(before, std::memory_order_relaxed);
  return added(at);
}
TOUCHSTONE_HEAP void* memalign(size_t alignment, size_t bytes) {
  return added(__libc_memalign(alignment, bytes));
}
TOUCHSTONE_HEAP void* aligned_alloc(size_t alignment, size_t bytes) {
  return added(__libc_memalign(alignment, bytes));
}
TOUCHSTONE_HEAP int posix_memalign(void** result, size_t alignment, size_t bytes) {
  void* at = memalign(alignment, bytes);
  if (at == nullptr) return ENOMEM;
  *result = at;
  return 0;
}

}  // extern "C"
