// The child's end of the shared memory: waits for commands, maps buffers, names faults. Used by the
// native child and, as a shared library, by the Python child.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "page_reads.h"
#include "protocol.h"

namespace touchstone::judge::child {

// What the heap of an adapter tells (judge/contender/adapter_heap.h); null where there is none.
struct AdapterHeap {
  int64_t (*held)() = nullptr;
  int64_t (*most)() = nullptr;
  void (*forget)() = nullptr;
};

class JudgeLink {
 public:
  // Opens the descriptors the jail left open; nullptr when they are not there.
  static JudgeLink* open();

  protocol::Control& control() { return *control_; }
  void watch_adapter(const AdapterHeap& heap) { adapter_ = heap; }

  // Sleeps until the judge posts a command, which is then in control().
  uint32_t wait();
  // The command is done.
  void acknowledge();
  // Ready for the call; returns when the judge says go.
  void wait_for_go();
  // The call returned.
  void finish();

  // Tells how a start or a call failed. Cuts `note` to what fits.
  void note(protocol::Outcome outcome, const char* text);

  // Closes the buffers of the last call for good, so that pointers kept from it lead nowhere. The
  // addresses stay taken until the next reset. False when there was nothing to close.
  bool retire();

  // Serves kMap, kMapState and kReset. False when no address is free.
  bool map();
  bool map_state();
  void reset();

  void* data(uint32_t buffer) const;  // first element of a buffer of the last kMap
  uint8_t* pages(uint32_t buffer) const;
  void* state(int32_t number) const;
  const protocol::Buffer* state_buffer(int32_t number) const;

 private:
  struct Span {
    uint64_t base = 0;
    uint64_t bytes = 0;
    bool retired = false;
    std::vector<protocol::Buffer> buffers;
  };

  void count_heap();
  bool map_span(Span& span);
  bool explain_fault(uint64_t address);
  void catch_faults();
  void begin_counting();

  protocol::Control* control_ = nullptr;
  uint32_t last_command_ = 0;
  std::vector<Span> spans_;  // oldest first
  Span last_;
  bool last_used_ = false;  // a call was made with it
  PageReads reads_;
  AdapterHeap adapter_;
  int64_t adapter_before_ = 0;
  std::map<int32_t, Span> states_;
};

}  // namespace touchstone::judge::child
