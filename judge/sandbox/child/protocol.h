// What the judge and a child say to each other, byte by byte. Shared by both; depends on nothing.
//
// Three pieces of shared memory: this control block, a file of inputs that only the judge can
// write (sealed), a file of outputs. The judge trusts nothing in the control block but
// "this call is done": what a child returns is checked, what it notes only names a failure.
#pragma once

#include <atomic>
#include <cstdint>

namespace touchstone::judge::protocol {

// Descriptors a child finds open when it starts.
inline constexpr int kControlFd = 10;
inline constexpr int kInputsFd = 11;
inline constexpr int kOutputsFd = 12;

inline constexpr int kMaxBuffers = 24;
inline constexpr int kMaxScalars = 16;
inline constexpr int kMaxPointers = 24;
inline constexpr int kMaxRank = 8;

enum Command : uint32_t {
  kMap = 1,   // map the buffers of the next call, and touch every page
  kMapState,  // map one buffer and keep it as a state
  kCall,      // get ready; set `ready`; wait for `go`; call; set `done`
  kFetch,     // bring the outputs of the last call into shared memory (devices only)
  kReset,     // forget all buffers, states and handles
  kQuit,
  kMapAndCall,  // kMap, then kCall: one wake-up less where nothing is measured
};

enum BufferKind : uint32_t { kInput = 0, kOutput = 1, kState = 2 };

// Where one tensor lies. Pages before and behind `mapped_bytes` are not accessible.
struct Buffer {
  uint32_t kind;
  uint32_t dtype;  // touchstone::DType
  uint64_t file_offset;
  uint64_t mapped_bytes;
  uint64_t address_offset;  // of the mapped pages, from the base address of the call
  uint64_t data_offset;     // of the first element, from the mapped pages
  uint64_t data_bytes;
  uint32_t rank;
  uint32_t echo_of;  // devices: where 1 + the number of an input comes back to be looked at; or 0
  int64_t shape[kMaxRank];
};

// What is passed for one pointer argument.
enum PointerKind : uint32_t { kBufferPointer = 0, kStatePointer = 1, kHandlePointer = 2 };
struct Pointer {
  uint32_t kind;
  uint32_t buffer;  // index, for kBufferPointer
};

enum ReturnKind : uint32_t { kStatus = 0, kSize = 1, kHandle = 2, kNothing = 3 };

// How the child says a call went. Anything but kReturned and kRaised ends the child.
enum Outcome : uint32_t {
  kReturned = 0,
  kRaised,        // Python: an exception; `note` says which
  kThrew,         // C++: an exception left the function; `note` says which
  kGuardFault,    // a guard page was touched: fault_buffer, fault_offset
  kInputFault,    // an input page was written: fault_buffer, fault_offset
  kOtherFault,    // some other bad address: fault_offset holds it
  kStartFailed,   // the contender could not be loaded; `note` says why
  kDeviceFailed,  // the device runtime reported a failure
  kHeapFault,     // an address of the guarded heap that is in no block
};

// What fault_buffer says where it is no buffer of the current call.
inline constexpr uint32_t kStateBuffer = ~0U;
inline constexpr uint32_t kEarlierCall = ~0U - 1;

struct Control {
  // Sequence numbers: each holds the number of the command it was last set for. One cache line each.
  alignas(64) std::atomic<uint32_t> command_number;  // judge: a command is there
  alignas(64) std::atomic<uint32_t> go;              // judge: now
  alignas(64) std::atomic<uint32_t> ready;           // child: command done, or ready for `go`
  alignas(64) std::atomic<uint32_t> done;            // child: the call returned
  alignas(64) std::atomic<uint32_t> judge_sleeps;    // the judge needs a futex wake

  // Written by the judge.
  alignas(64) uint32_t command;
  int32_t function;
  int32_t state;
  uint32_t returns;
  uint32_t scalar_count;
  uint32_t pointer_count;
  uint32_t buffer_count;
  uint32_t makes_state;          // this call is the first with its state
  uint64_t base;                 // address the judge picked for the buffers
  uint64_t span;                 // bytes from there to the end of the last guard
  int64_t scalars[kMaxScalars];  // int64_t, or the bits of a double
  uint32_t scalar_is_float[kMaxScalars];
  Pointer pointers[kMaxPointers];
  Buffer buffers[kMaxBuffers];
  uint32_t spins;  // look for `go` instead of sleeping until it comes
  // Pages of each input that are readable at a time, in a run that counts how often pages are read;
  // 0: all of them.
  uint32_t read_window;

  // Written by the child.
  alignas(64) int64_t returned;
  int64_t state_bytes;  // Python: size of the arrays in the state
  // With a heap that counts: bytes held when the child last reported, and the most that were held
  // during the last call beyond what was held before it; -1 without.
  int64_t heap_held;
  int64_t heap_extra;
  // Of an adapter whose heap counts: bytes held after the last call, and the most during it beyond
  // what was held before; 0 without.
  int64_t adapter_held;
  int64_t adapter_extra;
  uint32_t outcome;
  uint32_t fault_buffer;
  int64_t fault_offset;  // from the first element of that buffer, or the address
  char note[512];
  uint64_t page_reads[kMaxBuffers];  // by buffer, where read_window is not 0
};

static_assert(std::atomic<uint32_t>::is_always_lock_free);

// Reports of the jail's own processes to the judge, over a socket that contender code never has.
enum ReportKind : uint32_t {
  kLayers = 1,  // value: Layer bits that stand; text: one line for each that does not
  kHere,   // sent by the contender's process before it becomes one: its credentials tell its id
  kEnded,  // value: wait status
  kRefusedCall,  // value: number of the system call; text: its name
  kBroken,       // the jail could not be built; text says why
  kOverMemory,   // all its processes together held more than the limit `memory_bytes`
};
enum Layer : uint32_t {
  kUserSpace = 1,
  kPidSpace = 2,
  kNetSpace = 4,
  kIpcSpace = 8,
  kNameSpace = 16,
  kMountSpace = 32,
  kFilter = 64,
  kRlimits = 128,
  kProc = 256,
  kUser = 512,  // the program is not the user 0 of the machine
};
struct Report {
  uint32_t kind;
  int32_t value;
  char text[1008];
};

// Descriptors of the jail's first process.
inline constexpr int kReportFd = 3;
inline constexpr int kSpecFd = 4;      // lines of text, jail.cc
inline constexpr int kLifetimeFd = 5;  // when the other end closes, everything in the jail ends

}  // namespace touchstone::judge::protocol
