#include "judge/run/child_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>

#include "judge/sandbox/child/sandbox_layers.h"

namespace touchstone::judge {
namespace {

int64_t used_bytes(const std::vector<Descriptor>& file_systems) {
  int64_t bytes = 0;
  for (const Descriptor& fd : file_systems) {
    struct statvfs now {};
    if (fd.get() >= 0 && fstatvfs(fd.get(), &now) == 0) bytes += child::used_bytes(now);
  }
  return bytes;
}

}  // namespace

ChildMemory::ChildMemory(pid_t pid, const ProcessStats& stats, const Arena& arena, int log_fd,
                         const std::vector<std::string>& temporary)
    : stats_(stats), arena_(arena), log_fd_(log_fd) {
  for (const std::string& folder : temporary) {
    const Descriptor root(
        open(fmt::format("/proc/{}/root", pid).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (root.get() < 0) continue;
    Descriptor fd(openat(root.get(), folder.c_str() + 1, O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (fd.get() >= 0) temporary_.push_back(std::move(fd));
  }
  temporary_before_ = used_bytes(temporary_);
}

int64_t ChildMemory::outside() const {
  int64_t bytes =
      arena_.foreign_bytes() + std::max<int64_t>(0, used_bytes(temporary_) - temporary_before_);
  struct stat log {};
  if (fstat(log_fd_, &log) == 0) bytes += static_cast<int64_t>(log.st_blocks) * 512;
  return bytes;
}

int64_t ChildMemory::watch_outside() {
  const int64_t now = outside();
  most_outside_ = std::max(most_outside_, now);
  return now;
}

void ChildMemory::forget_outside() { most_outside_ = outside(); }

int64_t ChildMemory::own(int64_t mapped) const {
  const ProcessStats::Memory now = stats_.memory();
  // What is mapped of the files outside is in both numbers.
  const int64_t shared = std::max<int64_t>(0, now.shared - mapped);
  return now.resident - now.file - now.shared + std::max(shared, outside());
}

}  // namespace touchstone::judge
