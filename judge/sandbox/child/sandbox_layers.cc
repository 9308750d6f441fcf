#include "sandbox_layers.h"

#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace touchstone::judge::child {
namespace {

int write_file(const char* path, const std::string& text) {
  const int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return errno;
  const ssize_t written = write(fd, text.data(), text.size());
  const int error = written == static_cast<ssize_t>(text.size()) ? 0 : errno;
  close(fd);
  return error;
}

// Every folder above `path`, as mkdir -p does.
void make_parents(const std::string& path) {
  for (size_t i = 1; i < path.size(); ++i) {
    if (path[i] == '/') mkdir(path.substr(0, i).c_str(), 0755);
  }
}

int make_read_only(const std::string& path) {
  mount_attr attributes{};
  attributes.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID;
  if (mount_setattr(AT_FDCWD, path.c_str(), AT_RECURSIVE, &attributes, sizeof attributes) == 0) {
    return 0;
  }
  // Kernels before 5.12. Flags that the outer namespace locked must be named again.
  struct statvfs now {};
  if (statvfs(path.c_str(), &now) != 0) return errno;
  unsigned long flags = MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID;
  if ((now.f_flag & ST_NODEV) != 0) flags |= MS_NODEV;
  if ((now.f_flag & ST_NOEXEC) != 0) flags |= MS_NOEXEC;
  if ((now.f_flag & ST_NOATIME) != 0) flags |= MS_NOATIME;
  if ((now.f_flag & ST_RELATIME) != 0) flags |= MS_RELATIME;
  return mount(nullptr, path.c_str(), nullptr, flags, nullptr) == 0 ? 0 : errno;
}

int bind_one(const BindMount& bind) {
  const std::string from = "/oldroot" + bind.from;
  const std::string to = "/newroot" + bind.to;
  struct stat info {};
  if (stat(from.c_str(), &info) != 0) return errno;
  make_parents(to);
  if (S_ISDIR(info.st_mode)) {
    mkdir(to.c_str(), 0755);
  } else {
    const int fd = open(to.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    if (fd >= 0) close(fd);
  }
  if (mount(from.c_str(), to.c_str(), nullptr, MS_BIND | MS_REC, nullptr) != 0) return errno;
  // Devices can be written to all the same; what cannot be changed is the node.
  return bind.mode == "rw" ? 0 : make_read_only(to);
}

int enter_empty_root() {
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return errno;
  // The old root stays reachable under /oldroot while the new one is furnished.
  if (mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755") != 0) return errno;
  if (mkdir("/tmp/newroot", 0755) != 0 || mkdir("/tmp/oldroot", 0755) != 0) return errno;
  if (syscall(SYS_pivot_root, "/tmp", "/tmp/oldroot") != 0 || chdir("/") != 0) return errno;
  if (mount("tmpfs", "/newroot", "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755") != 0) {
    return errno;
  }
  return 0;
}

int leave_old_root() {
  if (umount2("/oldroot", MNT_DETACH) != 0) return errno;
  // Nothing but mount points lies in it, and nothing else is to come.
  if (chdir("/newroot") != 0 || syscall(SYS_pivot_root, ".", ".") != 0) return errno;
  if (umount2(".", MNT_DETACH) != 0 || chdir("/") != 0) return errno;
  mount(nullptr, "/", nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV, nullptr);
  return 0;
}

// The user "nobody" of most systems: it owns nothing.
constexpr unsigned kOrdinaryId = 65534;
constexpr unsigned kInnerId = 1000;

// A process that stays outside, where it has the right to map two users, and does so when told to.
pid_t start_mapper(int pair[2]) {
  if (pipe2(pair, O_CLOEXEC) != 0) return -1;
  const pid_t target = getpid();
  const pid_t mapper = fork();
  if (mapper != 0) return mapper;
  char byte = 0;
  if (read(pair[0], &byte, 1) != 1) _exit(EPIPE);
  char text[64];
  snprintf(text, sizeof text, "0 0 1\n%u %u 1\n", kInnerId, kOrdinaryId);
  const std::string folder = "/proc/" + std::to_string(target);
  if (const int error = write_file((folder + "/uid_map").c_str(), text)) _exit(error);
  _exit(write_file((folder + "/gid_map").c_str(), text));
}

int map_self(uid_t uid, gid_t gid) {
  char text[64];
  snprintf(text, sizeof text, "%u %u 1", kInnerId, uid);
  if (const int error = write_file("/proc/self/uid_map", text)) return error;
  write_file("/proc/self/setgroups", "deny");
  snprintf(text, sizeof text, "%u %u 1", kInnerId, gid);
  return write_file("/proc/self/gid_map", text);
}

// Of a /proc that can be written to, everything but the program's own processes: settings of the
// kernel become read-only, and the process that guards it disappears with what tells about others.
int close_open_proc() {
  const std::string proc = "/newroot/proc/";
  struct stat info {};
  for (const char* name : {"sys", "sysrq-trigger", "irq", "bus", "fs"}) {
    const std::string at = proc + name;
    if (stat(at.c_str(), &info) != 0) continue;  // not every kernel has all of them
    if (mount(at.c_str(), at.c_str(), nullptr, MS_BIND | MS_REC, nullptr) != 0) return errno;
    if (const int error = make_read_only(at)) return error;
  }
  for (const char* name : {"1", "kcore", "keys", "key-users", "latency_stats", "timer_list",
                           "sched_debug", "kpagecount", "kpageflags", "scsi", "acpi"}) {
    const std::string at = proc + name;
    if (stat(at.c_str(), &info) != 0) continue;
    constexpr unsigned long kFlags = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC;
    const int failed = S_ISDIR(info.st_mode)
                           ? mount("tmpfs", at.c_str(), "tmpfs", kFlags, "size=4k,mode=555")
                           : mount("/oldroot/dev/null", at.c_str(), nullptr, MS_BIND, nullptr);
    if (failed != 0) return errno;
  }
  return 0;
}

int mount_proc(bool open) {
  constexpr unsigned long kFlags = MS_NOSUID | MS_NODEV | MS_NOEXEC;
  if (open) {
    if (mount("proc", "/newroot/proc", "proc", kFlags, "") != 0) return errno;
    return close_open_proc();
  }
  for (const char* options : {"hidepid=2", ""}) {
    if (mount("proc", "/newroot/proc", "proc", kFlags | MS_RDONLY, options) == 0) return 0;
  }
  return errno;
}

// The number behind a key of /proc/<pid>/status, in bytes.
int64_t status_bytes(const char* text, const char* key) {
  const char* at = strstr(text, key);
  return at == nullptr ? 0 : strtoll(at + strlen(key), nullptr, 10) << 10;
}

}  // namespace

int enter_user_space(int& ordinary) {
  const uid_t uid = geteuid();
  const gid_t gid = getegid();
  ordinary = 0;
  if (uid != 0) return unshare(CLONE_NEWUSER) != 0 ? errno : map_self(uid, gid);
  int pair[2] = {-1, -1};
  const pid_t mapper = start_mapper(pair);
  const int error = unshare(CLONE_NEWUSER) != 0 ? errno : 0;
  if (mapper > 0) {
    if (error != 0 || write(pair[1], "m", 1) != 1) kill(mapper, SIGKILL);
    int status = 0;
    waitpid(mapper, &status, 0);
    ordinary = WIFEXITED(status) ? WEXITSTATUS(status) : EPERM;
  } else {
    ordinary = EAGAIN;
  }
  close(pair[0]);
  close(pair[1]);
  if (error != 0) return error;
  return ordinary == 0 ? 0 : map_self(uid, gid);
}

int leave_root() {
  if (setgroups(0, nullptr) != 0) return errno;
  if (setresgid(kInnerId, kInnerId, kInnerId) != 0) return errno;
  return setresuid(kInnerId, kInnerId, kInnerId) != 0 ? errno : 0;
}

int64_t held_by_all(const Spec& spec) {
  DIR* processes = opendir("/proc");
  if (processes == nullptr) return -1;
  int64_t bytes = 0;
  int seen = 0;
  while (const dirent* entry = readdir(processes)) {
    const int pid = atoi(entry->d_name);
    if (pid <= 0) continue;
    ++seen;
    if (pid == getpid()) continue;
    const int fd =
        open((std::string("/proc/") + entry->d_name + "/status").c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    char text[4096];
    const ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0) continue;
    text[got] = '\0';
    bytes += status_bytes(text, "\nRssAnon:") + status_bytes(text, "\nRssShmem:") +
             status_bytes(text, "\nVmPTE:");
  }
  closedir(processes);
  for (const Tmpfs& tmpfs : spec.tmpfs) {
    struct statvfs now {};
    if (statvfs(tmpfs.at.c_str(), &now) != 0 || !spec.root) continue;
    bytes += used_bytes(now);
  }
  return seen == 0 ? -1 : bytes;
}

int build_root(const Spec& spec, bool& has_proc, std::string& step) {
  step = "an empty root";
  if (const int error = enter_empty_root()) return error;
  for (const SymbolicLink& link : spec.links) {
    const std::string at = "/newroot" + link.at;
    make_parents(at);
    if (symlink(link.target.c_str(), at.c_str()) != 0 && errno != EEXIST) return errno;
  }
  for (const Tmpfs& tmpfs : spec.tmpfs) {
    const std::string at = "/newroot" + tmpfs.at;
    step = "tmpfs at " + tmpfs.at;
    make_parents(at);
    mkdir(at.c_str(), 0755);
    // A file takes memory of the kernel even if nothing is in it.
    const std::string options = "mode=1777,nr_inodes=4096,size=" + tmpfs.bytes;
    if (mount("tmpfs", at.c_str(), "tmpfs", MS_NOSUID | MS_NODEV, options.c_str()) != 0) {
      return errno;
    }
  }
  if (spec.proc) {
    mkdir("/newroot/proc", 0755);
    has_proc = mount_proc(spec.open_proc) == 0;
  }
  for (const BindMount& bind : spec.binds) {
    step = "bind " + bind.from;
    if (const int error = bind_one(bind)) return error;
  }
  step = "leaving the old root";
  return leave_old_root();
}

int set_limits(const Spec& spec) {
  int first_error = 0;
  const auto set = [&](__rlimit_resource resource, unsigned long value) {
    // Where the hard limit is lower already, that one stays.
    rlimit now{};
    getrlimit(resource, &now);
    if (now.rlim_max < value) value = now.rlim_max;
    const rlimit wanted{value, value};
    if (setrlimit(resource, &wanted) != 0 && first_error == 0) first_error = errno;
  };
  set(RLIMIT_CORE, 0);
  // What waits in a queue is memory that is counted nowhere.
  set(RLIMIT_SIGPENDING, 64);
  for (const Limit& limit : spec.limits) {
    if (limit.name == "processes") set(RLIMIT_NPROC, limit.value);
    if (limit.name == "file_bytes") set(RLIMIT_FSIZE, limit.value);
    if (limit.name == "files") set(RLIMIT_NOFILE, limit.value);
    if (limit.name == "stack_bytes") set(RLIMIT_STACK, limit.value);
    if (limit.name == "cpu_seconds") set(RLIMIT_CPU, limit.value);
    if (limit.name == "address_bytes") set(RLIMIT_AS, limit.value);
  }
  return first_error;
}

void offer_to_end_first() { write_file("/proc/self/oom_score_adj", "1000"); }

void drop_bounding_set() {
  for (unsigned long capability = 0; capability <= 63; ++capability) {
    prctl(PR_CAPBSET_DROP, capability, 0, 0, 0);
  }
}

int drop_capabilities() {
  prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2] = {};
  return syscall(SYS_capset, &header, none) == 0 ? 0 : errno;
}

void set_cpus(const Spec& spec) {
  if (spec.cpus.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : spec.cpus) CPU_SET(static_cast<size_t>(cpu), &set);
  sched_setaffinity(0, sizeof set, &set);
}

}  // namespace touchstone::judge::child
