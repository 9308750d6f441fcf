#include "judge/run/freezer.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "judge/run/process_stats.h"

namespace touchstone::judge {
namespace {

// A machine so busy that a signal takes longer is not measured on anyway.
constexpr std::chrono::milliseconds kMaxWait{200};

bool at_rest(char state) { return state == 'T' || state == 't' || state == 'X' || state == 'Z'; }

}  // namespace

Freezer::Freezer(pid_t pid)
    : pid_(pid), stat_(open(fmt::format("/proc/{}/stat", pid).c_str(), O_RDONLY | O_CLOEXEC)) {}

bool Freezer::all_stopped() const {
  const ThreadState leader = read_thread_state(stat_.get());
  if (!at_rest(leader.state)) return false;
  if (leader.threads <= 1) return true;
  const std::string folder = fmt::format("/proc/{}/task", pid_);
  DIR* tasks = opendir(folder.c_str());
  if (tasks == nullptr) return true;
  bool stopped = true;
  while (const dirent* entry = readdir(tasks)) {
    if (entry->d_name[0] == '.') continue;
    const Descriptor stat(
        open(fmt::format("{}/{}/stat", folder, entry->d_name).c_str(), O_RDONLY | O_CLOEXEC));
    stopped = stopped && at_rest(read_thread_state(stat.get()).state);
  }
  closedir(tasks);
  return stopped;
}

void Freezer::request_freeze() {
  if (pid_ > 0) kill(pid_, SIGSTOP);
  frozen_ = true;
}

void Freezer::freeze() {
  if (!frozen_) request_freeze();
  const auto begin = std::chrono::steady_clock::now();
  // Where others want the processor, the child may be waiting for the one that is looking.
  constexpr int kEagerLooks = 16;
  constexpr std::chrono::milliseconds kAgain{1};
  auto next = begin + kAgain;
  for (int looks = 0; !all_stopped() && std::chrono::steady_clock::now() - begin < kMaxWait;) {
    if (++looks > kEagerLooks) std::this_thread::yield();
    // A signal that has it continue may have taken the first one away.
    if (std::chrono::steady_clock::now() < next) continue;
    if (pid_ > 0) kill(pid_, SIGSTOP);
    next += kAgain;
  }
}

void Freezer::thaw() {
  if (!frozen_) return;
  frozen_ = false;
  if (pid_ > 0) kill(pid_, SIGCONT);
}

}  // namespace touchstone::judge
