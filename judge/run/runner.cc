// Starts children and makes their calls.
#include "judge/run/runner.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "judge/contender/child_spec.h"
#include "judge/run/call_encoding.h"
#include "judge/run/exit_reason.h"
#include "judge/run/omitted.h"
#include "judge/run/process_child.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

constexpr int64_t kStateAlignment = 64;
constexpr std::size_t kMaxLog = 64 << 10;
constexpr int kLookCalls = 16;

// Whether a child on `cpus` leaves a processor to the judge.
bool has_own_cpu(const std::vector<int>& cpus) {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  if (sched_getaffinity(0, sizeof mine, &mine) != 0) return false;
  if (cpus.empty()) return false;
  for (const int cpu : cpus) CPU_CLR(static_cast<std::size_t>(cpu), &mine);
  return CPU_COUNT(&mine) > 0;
}

// What loading any library costs: its relocated pages, and for Python the objects of a module.
constexpr int64_t kEmptyLibraryBytes = 64 << 10;
constexpr int64_t kEmptyModuleBytes = 1 << 20;
// Code pages of an interpreter and its libraries, which the memory limit of a start does not mean.
constexpr int64_t kCodeBytes = 256 << 20;

[[noreturn]] void fail(const char* what) {
  throw Error(fmt::format("judge: {}: {}", what, strerror(errno)));
}

}  // namespace

ProcessChild::ProcessChild(const Contender& contender, const BuildResult& build, const Task& task,
                           const Sandbox& sandbox, const Limits& limits)
    : contender_(contender),
      functions_(task.card().functions),
      omitted_(declared_omissions(contender, task.card())),
      may_omit_(allowed_omissions(task.card())),
      limits_(limits),
      device_(contender.language == Language::cuda),
      python_(contender.language == Language::numpy),
      sanitized_(!build.sanitized.empty() && build.library == build.sanitized),
      control_file_(memfd_create("control", MFD_CLOEXEC | MFD_ALLOW_SEALING)),
      log_file_(memfd_create("log", MFD_CLOEXEC)) {
  // Sealed, or the child could take the pages away from under the judge.
  if (ftruncate(control_file_.get(), sizeof(protocol::Control)) != 0 ||
      fcntl(control_file_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    fail("shared memory");
  }
  void* map = mmap(nullptr, sizeof(protocol::Control), PROT_READ | PROT_WRITE, MAP_SHARED,
                   control_file_.get(), 0);
  if (map == MAP_FAILED) fail("shared memory");
  control_ = static_cast<protocol::Control*>(map);
  JailSpec spec = child_spec(contender, build, task, sandbox, sanitized_, limits.heap);
  spec.cpus = limits.cpus;
  spec.descriptors = {{log_file_.get(), 1},
                      {log_file_.get(), 2},
                      {control_file_.get(), protocol::kControlFd},
                      {arena_.inputs_fd(), protocol::kInputsFd},
                      {arena_.outputs_fd(), protocol::kOutputsFd}};
  jail_ = std::make_unique<Jail>(spec, sandbox);
  completion_ = std::make_unique<CompletionWait>(*control_, *jail_, has_own_cpu(limits.cpus));
  // Without a file system of its own the child shares these with everybody.
  std::vector<std::string> temporary;
  if (sandbox.enabled && sandbox.files) {
    for (const auto& [folder, bytes] : spec.tmpfs) temporary.push_back(folder);
  }
  load(temporary);
}

ProcessChild::~ProcessChild() {
  jail_.reset();
  munmap(control_, sizeof(protocol::Control));
}

int64_t ProcessChild::held_bytes() const {
  if (!memory_) return 0;
  const int64_t adapter = of_adapter(control_->adapter_held);
  const int64_t pages = std::max<int64_t>(0, memory_->own(mapped_bytes_) - empty_bytes_ - adapter);
  if (!counts_heap()) return pages;
  const int64_t counted = std::max<int64_t>(0, control_->heap_held - empty_heap_ - adapter);
  return counted_or_pages(counted, pages);
}

bool ProcessChild::start_failed(const Reply& reply) {
  started_ = reply;
  alive_ = false;
  jail_->kill();
  return false;
}

// Twice: once when the harness is there, to see what a child without a contender holds, and once to
// load the contender.
void ProcessChild::load(const std::vector<std::string>& temporary) {
  Reply reply;
  control_->command_number.store(0);
  control_->outcome = protocol::kStartFailed;
  if (!command(protocol::kReset, limits_.start_seconds, nullptr, reply)) {
    start_failed(reply);
    return;
  }
  jail_->read_reports();
  stats_ = std::make_unique<ProcessStats>(jail_->program());
  memory_ =
      std::make_unique<ChildMemory>(jail_->program(), *stats_, arena_, log_file_.get(), temporary);
  freezer_ = std::make_unique<Freezer>(jail_->program());
  const int64_t allowance = python_ ? kEmptyModuleBytes : kEmptyLibraryBytes;
  empty_bytes_ = memory_->own(mapped_bytes_) + allowance;
  empty_heap_ = control_->heap_held + allowance;
  if (!command(protocol::kReset, limits_.start_seconds, nullptr, reply)) {
    start_failed(reply);
    return;
  }
  if (control_->outcome != protocol::kReturned) {
    reply.ending = Ending::crashed;
    reply.detail = fmt::format("could not be loaded: {}", note_text());
    start_failed(reply);
    return;
  }
  unpaid_seconds_ = 0.0;  // loading is nobody's call
  started_.ending = Ending::ok;
  alive_ = true;
}

CompletionWait::WaitLimits ProcessChild::wait_limits(double seconds) const {
  CompletionWait::WaitLimits w;
  w.seconds = seconds;
  w.cpus = cpus();
  if (!stats_) return w;
  w.stats = stats_.get();
  w.memory = memory_.get();
  w.before = {stats_->thread_times().queued_seconds, stats_->cpu_seconds()};
  w.most_threads = limits_.threads;
  w.most_bytes =
      limits_.memory_bytes + mapped_bytes_ + (alive_ ? stats_->memory().file : kCodeBytes);
  return w;
}

bool ProcessChild::command(protocol::Command what, double seconds, const Function* function,
                           Reply& reply) {
  thaw();
  control_->command = what;
  completion_->post(++number_);
  const Waited waited = completion_->wait(control_->ready, number_, wait_limits(seconds));
  if (waited == Waited::done) {
    freeze(mapped_bytes_ / 4096);
    return true;
  }
  die(waited, function, reply);
  return false;
}

std::string ProcessChild::log_text() const {
  std::string text(kMaxLog, '\0');
  const ssize_t got = pread(log_file_.get(), text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return text;
}

void ProcessChild::die(Waited waited, const Function* function, Reply& reply) {
  // The kernel's word about the end may come a moment after the end.
  for (int i = 0; i < 100 && waited == Waited::ended && !jail_->status(); ++i) {
    jail_->wait(std::chrono::milliseconds(10));
  }
  ExitEvidence death;
  death.waited = waited;
  death.status = jail_->status().value_or(0);
  death.refused_call = jail_->refused_call();
  jail_->kill();
  death.log = log_text();
  death.sanitized = sanitized_;
  death.function = function;
  death.control = control_;
  explain_exit(death, limits_, reply);
  alive_ = false;
}

// Queries the size of the contender's state and maps memory for it.
bool ProcessChild::make_state(const Function& function, const Call& call_of_state, uint64_t poison,
                              Reply& reply) {
  if (python_ || states_.contains(call_of_state.state)) return true;
  const auto sizer = std::ranges::find(functions_, function.sized_by, &Function::name);
  if (sizer == functions_.end()) {
    throw InvalidArgument(
        fmt::format("judge: {}: nobody says how large its state is", function.name));
  }
  Call ask;
  ask.function = sizer->name;
  ask.state = call_of_state.state;
  for (const Argument& wanted : sizer->arguments) {
    std::size_t scalar = 0;
    for (const Argument& argument : function.arguments) {
      if (argument.kind != ArgumentKind::i64 && argument.kind != ArgumentKind::f32) continue;
      if (argument.name == wanted.name) ask.scalars.push_back(call_of_state.scalars.at(scalar));
      ++scalar;
    }
  }
  const Reply answer = call(ask, last_placement_, poison);
  if (answer.ending != Ending::ok) {
    reply = answer;
    return false;
  }
  reply.state_bytes = answer.returned;
  // All states of a case lie in memory of the judge at the same time.
  if (answer.returned < 0 || answer.returned > limits_.memory_bytes - state_mapped_bytes_) {
    reply.ending = answer.returned < 0 ? Ending::refused : Ending::out_of_memory;
    reply.detail = fmt::format("{} asked for {} bytes", sizer->name, answer.returned);
    return false;
  }
  const BufferRequest need{
      protocol::kState, DType::u8, {answer.returned}, answer.returned, kStateAlignment};
  State state;
  state.layout = arena_.place(std::span(&need, 1), last_placement_, device_);
  state.poison = poison;
  arena_.poison(state.layout.buffers[0], poison);
  control_->state = call_of_state.state;
  control_->base = state.layout.base;
  control_->span = state.layout.span;
  control_->buffers[0] = state.layout.buffers[0];
  control_->buffer_count = 1;
  if (!command(protocol::kMapState, limits_.start_seconds, &function, reply)) return false;
  state_mapped_bytes_ += static_cast<int64_t>(state.layout.span);
  states_[call_of_state.state] = state;
  return true;
}

// What the child noted, copied before it is looked at: the child may write to it all the time.
std::string ProcessChild::note_text() const {
  char copy[sizeof control_->note];
  memcpy(copy, control_->note, sizeof copy);
  copy[sizeof copy - 1] = '\0';
  std::string note = copy;
  std::ranges::replace_if(
      note, [](unsigned char c) { return c < 32 || c > 126; }, '?');
  return note;
}

void ProcessChild::read_outcome(const Function& function, Reply& reply) {
  const std::string note = note_text();
  reply.returned = control_->returned;
  switch (*const_cast<const volatile uint32_t*>(&control_->outcome)) {
    case protocol::kReturned: {
      const bool refused = reply.returned != 0 && (function.returns == Returns::status ||
                                                   function.returns == Returns::handle);
      reply.ending = refused ? Ending::refused : Ending::ok;
      if (refused) reply.detail = fmt::format("returned {}", reply.returned);
      return;
    }
    case protocol::kRaised:
      reply.ending = Ending::refused;
      reply.detail = note;
      reply.returned = 1;
      return;
    case protocol::kInputFault:
      reply.ending = Ending::wrote_input;
      reply.detail = note;
      return;
    default:
      reply.ending = Ending::crashed;
      reply.detail = note.empty() ? "ended in an unknown way" : note;
      return;
  }
}

int64_t ProcessChild::cpus() const {
  const auto count =
      limits_.cpus.empty() ? std::thread::hardware_concurrency() : limits_.cpus.size();
  return std::max<int64_t>(1, static_cast<int64_t>(count));
}

// Where it has none, the kernel names no memory of the process, and other threads may hold any. A thread
// that a signal has ended goes on until it is its turn.
bool ProcessChild::has_first_thread() {
  for (int i = 0; i < 10; ++i) {
    if (stats_->pages().resident > 0 || jail_->status() || !stats_->leader_gone()) return true;
    jail_->wait(std::chrono::milliseconds(10));
  }
  return false;
}

// Canaries round everything the call could write.
void ProcessChild::check_bounds(const Function& function, const Layout& layout, const Call& call,
                                uint64_t poison, Reply& reply) {
  const auto check = [&](const protocol::Buffer& buffer, uint64_t pattern,
                         const std::string& name) {
    bool changed = false;
    const int64_t where = arena_.find_change(buffer, pattern, changed);
    if (!changed) return;
    reply.ending = Ending::wrote_outside;
    reply.detail =
        "wrote to " + describe_write_outside(name, where, static_cast<int64_t>(buffer.data_bytes));
  };
  for (uint32_t i = 0; i < layout.buffers.size(); ++i) {
    const protocol::Buffer& buffer = layout.buffers[i];
    if (buffer.echo_of != 0) {
      const std::size_t input = buffer.echo_of - 1;
      std::size_t index = 0;
      for (std::size_t k = 0; k < input; ++k) {
        if (layout.buffers[k].kind == protocol::kInput) ++index;
      }
      if (!arena_.echo_equals(buffer, call.inputs[index].data)) {
        reply.ending = Ending::wrote_input;
        reply.detail = fmt::format("changed its input {}",
                                   buffer_name(function, static_cast<uint32_t>(input)));
      }
    } else if (buffer.kind == protocol::kOutput) {
      check(buffer, poison, buffer_name(function, i));
      // On a device the data of a refused call stay there.
      if (reply.ending == Ending::refused && !device_ && !arena_.is_untouched(buffer, poison)) {
        reply.touched = buffer_name(function, i);
      }
    }
  }
  const auto state = states_.find(call.state);
  if (!device_ && has_kind(function, ArgumentKind::state) && state != states_.end()) {
    check(state->second.layout.buffers[0], state->second.poison,
          buffer_name(function, protocol::kStateBuffer));
  }
}

Reply ProcessChild::call(const Call& call, Placement placement, uint64_t poison) {
  Reply reply;
  if (!alive_) {
    reply.detail = "the child is no more";
    return reply;
  }
  if (placement != Placement::repeat) last_placement_ = placement;
  const auto found = std::ranges::find(functions_, call.function, &Function::name);
  if (found == functions_.end()) {
    throw InvalidArgument(fmt::format("judge: the contract has no function {}", call.function));
  }
  const Function& function = *found;
  const std::vector<BufferRequest> needs = buffer_requests(function, call, device_);
  if (has_kind(function, ArgumentKind::handle) && !handles_.contains(call.state)) {
    reply.detail = "the handle it needs was never made";
    return reply;
  }
  if (function.optional && !contender_.binding.functions.contains(function.name)) {
    reply.ending = Ending::refused;
    reply.detail = "the contender has no such function";
    reply.returned = -1;
    return reply;
  }
  const bool with_state = has_kind(function, ArgumentKind::state);
  if (with_state && !make_state(function, call, poison, reply)) return reply;
  const Layout layout = arena_.place(needs, last_placement_, device_);
  const auto span = static_cast<int64_t>(layout.span);
  mapped_bytes_ = python_ ? mapped_bytes_ + span : state_mapped_bytes_ + span;
  array_bytes_ = 0;
  for (const protocol::Buffer& buffer : layout.buffers) {
    array_bytes_ += static_cast<int64_t>(buffer.data_bytes);
  }
  encode_call(functions_, function, call, *control_);
  protocol::Control& c = *control_;
  c.makes_state = with_state && python_ && !python_states_.contains(call.state) ? 1 : 0;
  const bool makes_state = c.makes_state != 0;
  c.base = layout.base;
  c.span = layout.span;
  c.buffer_count = static_cast<uint32_t>(layout.buffers.size());
  c.read_window = static_cast<uint32_t>(limits_.read_window);
  std::ranges::copy(layout.buffers, c.buffers);
  const bool answered_at_all = !limits_.measured ? quick_call(function, call, layout, poison, reply)
                               : device_ ? device_call(function, call, layout, poison, reply)
                                         : measured_call(function, call, layout, poison, reply);
  if (!answered_at_all) return reply;
  if (!has_first_thread()) {
    reply.outputs.clear();
    die(Waited::leader_gone, &function, reply);
    return reply;
  }
  // Short calls end before anybody looks at what they hold.
  if (++calls_ % kLookCalls == 0) {
    const ProcessStats::Memory memory = stats_->memory();
    const int64_t held = memory.resident + memory.tables + memory_->outside();
    if (held > wait_limits(0.0).most_bytes) {
      reply.outputs.clear();
      die(Waited::over_memory, &function, reply);
      return reply;
    }
  }
  for (std::size_t i = 0; i < layout.buffers.size() && limits_.read_window > 0; ++i) {
    if (layout.buffers[i].kind != protocol::kInput) continue;
    reply.page_reads.push_back(static_cast<int64_t>(
        std::min<uint64_t>(control_->page_reads[i], std::numeric_limits<int32_t>::max())));
  }
  read_outcome(function, reply);
  // Of a refused call on a device the inputs are wanted back, to see that they are as they were.
  const bool answered = reply.ending == Ending::ok;
  if ((device_ && (answered || reply.ending == Ending::refused)) ||
      (python_ && with_state && answered)) {
    Reply fetched;
    if (!command(protocol::kFetch, limits_.call_seconds, &function, fetched)) return fetched;
    if (device_ && answered) capture(call, layout, reply);
    if (python_ && makes_state) reply.state_bytes = std::max<int64_t>(0, control_->state_bytes);
  }
  if (reply.ending == Ending::ok || reply.ending == Ending::refused) {
    check_bounds(function, layout, call, poison, reply);
  }
  if (reply.ending == Ending::ok) {
    mark_omitted(omitted_, may_omit_, python_ ? note_text() : std::string(), call, reply);
    if (makes_state) python_states_.insert(call.state);
    if (function.returns == Returns::handle) handles_.insert(call.state);
    const auto state = states_.find(call.state);
    if (with_state && state != states_.end()) {
      reply.state_bytes = static_cast<int64_t>(state->second.layout.buffers[0].data_bytes);
    }
    return reply;
  }
  // One that was there before under the same number is not what the next calls mean.
  if (function.returns == Returns::handle) handles_.erase(call.state);
  reply.outputs.clear();
  if (reply.ending != Ending::refused) {
    alive_ = false;
    jail_->kill();
  }
  return reply;
}

bool ProcessChild::begin(Placement placement, Reply& reply) {
  if (!alive_) return false;
  states_.clear();
  handles_.clear();
  python_states_.clear();
  arena_.restart(placement == Placement::repeat);
  const bool there = command(protocol::kReset, limits_.call_seconds, nullptr, reply);
  mapped_bytes_ = 0;
  state_mapped_bytes_ = 0;
  return there;
}

std::vector<Reply> ProcessChild::run(const Case& c, Placement placement, uint64_t poison) {
  std::vector<Reply> replies(c.calls.size());
  Reply reset;
  if (!begin(placement, reset)) {
    if (!replies.empty()) replies[0] = reset;
    return replies;
  }
  for (std::size_t i = 0; i < c.calls.size() && alive_; ++i) {
    replies[i] = call(c.calls[i], placement, poison + i);
  }
  if (alive_ && freezes()) freezer_->request_freeze();
  return replies;
}

std::unique_ptr<Child> Child::start(const Contender& contender, const BuildResult& build,
                                    const Task& task, const Sandbox& sandbox,
                                    const Limits& limits) {
  if (!build.built)
    throw InvalidArgument("judge: a contender that was not built cannot be started");
  return std::make_unique<ProcessChild>(contender, build, task, sandbox, limits);
}

}  // namespace touchstone::judge
