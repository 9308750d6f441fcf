// Counts how often the pages of read-only buffers are read: only a few of each buffer are readable
// at a time, and every fault makes one more readable and takes the oldest away.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "protocol.h"

namespace touchstone::judge::child {

class PageReads {
 public:
  // Takes the pages of the inputs away. `base` is where the buffers were mapped.
  void arm(uint64_t base, const protocol::Buffer* buffers, uint32_t count, uint32_t window);
  // Gives all of them back.
  void disarm();
  // Called by the handler of faults. True when the address was taken away here: the instruction may
  // run again.
  bool fault(uint64_t address);

  const uint64_t* counts() const { return counts_.data(); }

 private:
  static constexpr uint32_t kMaxWindow = 64;
  struct Region {
    uint64_t begin = 0;
    uint64_t end = 0;
    uint32_t next = 0;                        // oldest of the readable pages
    std::array<uint64_t, kMaxWindow> open{};  // pages that are readable; 0: none
  };

  std::array<Region, protocol::kMaxBuffers> regions_{};
  std::array<uint64_t, protocol::kMaxBuffers> counts_{};
  uint32_t window_ = 0;  // 0: not armed
  uint64_t faults_ = 0;
  std::atomic_flag busy_ = ATOMIC_FLAG_INIT;  // threads of the contender fault at the same time
};

}  // namespace touchstone::judge::child
