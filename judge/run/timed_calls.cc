// One call, from the command to the copy of its outputs.
#include <algorithm>
#include <chrono>
#include <ctime>
#include <thread>

#include "judge/run/call_encoding.h"
#include "judge/run/contender_process.h"
#include "judge/run/process_child.h"

namespace touchstone::judge {
namespace {

// A child may use this much processor time on its way to sleep.
constexpr double kIdleSeconds = 100e-6;
// Waiting for a processor that others had, beyond this share of a call, makes its time one of the
// machine and not of the contender.
constexpr double kQueuedShare = 0.005;
constexpr double kQueuedSeconds = 3e-6;
// What getting ready costs an honest child: a fixed part, and mapping the pages of its buffers.
constexpr double kReadySeconds = 150e-6;
constexpr double kPythonReadySeconds = 400e-6;
constexpr double kPageSeconds = 0.6e-6;
constexpr int64_t kPageBytes = 4096;
// What a thread uses from where the kernel calls it stopped until it has left the processor.
constexpr double kStopSeconds = 20e-6;

double between(Clock::time_point a, Clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

}  // namespace

void ProcessChild::thaw() {
  if (freezes()) freezer_->thaw();
}

double ProcessChild::chargeable_seconds() const {
  return device_ ? shares().helpers : stats_->cpu_seconds();
}

double ProcessChild::busy_threads() const {
  return static_cast<double>(std::clamp<int64_t>(stats_->memory().threads, 1, cpus()));
}

void ProcessChild::charge_while_stopped() {
  const double used = chargeable_seconds() - settled_seconds_;
  if (used > kStopSeconds) unpaid_seconds_ += std::max(0.0, used - kStopSeconds * busy_threads());
}

void ProcessChild::freeze(int64_t pages) {
  if (!freezes() || !limits_.measured) return;
  freezer_->freeze();
  const double granted =
      (python_ ? kPythonReadySeconds : kReadySeconds) + kPageSeconds * static_cast<double>(pages);
  const double now = chargeable_seconds();
  // Helper threads that look for work as long as the first one maps are no cheats.
  unpaid_seconds_ += std::max(0.0, now - settled_seconds_ - granted * busy_threads());
  settled_seconds_ = now;
}

void ProcessChild::fill(const Call& call, const Layout& layout, uint64_t poison) {
  std::size_t input = 0;
  for (const protocol::Buffer& buffer : layout.buffers) {
    if (buffer.kind == protocol::kInput) {
      arena_.write_input(buffer, call.inputs[input++].data);
    } else {
      arena_.poison(buffer, poison);
    }
  }
}

void ProcessChild::make_room(const Call& call, Reply& reply) {
  for (const OutputTensor& output : call.outputs) {
    reply.outputs.emplace_back(static_cast<std::size_t>(tensor_bytes(output.dtype, output.shape)));
  }
}

void ProcessChild::capture(const Call& call, const Layout& layout, Reply& reply) {
  std::size_t output = 0;
  for (const protocol::Buffer& buffer : layout.buffers) {
    if (buffer.kind != protocol::kOutput || buffer.echo_of != 0) continue;
    if (output < call.outputs.size()) arena_.read(buffer, reply.outputs[output++]);
  }
}

ProcessChild::Shares ProcessChild::shares() const {
  const ThreadTimes times = stats_->thread_times();
  return {times.queued_seconds, stats_->cpu_seconds() - times.running_seconds,
          own_times_.thread_times().queued_seconds};
}

// Time in which others had the processor is not the contender's. Only where no other thread of its
// own ran meanwhile: that one may have had the processor, and done the work.
void ProcessChild::leave_out_queues(const Shares& before, const Shares& after, Reply& reply) {
  const double most = std::max(kQueuedSeconds, kQueuedShare * reply.seconds);
  // Of a judge that waited it is not known when it would have looked.
  reply.disturbed = after.judge_queued - before.judge_queued > most;
  const double queued = after.queued - before.queued;
  if (queued <= most) return;
  if (after.helpers - before.helpers > most || queued >= reply.seconds) {
    reply.disturbed = true;
  } else {
    reply.seconds -= queued;
  }
}

void ProcessChild::read_memory(const ProcessStats::Memory& before, int64_t outside_before,
                               Reply& reply) const {
  const ProcessStats::Memory after = stats_->memory();
  // Code that was read in for the first time is not the contender's memory.
  const int64_t code = std::max<int64_t>(0, after.file - before.file);
  reply.peak_extra_bytes = std::max<int64_t>(0, after.peak - before.resident - code);
  // Pages of files that it gave up and took again would make room for its own under that mark.
  const int64_t seen =
      completion_->most_private_bytes() - (before.resident - before.file - before.shared);
  reply.peak_extra_bytes = counted_or_pages(reply.peak_extra_bytes, seen);
  // Of what lies in files, the part that is mapped has been counted.
  const int64_t mapped = std::max<int64_t>(0, after.shared - before.shared);
  const int64_t outside = std::max(memory_->most_outside(), memory_->outside()) - outside_before;
  reply.peak_extra_bytes += std::max<int64_t>(0, outside - mapped);
  reply.peak_extra_bytes =
      std::max<int64_t>(0, reply.peak_extra_bytes - of_adapter(control_->adapter_extra));
  if (!counts_heap()) return;
  const int64_t counted =
      std::max<int64_t>(0, control_->heap_extra - of_adapter(control_->adapter_extra));
  reply.peak_extra_bytes = counted_or_pages(counted, reply.peak_extra_bytes);
}

// Nothing is measured: inputs and the word to begin are there before the child is woken, because on
// a busy machine it would spend a whole turn on the processor on looking for that word.
bool ProcessChild::quick_call(const Function& function, const Call& call, const Layout& layout,
                              uint64_t poison, Reply& reply) {
  fill(call, layout, poison);
  make_room(call, reply);
  control_->outcome = protocol::kReturned;
  control_->command = layout.buffers.empty() ? protocol::kCall : protocol::kMapAndCall;
  thaw();
  completion_->go(number_ + 1);
  completion_->post(++number_);
  const Waited waited =
      completion_->wait(control_->done, number_, wait_limits(limits_.call_seconds));
  if (waited != Waited::done) {
    die(waited, &function, reply);
    return false;
  }
  if (!device_) capture(call, layout, reply);
  return true;
}

// Has the child map its buffers and wait for the word. What is in them then is noise: the inputs
// follow when it stands still.
bool ProcessChild::get_ready(const Function& function, const Layout& layout, Reply& reply) {
  for (const protocol::Buffer& buffer : layout.buffers) {
    if (buffer.kind == protocol::kInput) arena_.clear(buffer);
  }
  control_->outcome = protocol::kReturned;
  control_->command = layout.buffers.empty() ? protocol::kCall : protocol::kMapAndCall;
  thaw();
  completion_->post(++number_);
  const Waited waited =
      completion_->wait(control_->ready, number_, wait_limits(limits_.start_seconds));
  if (waited != Waited::done) {
    die(waited, &function, reply);
    return false;
  }
  freeze(static_cast<int64_t>(layout.span) / kPageBytes);
  return true;
}

bool ProcessChild::measured_call(const Function& function, const Call& call, const Layout& layout,
                                 uint64_t poison, Reply& reply) {
  if (!get_ready(function, layout, reply)) return false;
  fill(call, layout, poison);
  make_room(call, reply);
  stats_->forget_peak();
  memory_->forget_outside();
  const ProcessStats::Memory memory_before = stats_->memory();
  const int64_t outside_before = memory_->outside();
  const CompletionWait::WaitLimits limits = wait_limits(limits_.call_seconds);
  // Of a process that runs, the kernel's counts lag behind; of one that stands still they are exact.
  const Shares before = shares();
  const double cpu_before = stats_->cpu_seconds();
  charge_while_stopped();
  completion_->go(number_);
  const Clock::time_point start = Clock::now();
  thaw();
  const Waited waited = completion_->wait(control_->done, number_, limits);
  const Clock::time_point done = Clock::now();
  if (waited != Waited::done) {
    die(waited, &function, reply);
    return false;
  }
  freezer_->request_freeze();
  Shares after = shares();  // what the first thread waited is known once it has run again
  freezer_->freeze();
  const Clock::time_point stopped = Clock::now();
  after.helpers = shares().helpers;
  reply.seconds = between(start, done);
  // Whoever worked on after the call has until now to answer for: processor time that does not fit
  // into the call, or helper threads, which may have had it at any time.
  // While it waited for a processor it had none.
  settled_seconds_ = stats_->cpu_seconds();
  reply.cpu_seconds = settled_seconds_ - cpu_before;
  const double had = std::max(0.0, reply.seconds - (after.queued - before.queued));
  const bool worked_on =
      reply.cpu_seconds > had + kIdleSeconds || after.helpers - before.helpers > kIdleSeconds;
  if (worked_on) reply.seconds += between(done, stopped);
  leave_out_queues(before, after, reply);
  reply.seconds += unpaid_seconds_;
  unpaid_seconds_ = 0.0;
  capture(call, layout, reply);
  read_memory(memory_before, outside_before, reply);
  return true;
}

// With a device: the child maps its buffers and stands still, the inputs are written, and the first
// thread copies them to the device before the clock starts. What other threads do meanwhile, and what
// anybody does after the call, is charged.
bool ProcessChild::device_call(const Function& function, const Call& call, const Layout& layout,
                               uint64_t poison, Reply& reply) {
  if (!layout.buffers.empty()) {
    for (const protocol::Buffer& buffer : layout.buffers) {
      if (buffer.kind == protocol::kInput) arena_.clear(buffer);
    }
    control_->outcome = protocol::kReturned;
    if (!command(protocol::kMap, limits_.start_seconds, &function, reply)) return false;
  }
  fill(call, layout, poison);
  make_room(call, reply);
  const CompletionWait::WaitLimits limits = wait_limits(limits_.call_seconds);
  charge_while_stopped();
  const double idle = chargeable_seconds();
  control_->outcome = protocol::kReturned;
  control_->command = protocol::kCall;
  control_->spins = 1;
  thaw();
  completion_->post(++number_);
  Waited waited = completion_->wait(control_->ready, number_, limits);
  if (waited == Waited::done) {
    const Shares before = shares();
    const Clock::time_point start = Clock::now();
    completion_->go(number_);
    waited = completion_->wait(control_->done, number_, limits);
    const Clock::time_point done = Clock::now();
    if (waited == Waited::done) {
      freezer_->request_freeze();
      Shares after = shares();
      freezer_->freeze();
      const Clock::time_point stopped = Clock::now();
      reply.seconds = between(start, done);
      settled_seconds_ = chargeable_seconds();
      const double helped = settled_seconds_ - before.helpers;
      if (helped > reply.seconds + kIdleSeconds) reply.seconds += between(done, stopped);
      leave_out_queues(before, after, reply);
      reply.seconds += std::max(0.0, before.helpers - idle - kReadySeconds) + unpaid_seconds_;
      unpaid_seconds_ = 0.0;
      return true;
    }
  }
  die(waited, &function, reply);
  return false;
}

}  // namespace touchstone::judge
