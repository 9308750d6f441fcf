#include "page_reads.h"

#include <sys/mman.h>

#include <algorithm>

namespace touchstone::judge::child {
namespace {

constexpr uint64_t kPage = 4096;
// A fault costs microseconds. Whoever reads that often has said enough, and the rest goes on
// unhindered.
constexpr uint64_t kMaxFaults = 150000;

void protect(uint64_t begin, uint64_t bytes, int rights) {
  (void)mprotect(reinterpret_cast<void*>(begin), bytes, rights);
}

}  // namespace

void PageReads::arm(uint64_t base, const protocol::Buffer* buffers, uint32_t count,
                    uint32_t window) {
  counts_.fill(0);
  regions_.fill({});
  faults_ = 0;
  for (uint32_t i = 0; i < count && i < regions_.size(); ++i) {
    if (buffers[i].kind != protocol::kInput || buffers[i].mapped_bytes == 0) continue;
    regions_[i].begin = base + buffers[i].address_offset;
    regions_[i].end = regions_[i].begin + buffers[i].mapped_bytes;
    protect(regions_[i].begin, buffers[i].mapped_bytes, PROT_NONE);
  }
  window_ = std::min(window, kMaxWindow);
}

void PageReads::disarm() {
  if (window_ == 0) return;
  window_ = 0;
  for (const Region& region : regions_) {
    if (region.end > region.begin) protect(region.begin, region.end - region.begin, PROT_READ);
  }
}

bool PageReads::fault(uint64_t address) {
  if (window_ == 0) return false;
  for (uint32_t i = 0; i < regions_.size(); ++i) {
    Region& region = regions_[i];
    if (address < region.begin || address >= region.end) continue;
    while (busy_.test_and_set(std::memory_order_acquire)) {
    }
    const uint64_t page = address / kPage * kPage;
    const auto last = region.open.begin() + window_;
    // A write to a readable page is what it always was: an error.
    const bool open = std::find(region.open.begin(), last, page) != last;
    if (!open) {
      ++counts_[i];
      uint64_t& oldest = region.open[region.next];
      if (oldest != 0 && faults_ < kMaxFaults) protect(oldest, kPage, PROT_NONE);
      oldest = page;
      region.next = (region.next + 1) % window_;
      protect(page, kPage, PROT_READ);
      ++faults_;
    }
    busy_.clear(std::memory_order_release);
    return !open;
  }
  return false;
}

}  // namespace touchstone::judge::child
