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

// The blocks of an adapter. Copies of arrays are what counts there: small blocks are not told apart.
constexpr int64_t kLarge = 4096;
constexpr size_t kBlocks = 1 << 12;
constexpr size_t kMaxProbes = 64;
std::atomic<void*> g_blocks[kBlocks];
std::atomic<bool> g_in_adapter{false};
std::atomic<int64_t> g_adapter_held{0};
std::atomic<int64_t> g_adapter_then{0};

size_t place_of(const void* block) { return (reinterpret_cast<uintptr_t>(block) >> 4) % kBlocks; }

// Replaces `from` by `to` in the table, near where the block belongs.
bool exchange_block(const void* block, void* from, void* to) {
  for (size_t i = 0; i < kMaxProbes; ++i) {
    void* expected = from;
    if (g_blocks[(place_of(block) + i) % kBlocks].compare_exchange_strong(expected, to)) {
      return true;
    }
  }
  return false;
}

void* added(void* block) {
  if (block == nullptr) return nullptr;
  const auto bytes = static_cast<int64_t>(malloc_usable_size(block));
  if (bytes >= kLarge && g_in_adapter.load(std::memory_order_relaxed) &&
      exchange_block(block, nullptr, block)) {
    g_adapter_held.fetch_add(bytes, std::memory_order_relaxed);
  }
  const int64_t now = g_held.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  int64_t most = g_most.load(std::memory_order_relaxed);
  while (now > most) {
    if (!g_most.compare_exchange_weak(most, now, std::memory_order_relaxed)) continue;
    g_adapter_then.store(g_adapter_held.load(std::memory_order_relaxed), std::memory_order_relaxed);
    break;
  }
  return block;
}

void removed(void* block) {
  if (block == nullptr) return;
  const auto bytes = static_cast<int64_t>(malloc_usable_size(block));
  if (bytes >= kLarge && g_adapter_held.load(std::memory_order_relaxed) > 0 &&
      exchange_block(block, block, nullptr)) {
    g_adapter_held.fetch_sub(bytes, std::memory_order_relaxed);
  }
  g_held.fetch_sub(bytes, std::memory_order_relaxed);
}

}  // namespace

#define TOUCHSTONE_HEAP __attribute__((visibility("default")))

extern "C" {

TOUCHSTONE_HEAP int64_t touchstone_heap_held() { return g_held.load(); }
TOUCHSTONE_HEAP int64_t touchstone_heap_most() { return g_most.load(); }
TOUCHSTONE_HEAP void touchstone_heap_forget() {
  g_most.store(g_held.load());
  g_adapter_then.store(g_adapter_held.load());
}
TOUCHSTONE_HEAP void touchstone_heap_adapter(bool running) { g_in_adapter.store(running); }
TOUCHSTONE_HEAP int64_t touchstone_heap_adapter_held() { return g_adapter_held.load(); }
TOUCHSTONE_HEAP int64_t touchstone_heap_adapter_then() { return g_adapter_then.load(); }

TOUCHSTONE_HEAP void* malloc(size_t bytes) { return added(__libc_malloc(bytes)); }
TOUCHSTONE_HEAP void* calloc(size_t count, size_t size) {
  return added(__libc_calloc(count, size));
}
TOUCHSTONE_HEAP void free(void* block) {
  removed(block);
  __libc_free(block);
}
TOUCHSTONE_HEAP void* realloc(void* block, size_t bytes) {
  // A block that cannot be moved stays where it is, and is counted again.
  removed(block);
  void* at = __libc_realloc(block, bytes);
  if (at == nullptr && bytes != 0) {
    added(block);
    return nullptr;
  }
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
