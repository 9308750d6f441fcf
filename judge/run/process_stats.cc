#include "judge/run/process_stats.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string_view>

namespace touchstone::judge {
namespace {

// "VmHWM:	   12345 kB" -> bytes
int64_t number_behind(std::string_view text, std::string_view key) {
  const std::size_t at = text.find(key);
  if (at == std::string_view::npos) return 0;
  return strtoll(text.data() + at + key.size(), nullptr, 10);
}

// The first two numbers of a schedstat file, in nanoseconds; zeros where the kernel keeps none.
ThreadTimes read_thread_times(const Descriptor& schedstat) {
  char buffer[96];
  const ssize_t got = pread(schedstat.get(), buffer, sizeof buffer - 1, 0);
  if (got <= 0) return {};
  buffer[got] = '\0';
  char* rest = nullptr;
  const auto running = static_cast<double>(strtoll(buffer, &rest, 10));
  const auto queued = static_cast<double>(strtoll(rest, nullptr, 10));
  return {1e-9 * running, 1e-9 * queued};
}

}  // namespace

ThreadState read_thread_state(int stat) {
  ThreadState result;
  char text[512];
  const ssize_t got = pread(stat, text, sizeof text - 1, 0);
  if (got <= 0) return result;
  text[got] = '\0';
  // Behind the name, which may hold anything: the state, the flags five numbers on, the count of threads
  // eleven further.
  const char* at = strrchr(text, ')');
  if (at == nullptr || at[1] == '\0') return result;
  result.state = at[2];
  constexpr unsigned kExiting = 4;  // PF_EXITING of the kernel
  for (int field = 0; field < 18 && at != nullptr; ++field) {
    at = strchr(at + 1, ' ');
    if (at != nullptr && field == 6) {
      result.exiting = (strtoul(at + 1, nullptr, 10) & kExiting) != 0;
    }
  }
  if (at != nullptr) result.threads = atoi(at + 1);
  return result;
}

ProcessStats::ProcessStats(pid_t pid)
    : pid_(pid),
      statm_(open(fmt::format("/proc/{}/statm", pid).c_str(), O_RDONLY | O_CLOEXEC)),
      status_(open(fmt::format("/proc/{}/status", pid).c_str(), O_RDONLY | O_CLOEXEC)),
      schedstat_(
          open(fmt::format("/proc/{0}/task/{0}/schedstat", pid).c_str(), O_RDONLY | O_CLOEXEC)) {}

ThreadTimes ProcessStats::thread_times() const { return read_thread_times(schedstat_); }

OwnThreadTimes::OwnThreadTimes()
    : schedstat_(open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)) {}

ThreadTimes OwnThreadTimes::thread_times() const { return read_thread_times(schedstat_); }

ProcessStats::Memory ProcessStats::memory() const {
  char buffer[4096];
  const ssize_t got = pread(status_.get(), buffer, sizeof buffer - 1, 0);
  if (got <= 0) return {};
  buffer[got] = '\0';
  const std::string_view text(buffer, static_cast<std::size_t>(got));
  Memory memory;
  memory.resident = number_behind(text, "\nVmRSS:") << 10;
  memory.file = number_behind(text, "\nRssFile:") << 10;
  memory.shared = number_behind(text, "\nRssShmem:") << 10;
  memory.peak = number_behind(text, "\nVmHWM:") << 10;
  memory.tables = number_behind(text, "\nVmPTE:") << 10;
  memory.threads = number_behind(text, "\nThreads:");
  return memory;
}

ProcessStats::Pages ProcessStats::pages() const {
  char buffer[128];
  const ssize_t got = pread(statm_.get(), buffer, sizeof buffer - 1, 0);
  if (got <= 0) return {};
  buffer[got] = '\0';
  const char* second = strchr(buffer, ' ');
  if (second == nullptr) return {};
  static const int64_t page = sysconf(_SC_PAGESIZE);
  char* rest = nullptr;
  const int64_t resident = strtoll(second, &rest, 10) * page;
  return {resident, strtoll(rest, nullptr, 10) * page};
}

bool ProcessStats::leader_gone() const {
  const std::string folder = fmt::format("/proc/{}/task", pid_);
  DIR* tasks = opendir(folder.c_str());
  if (tasks == nullptr) return false;
  bool leader_ended = false;
  bool others_go_on = false;
  while (const dirent* entry = readdir(tasks)) {
    if (entry->d_name[0] == '.') continue;
    const Descriptor stat(
        open(fmt::format("{}/{}/stat", folder, entry->d_name).c_str(), O_RDONLY | O_CLOEXEC));
    const ThreadState thread = read_thread_state(stat.get());
    const bool ended = thread.state == 'Z' || thread.state == 'X';
    if (atoi(entry->d_name) == pid_) {
      leader_ended = ended;
    } else {
      others_go_on = others_go_on || (!ended && !thread.exiting);
    }
  }
  closedir(tasks);
  return leader_ended && others_go_on;
}

void ProcessStats::forget_peak() const {
  const Descriptor fd(open(fmt::format("/proc/{}/clear_refs", pid_).c_str(), O_WRONLY | O_CLOEXEC));
  if (fd.get() >= 0 && write(fd.get(), "5", 1) != 1) return;  // then the peak stays what it was
}

double ProcessStats::cpu_seconds() const {
  clockid_t clock = 0;
  timespec time{};
  if (clock_getcpuclockid(pid_, &clock) != 0 || clock_gettime(clock, &time) != 0) return 0.0;
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace touchstone::judge
