// The isolation layers of a jail, one function each. All report failure by errno in the return
// value, so that the caller can name the layer that is missing and go on.
#pragma once

#include <sys/statvfs.h>

#include <cstdint>
#include <string>
#include <vector>

#include "syscall_filter.h"

namespace touchstone::judge::child {

struct BindMount {
  std::string from;
  std::string to;
  std::string mode;  // "ro", "rw" or "dev"
};
struct SymbolicLink {
  std::string target;
  std::string at;
};
struct Tmpfs {
  std::string at;
  std::string bytes;
};
// What lies in one. Names and attributes are in no block: they are counted as files of 1 KiB.
inline int64_t used_bytes(const struct statvfs& now) {
  return static_cast<int64_t>((now.f_blocks - now.f_bfree) * now.f_frsize) +
         static_cast<int64_t>(now.f_files - now.f_ffree) * 1024;
}
struct Limit {
  std::string name;
  unsigned long value = 0;
};

struct Spec {
  bool isolated = true;
  bool root = true;
  std::vector<BindMount> binds;
  std::vector<SymbolicLink> links;
  std::vector<Tmpfs> tmpfs;
  bool proc = false;
  bool open_proc = false;  // writable, where its user may write
  std::vector<Limit> limits;
  std::vector<int> cpus;
  Forks forks = Forks::report;
  bool pipes = false;
  std::string folder = "/";
  std::vector<std::string> environment;
  std::vector<std::string> arguments;
};

// A new user namespace. The caller is user 1000 of it; or, where it is the user 0 of the machine, 0
// until `leave_root`, with an ordinary user of the machine behind 1000. 0 or errno; `ordinary` is
// the errno of that second user, 0 where it is there or not needed.
int enter_user_space(int& ordinary);
// From the namespace's user 0 to 1000, for good. 0 or errno.
int leave_root();

// A new root with only what the spec lists. 0, or errno with `step` naming what failed.
int build_root(const Spec& spec, bool& has_proc, std::string& step);

int set_limits(const Spec& spec);

// Where memory is short, the kernel ends the calling process and those that it starts before others.
void offer_to_end_first();

// Bytes that all processes but the calling one hold, and files in the jail's temporary file systems;
// -1 where there is no /proc to count in.
int64_t held_by_all(const Spec& spec);
// The second takes what the first needs.
void drop_bounding_set();
int drop_capabilities();
void set_cpus(const Spec& spec);

}  // namespace touchstone::judge::child
