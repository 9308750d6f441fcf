// The heap of a child that is to show what it does to memory: every block ends at an inaccessible
// page, is filled with values that are no zeros, and becomes inaccessible when it is given back.
// Linked into a program, it takes the place of the C library's heap for all that is loaded there;
// the code under test is the same as ever.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "heap_watch.h"

extern "C" {
void* __libc_malloc(size_t);
void __libc_free(void*);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
}

namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kRegionBytes = uint64_t{64} << 30;  // of addresses; none is used twice
constexpr uint64_t kPages = kRegionBytes / kPage;
// The kernel allows a process some 65000 mappings; a block needs two. What is beyond gets a plain
// block.
constexpr int64_t kMaxBlocks = 24000;
constexpr size_t kAlignment = 16;
// Round a block, where no page border can be.
constexpr uint8_t kCanary = 0xc5;
// By turns: not a number as float or double, and a small positive one.
constexpr uint8_t kFills[] = {0xff, 0x3f};

struct Block {
  uint64_t bytes;
  uint64_t pages;
};

std::atomic<uint8_t*> g_region{nullptr};
std::atomic<Block*> g_blocks{nullptr};  // by the page that a block begins in
std::atomic<uint64_t> g_used{0};        // pages
std::atomic<int64_t> g_live{0};
std::atomic<uint64_t> g_turn{0};

void* reserve(uint64_t bytes, int protection) {
  void* at = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return at == MAP_FAILED ? nullptr : at;
}

bool ready() {
  if (g_region.load(std::memory_order_acquire) != nullptr) return true;
  static std::atomic_flag busy = ATOMIC_FLAG_INIT;
  while (busy.test_and_set(std::memory_order_acquire)) {
  }
  if (g_region.load() == nullptr) {
    g_blocks = static_cast<Block*>(reserve(kPages * sizeof(Block), PROT_READ | PROT_WRITE));
    if (g_blocks.load() != nullptr)
      g_region = static_cast<uint8_t*>(reserve(kRegionBytes, PROT_NONE));
  }
  busy.clear(std::memory_order_release);
  return g_region.load() != nullptr;
}

bool is_ours(const void* pointer) {
  const uint8_t* region = g_region.load(std::memory_order_acquire);
  const auto* at = static_cast<const uint8_t*>(pointer);
  return region != nullptr && at >= region && at < region + kRegionBytes;
}

Block& block_of(const void* pointer) {
  const auto offset = static_cast<uint64_t>(static_cast<const uint8_t*>(pointer) - g_region.load());
  return g_blocks.load()[offset / kPage];
}

void fill(uint8_t* at, size_t bytes) {
  memset(at, kFills[g_turn.fetch_add(1, std::memory_order_relaxed) % 2], bytes);
}

void* plain_block(size_t alignment, size_t bytes) {
  void* at = alignment <= kAlignment ? __libc_malloc(bytes) : __libc_memalign(alignment, bytes);
  if (at != nullptr) fill(static_cast<uint8_t*>(at), bytes);
  return at;
}

void* guarded_block(size_t alignment, size_t bytes) {
  alignment = std::max(alignment, kAlignment);
  if (alignment > kPage || bytes > kRegionBytes / 2 || !ready()) return nullptr;
  const uint64_t room =
      std::max<uint64_t>((bytes + alignment - 1) / alignment * alignment, alignment);
  const uint64_t pages = (room + kPage - 1) / kPage;
  const uint64_t first = g_used.fetch_add(pages + 1);
  if (first + pages + 1 > kPages) return nullptr;
  uint8_t* begin = g_region.load() + first * kPage;
  if (mprotect(begin, pages * kPage, PROT_READ | PROT_WRITE) != 0) return nullptr;
  uint8_t* at = begin + pages * kPage - room;
  memset(begin, kCanary, static_cast<size_t>(at - begin));
  memset(at + bytes, kCanary, room - bytes);
  fill(at, bytes);
  block_of(at) = {bytes, pages};
  g_live.fetch_add(1, std::memory_order_relaxed);
  return at;
}

void* allocate(size_t alignment, size_t bytes) {
  void* at = g_live.load(std::memory_order_relaxed) < kMaxBlocks ? guarded_block(alignment, bytes)
                                                                 : nullptr;
  if (at == nullptr) at = plain_block(alignment, bytes);
  if (at == nullptr) errno = ENOMEM;
  return at;
}

// A fault at an address of the heap, which names the reason.
[[noreturn]] void fault() {
  *const_cast<volatile uint8_t*>(g_region.load() + kRegionBytes - 1) = 0;
  __builtin_trap();
}

void release(void* pointer) {
  Block& block = block_of(pointer);
  if (block.pages == 0) fault();  // given back before, or never a block
  auto* at = static_cast<uint8_t*>(pointer);
  uint8_t* begin = at - (reinterpret_cast<uint64_t>(at) % kPage);
  uint8_t* end = begin + block.pages * kPage;
  const auto is_canary = [](uint8_t byte) { return byte == kCanary; };
  if (!std::all_of(begin, at, is_canary) || !std::all_of(at + block.bytes, end, is_canary)) fault();
  const uint64_t pages = block.pages;
  block = {0, 0};
  madvise(begin, pages * kPage, MADV_DONTNEED);
  mprotect(begin, pages * kPage, PROT_NONE);
  g_live.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace

#define TOUCHSTONE_HEAP __attribute__((visibility("default")))

extern "C" {

bool touchstone_heap_owns(uint64_t address) { return is_ours(reinterpret_cast<void*>(address)); }

TOUCHSTONE_HEAP void* malloc(size_t bytes) { return allocate(kAlignment, bytes); }

TOUCHSTONE_HEAP void free(void* pointer) {
  if (pointer == nullptr) return;
  const int kept = errno;
  if (is_ours(pointer)) {
    release(pointer);
  } else {
    __libc_free(pointer);
  }
  errno = kept;
}

TOUCHSTONE_HEAP void* calloc(size_t count, size_t size) {
  size_t bytes = 0;
  if (__builtin_mul_overflow(count, size, &bytes)) {
    errno = ENOMEM;
    return nullptr;
  }
  void* at = malloc(bytes);
  if (at != nullptr) memset(at, 0, bytes);
  return at;
}

TOUCHSTONE_HEAP void* realloc(void* pointer, size_t bytes) {
  if (pointer == nullptr) return malloc(bytes);
  if (!is_ours(pointer)) return __libc_realloc(pointer, bytes);
  if (bytes == 0) {
    free(pointer);
    return nullptr;
  }
  if (block_of(pointer).pages == 0) fault();
  void* at = malloc(bytes);
  if (at == nullptr) return nullptr;
  memcpy(at, pointer, std::min<uint64_t>(bytes, block_of(pointer).bytes));
  free(pointer);
  return at;
}

TOUCHSTONE_HEAP void* memalign(size_t alignment, size_t bytes) {
  return allocate(alignment, bytes);
}
TOUCHSTONE_HEAP void* aligned_alloc(size_t alignment, size_t bytes) {
  return allocate(alignment, bytes);
}
TOUCHSTONE_HEAP int posix_memalign(void** result, size_t alignment, size_t bytes) {
  void* at = allocate(alignment, bytes);
  if (at == nullptr) return ENOMEM;
  *result = at;
  return 0;
}
TOUCHSTONE_HEAP size_t malloc_usable_size(void* pointer) {
  if (pointer == nullptr) return 0;
  // Of a plain block only so much is known to be there.
  return is_ours(pointer) ? block_of(pointer).bytes : 0;
}

}  // extern "C"
