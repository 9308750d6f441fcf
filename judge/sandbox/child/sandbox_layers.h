// The isolation layers of a jail, one function each. All report failure by errno in the return
// value, so that the caller can name the layer that is missing and go on.
#pragma once

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
  std::vector<Limit> limits;
  std::vector<int> cpus;
  Forks forks = Forks::report;
  std::string folder = "/";
  std::vector<std::string> environment;
  std::vector<std::string> arguments;
};

// Maps the caller to user 1000 of a new user namespace. 0 or errno.
int enter_user_space();

// A new root with only what the spec lists. 0, or errno with `step` naming what failed.
int build_root(const Spec& spec, bool& has_proc, std::string& step);

int set_limits(const Spec& spec);
int drop_capabilities();
void set_cpus(const Spec& spec);

}  // namespace touchstone::judge::child
