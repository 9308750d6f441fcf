#include "judge_link.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <new>

#include "heap_watch.h"

namespace touchstone::judge::child {
namespace {

using namespace protocol;

// How long a child that is not stopped between `ready` and `go` looks for the judge's word before it
// sleeps. One reading of a clock lies between them, so that a spin ends long before; the limit is
// for a judge that was descheduled.
constexpr int kSpins = 20000000;

JudgeLink* g_link = nullptr;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, value, nullptr, nullptr, 0);
}

void set_and_wake(std::atomic<uint32_t>& word, uint32_t value, std::atomic<uint32_t>& sleeper) {
  word.store(value);
  if (sleeper.load() != 0) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, 1, nullptr, nullptr, 0);
  }
}

void die_of(int signal) {
  struct sigaction plain {};
  plain.sa_handler = SIG_DFL;
  sigaction(signal, &plain, nullptr);
}

}  // namespace

JudgeLink* JudgeLink::open() {
  void* control = mmap(nullptr, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED, kControlFd, 0);
  if (control == MAP_FAILED) return nullptr;
  static JudgeLink link;
  link.control_ = static_cast<Control*>(control);
  g_link = &link;
  link.catch_faults();
  return &link;
}

uint32_t JudgeLink::wait() {
  // No spin here: an idle child uses no processor time, so that the judge can see whether one works
  // when it should not.
  while (control_->command_number.load() == last_command_)
    sleep_while(control_->command_number, last_command_);
  last_command_ = control_->command_number.load();
  return control_->command;
}

void JudgeLink::count_heap() {
  control_->heap_held = touchstone_heap_held == nullptr ? -1 : touchstone_heap_held();
}

void JudgeLink::acknowledge() {
  count_heap();
  set_and_wake(control_->ready, last_command_, control_->judge_sleeps);
}

void JudgeLink::wait_for_go() {
  if (touchstone_heap_forget != nullptr) touchstone_heap_forget();
  if (adapter_.forget != nullptr) {
    adapter_.forget();
    adapter_before_ = adapter_.held();
  }
  const bool spins = control_->spins != 0;
  acknowledge();
  for (int i = 0; spins && i < kSpins; ++i) {
    if (control_->go.load(std::memory_order_acquire) == last_command_) {
      begin_counting();
      return;
    }
    relax();
  }
  uint32_t now = 0;
  while ((now = control_->go.load()) != last_command_) {
    const timespec pause{0, 1000000};
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&control_->go), FUTEX_WAIT, now, &pause, nullptr,
            0);
  }
  begin_counting();
}

void JudgeLink::begin_counting() {
  if (control_->read_window == 0 || last_.bytes == 0) return;
  reads_.arm(last_.base, last_.buffers.data(), static_cast<uint32_t>(last_.buffers.size()),
             control_->read_window);
}

void JudgeLink::finish() {
  if (control_->read_window != 0) {
    reads_.disarm();
    memcpy(control_->page_reads, reads_.counts(), sizeof control_->page_reads);
  }
  last_used_ = true;
  const int64_t before = control_->heap_held;
  count_heap();
  control_->heap_extra = touchstone_heap_most == nullptr ? -1 : touchstone_heap_most() - before;
  if (adapter_.forget != nullptr) {
    control_->adapter_held = adapter_.held();
    control_->adapter_extra = adapter_.most() - adapter_before_;
  }
  set_and_wake(control_->done, last_command_, control_->judge_sleeps);
}

bool JudgeLink::retire() {
  if (!last_used_ || spans_.empty() || last_.bytes == 0) return false;
  Span& span = spans_.back();
  span.retired = true;
  // Where this fails the array stays open, and nothing else is lost.
  (void)mmap(reinterpret_cast<void*>(span.base), span.bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  last_ = {};
  last_used_ = false;
  return true;
}

void JudgeLink::note(Outcome outcome, const char* text) {
  control_->outcome = outcome;
  snprintf(control_->note, sizeof control_->note, "%s", text);
}

bool JudgeLink::map_span(Span& span) {
  // Where the judge's address is taken, the next ones are tried at steps no buffer reaches.
  constexpr uint64_t kStep = uint64_t{1} << 40;
  void* reserved = MAP_FAILED;
  for (int attempt = 0; attempt < 16 && reserved == MAP_FAILED; ++attempt) {
    void* wish = reinterpret_cast<void*>(span.base + static_cast<uint64_t>(attempt) * kStep);
    reserved = mmap(wish, span.bytes, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  }
  if (reserved == MAP_FAILED) return false;
  span.base = reinterpret_cast<uint64_t>(reserved);
  for (const Buffer& buffer : span.buffers) {
    if (buffer.mapped_bytes == 0) continue;
    const bool input = buffer.kind == kInput;
    // Every page is touched now, so that the timed call meets no page faults of ours.
    void* pages =
        mmap(reinterpret_cast<void*>(span.base + buffer.address_offset), buffer.mapped_bytes,
             input ? PROT_READ : PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_POPULATE,
             input ? kInputsFd : kOutputsFd, static_cast<off_t>(buffer.file_offset));
    if (pages == MAP_FAILED) return false;
  }
  return true;
}

bool JudgeLink::map() {
  Span span;
  span.base = control_->base;
  span.bytes = control_->span;
  if (control_->buffer_count > kMaxBuffers) return false;
  span.buffers.assign(control_->buffers, control_->buffers + control_->buffer_count);
  last_ = {};
  last_used_ = false;
  if (span.bytes > 0 && !map_span(span)) return false;
  last_ = span;
  if (span.bytes > 0) spans_.push_back(span);
  return true;
}

bool JudgeLink::map_state() {
  Span span;
  span.base = control_->base;
  span.bytes = control_->span;
  span.buffers.assign(control_->buffers, control_->buffers + 1);
  if (!map_span(span)) return false;
  states_[control_->state] = span;
  return true;
}

void JudgeLink::reset() {
  for (const Span& span : spans_) munmap(reinterpret_cast<void*>(span.base), span.bytes);
  for (const auto& [number, span] : states_) {
    munmap(reinterpret_cast<void*>(span.base), span.bytes);
  }
  spans_.clear();
  states_.clear();
  last_ = {};
  last_used_ = false;
}

uint8_t* JudgeLink::pages(uint32_t buffer) const {
  return reinterpret_cast<uint8_t*>(last_.base + last_.buffers[buffer].address_offset);
}

void* JudgeLink::data(uint32_t buffer) const {
  if (buffer >= last_.buffers.size()) return nullptr;
  return pages(buffer) + last_.buffers[buffer].data_offset;
}

void* JudgeLink::state(int32_t number) const {
  const auto found = states_.find(number);
  if (found == states_.end()) return nullptr;
  const Span& span = found->second;
  return reinterpret_cast<void*>(span.base + span.buffers[0].address_offset +
                                 span.buffers[0].data_offset);
}

const Buffer* JudgeLink::state_buffer(int32_t number) const {
  const auto found = states_.find(number);
  return found == states_.end() ? nullptr : found->second.buffers.data();
}

// An address inside a span is one of ours: an input page that was written, or a guard.
bool JudgeLink::explain_fault(uint64_t address) {
  const auto explain = [&](const Span& span) {
    if (address < span.base || address >= span.base + span.bytes) return false;
    if (span.retired) {
      control_->outcome = kGuardFault;
      control_->fault_buffer = kEarlierCall;
      return true;
    }
    uint32_t nearest = 0;
    uint64_t best = ~uint64_t{0};
    for (uint32_t i = 0; i < span.buffers.size(); ++i) {
      const Buffer& buffer = span.buffers[i];
      const uint64_t begin = span.base + buffer.address_offset;
      const uint64_t end = begin + buffer.mapped_bytes;
      const uint64_t distance = address < begin ? begin - address
                                : address < end ? 0
                                                : address - end + 1;
      if (distance < best) {
        best = distance;
        nearest = i;
      }
    }
    const Buffer& buffer = span.buffers[nearest];
    control_->outcome = best == 0 && buffer.kind == kInput ? kInputFault : kGuardFault;
    control_->fault_buffer = buffer.kind == kState ? kStateBuffer : nearest;
    control_->fault_offset =
        static_cast<int64_t>(address - span.base - buffer.address_offset - buffer.data_offset);
    return true;
  };
  for (const Span& span : spans_) {
    if (explain(span)) return true;
  }
  for (const auto& [number, span] : states_) {
    if (explain(span)) return true;
  }
  return false;
}

void JudgeLink::catch_faults() {
  // A stack of its own: an overflown stack could not carry the handler.
  static char stack[64 << 10];
  stack_t alternative{};
  alternative.ss_sp = stack;
  alternative.ss_size = sizeof stack;
  sigaltstack(&alternative, nullptr);
  struct sigaction action {};
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  action.sa_sigaction = [](int signal, siginfo_t* info, void*) {
    const auto address = reinterpret_cast<uint64_t>(info->si_addr);
    if (g_link != nullptr && g_link->reads_.fault(address)) return;
    if (g_link != nullptr && !g_link->explain_fault(address)) {
      const bool heap = touchstone_heap_owns != nullptr && touchstone_heap_owns(address);
      g_link->control_->outcome = heap ? kHeapFault : kOtherFault;
      g_link->control_->fault_offset = static_cast<int64_t>(address);
    }
    // Back to the same instruction, which now ends the process with the true signal.
    die_of(signal);
  };
  for (const int signal : {SIGSEGV, SIGBUS}) sigaction(signal, &action, nullptr);
}

}  // namespace touchstone::judge::child
