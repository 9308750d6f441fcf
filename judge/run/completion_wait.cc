#include "judge/run/completion_wait.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>

#include "judge/run/contender_process.h"

namespace touchstone::judge {
namespace {

// A child that answers within this is met awake: about the wake-up of a sleeping process.
constexpr double kAwakeSeconds = 50e-6;
// How often clock, memory and life are checked while waiting.
constexpr double kLookSeconds = 1e-3;
constexpr int kMaxEmptyReadings = 100;  // of resident pages, in one wait
// Wall time granted to a command on a busy machine, as a multiple of its time limit.
constexpr double kBusyFactor = 20.0;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

uint32_t* word_of(std::atomic<uint32_t>& word) { return reinterpret_cast<uint32_t*>(&word); }

// Time for which the first thread waited because a busy machine ran others does not count, up to a point.
// Threads of its own are no others: where they had all processors, nobody else had them.
// As long as there is no process to ask, all of it may have been given to others.
bool is_late(double now, const CompletionWait::WaitLimits& limits, const Jail& jail) {
  if (now > kBusyFactor * limits.seconds) return true;
  if (limits.stats == nullptr && jail.program() <= 0) return false;
  const auto used = [](const ProcessStats& stats) {
    return CompletionWait::Used{stats.thread_times().queued_seconds, stats.cpu_seconds()};
  };
  const CompletionWait::Used by_now =
      limits.stats != nullptr ? used(*limits.stats) : used(ProcessStats(jail.program()));
  const double queued = by_now.queued_seconds - limits.before.queued_seconds;
  const double left =
      static_cast<double>(limits.cpus) * now - (by_now.cpu_seconds - limits.before.cpu_seconds);
  return now - std::max(0.0, std::min(queued, left)) > limits.seconds;
}

}  // namespace

void CompletionWait::post(uint32_t number) {
  control_.judge_sleeps.store(0);
  control_.command_number.store(number);
  syscall(SYS_futex, word_of(control_.command_number), FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

void CompletionWait::go(uint32_t number) { control_.go.store(number, std::memory_order_release); }

Waited CompletionWait::wait(std::atomic<uint32_t>& word, uint32_t number,
                            const WaitLimits& limits) {
  const Clock::time_point start = Clock::now();
  double next_look = kLookSeconds;
  int looks = 0;
  int empty_readings = 0;
  most_private_ = 0;
  while (true) {
    for (int i = 0; i < 64; ++i) {
      if (word.load(std::memory_order_acquire) == number) return Waited::done;
      relax();
    }
    const double now = seconds_since(start);
    if (!spin_ && now > kAwakeSeconds) {
      control_.judge_sleeps.store(1);
      const uint32_t seen = word.load();
      if (seen == number) return Waited::done;
      const timespec pause{0, 1000000};
      syscall(SYS_futex, word_of(word), FUTEX_WAIT, seen, &pause, nullptr, 0);
    }
    if (now < next_look) continue;
    next_look = now + kLookSeconds;
    jail_.read_reports();
    if (jail_.status() || !jail_.refused_call().empty()) {
      // A child that completed and then exited has still completed.
      return word.load() == number ? Waited::done : Waited::ended;
    }
    if (now > limits.seconds && is_late(now, limits, jail_)) return Waited::late;
    if (limits.stats == nullptr) continue;
    const int64_t outside = limits.memory == nullptr ? 0 : limits.memory->watch_outside();
    const ProcessStats::Pages pages = limits.stats->pages();
    most_private_ = std::max(most_private_, pages.resident - pages.backed);
    // A thread that a signal has ended goes on until it is its turn.
    if (pages.resident == 0 && limits.stats->leader_gone() &&
        ++empty_readings > kMaxEmptyReadings) {
      return Waited::leader_gone;
    }
    if (pages.resident + outside > limits.most_bytes) return Waited::over_memory;
    if (++looks % 8 != 0) continue;
    const ProcessStats::Memory memory = limits.stats->memory();
    if (memory.resident + memory.tables + outside > limits.most_bytes) return Waited::over_memory;
    if (memory.threads > limits.most_threads) return Waited::over_threads;
  }
}

}  // namespace touchstone::judge
