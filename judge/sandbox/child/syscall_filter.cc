#include "syscall_filter.h"

#include <fcntl.h>
#include <sched.h>
#include <seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>

namespace touchstone::judge::child {
namespace {

// Calls by which a process inspects others, leaves its namespaces, reaches the larger interfaces of
// the kernel, or hides work from the watchdogs. Numerical code has no use for any of them.
constexpr int kForbidden[] = {
    SCMP_SYS(ptrace),
    SCMP_SYS(process_vm_readv),
    SCMP_SYS(process_vm_writev),
    SCMP_SYS(pidfd_getfd),
    SCMP_SYS(kcmp),
    SCMP_SYS(keyctl),
    SCMP_SYS(add_key),
    SCMP_SYS(request_key),
    SCMP_SYS(bpf),
    SCMP_SYS(perf_event_open),
    SCMP_SYS(userfaultfd),
    SCMP_SYS(io_uring_setup),
    SCMP_SYS(io_uring_enter),
    SCMP_SYS(io_uring_register),
    SCMP_SYS(mount),
    SCMP_SYS(umount2),
    SCMP_SYS(pivot_root),
    SCMP_SYS(chroot),
    SCMP_SYS(fsopen),
    SCMP_SYS(fsmount),
    SCMP_SYS(open_tree),
    SCMP_SYS(move_mount),
    SCMP_SYS(mount_setattr),
    SCMP_SYS(open_by_handle_at),
    SCMP_SYS(name_to_handle_at),
    SCMP_SYS(unshare),
    SCMP_SYS(setns),
    SCMP_SYS(init_module),
    SCMP_SYS(finit_module),
    SCMP_SYS(delete_module),
    SCMP_SYS(kexec_load),
    SCMP_SYS(reboot),
    SCMP_SYS(swapon),
    SCMP_SYS(swapoff),
    SCMP_SYS(acct),
    SCMP_SYS(quotactl),
    SCMP_SYS(settimeofday),
    SCMP_SYS(clock_settime),
    SCMP_SYS(sethostname),
    SCMP_SYS(setdomainname),
    SCMP_SYS(seccomp),
};

constexpr uint64_t kPageOut = 21;              // MADV_PAGEOUT; older headers do not have it
constexpr uint64_t kNameMapping = 0x53564d41;  // PR_SET_VMA; older headers do not have it
// Of an argument that the kernel takes as an int it looks at the lower half alone: a number that differs in
// the upper one is the same to it.
constexpr uint64_t kInt = 0xffffffff;

// Locks, leases and notices of files: what one process sets others see, that of a fresh process among them.
constexpr uint64_t kLockCommands[] = {F_SETLK,      F_SETLKW,   F_OFD_SETLK,
                                      F_OFD_SETLKW, F_SETLEASE, F_NOTIFY};
// What others have read lately is in memory and can be told from what is not.
constexpr int kCacheStat = 451;  // older headers do not have it
constexpr uint64_t kNoWait = 8;  // RWF_NOWAIT: only what is in memory
constexpr int kFileSignals[] = {SCMP_SYS(flock), SCMP_SYS(inotify_init), SCMP_SYS(inotify_init1),
                                SCMP_SYS(fanotify_init)};

constexpr uint64_t kNewNamespaces[] = {
    CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET,    CLONE_NEWIPC,
    CLONE_NEWUTS,  CLONE_NEWNS,  CLONE_NEWCGROUP,
};

class Filter {
 public:
  // `forbidden` is what a forbidden call leads to. Calls of another architecture, x32 among them,
  // would bypass the list: they end the process.
  Filter(Forks forks, bool pipes, uint32_t forbidden)
      : forks_(forks),
        pipes_(pipes),
        forbidden_(forbidden),
        context_(seccomp_init(SCMP_ACT_ALLOW)) {
    valid_ = context_ != nullptr &&
             seccomp_attr_set(context_, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS) == 0;
    if (valid_) add_rules();
  }
  ~Filter() {
    if (context_ != nullptr) seccomp_release(context_);
  }
  Filter(const Filter&) = delete;
  Filter& operator=(const Filter&) = delete;

  // For good; sets no_new_privs too.
  bool load() { return valid_ && seccomp_load(context_) == 0; }
  int listener() const { return seccomp_notify_fd(context_); }

 private:
  template <class... Conditions>
  void add(uint32_t action, int call, Conditions... conditions) {
    const int status =
        seccomp_rule_add(context_, action, call, sizeof...(conditions), conditions...);
    valid_ = valid_ && status == 0;
  }

  void add_rules() {
    for (const int call : kForbidden) add(forbidden_, call);
    const uint32_t fork_action = forks_ == Forks::report ? forbidden_ : SCMP_ACT_ERRNO(EAGAIN);
    if (forks_ != Forks::allow) {
      add(fork_action, SCMP_SYS(fork));
      add(fork_action, SCMP_SYS(vfork));
    }
    // The judge chooses the processors. Setting an affinity reports success and has no effect.
    add(SCMP_ACT_ERRNO(0), SCMP_SYS(sched_setaffinity));
    // Its flags lie in memory, where a filter cannot look; the C library falls back to clone.
    add(SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3));
    // clone: new namespaces never; a new process by `forks`; threads always. The conditions exclude
    // each other, so that their order does not matter.
    uint64_t process_flags = CLONE_THREAD;
    for (const uint64_t flag : kNewNamespaces) {
      add(forbidden_, SCMP_SYS(clone), SCMP_A0(SCMP_CMP_MASKED_EQ, flag, flag));
      process_flags |= flag;
    }
    if (forks_ != Forks::allow) {
      add(fork_action, SCMP_SYS(clone), SCMP_A0(SCMP_CMP_MASKED_EQ, process_flags, 0));
    }
    // Limits of itself only: those of the process that guards this one would silence it.
    add(SCMP_ACT_ERRNO(EPERM), SCMP_SYS(prlimit64), SCMP_A0(SCMP_CMP_NE, 0));
    if (forks_ != Forks::allow) keep_signals_inside();
    if (forks_ != Forks::refuse) keep_memory_countable();
    // A filter of its own would keep forbidden calls from being reported.
    add(forbidden_, SCMP_SYS(prctl), SCMP_A0(SCMP_CMP_MASKED_EQ, kInt, PR_SET_SECCOMP));
    // Sockets: only those that stay in this machine and in this mount namespace; none for contenders,
    // because what lies in them is memory that is counted nowhere.
    if (forks_ == Forks::report) {
      add(SCMP_ACT_ERRNO(EACCES), SCMP_SYS(socket));
      add(SCMP_ACT_ERRNO(EACCES), SCMP_SYS(socketpair));
      if (!pipes_) refuse_pipes();
      for (const int call : kFileSignals) add(SCMP_ACT_ERRNO(ENOLCK), call);
      add(SCMP_ACT_ERRNO(ENOSYS), kCacheStat);
      add(SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(mincore));
      add(SCMP_ACT_ERRNO(EOPNOTSUPP), SCMP_SYS(preadv2),
          SCMP_A5(SCMP_CMP_MASKED_EQ, kNoWait, kNoWait));
      for (const uint64_t command : kLockCommands) {
        add(SCMP_ACT_ERRNO(ENOLCK), SCMP_SYS(fcntl), SCMP_A1(SCMP_CMP_MASKED_EQ, kInt, command));
      }
    } else {
      add(SCMP_ACT_ERRNO(EACCES), SCMP_SYS(socket), SCMP_A0(SCMP_CMP_NE, AF_UNIX));
    }
  }

  // What lies in a pipe is memory of no process, and so are pages that are only moved there.
  void refuse_pipes() {
    for (const int call : {SCMP_SYS(pipe), SCMP_SYS(pipe2)}) add(SCMP_ACT_ERRNO(EMFILE), call);
    for (const int call : {SCMP_SYS(mknod), SCMP_SYS(mknodat), SCMP_SYS(tee), SCMP_SYS(splice),
                           SCMP_SYS(vmsplice)}) {
      add(SCMP_ACT_ERRNO(EPERM), call);
    }
    add(SCMP_ACT_ERRNO(EPERM), SCMP_SYS(fcntl), SCMP_A1(SCMP_CMP_MASKED_EQ, kInt, F_SETPIPE_SZ));
  }

  // A process that has no others may signal itself.
  void keep_signals_inside() {
    const auto own = static_cast<uint64_t>(getpid());
    for (const int call : {SCMP_SYS(kill), SCMP_SYS(tgkill), SCMP_SYS(rt_sigqueueinfo),
                           SCMP_SYS(rt_tgsigqueueinfo)}) {
      add(SCMP_ACT_ERRNO(EPERM), call, SCMP_A0(SCMP_CMP_NE, own));
    }
    for (const int call : {SCMP_SYS(tkill), SCMP_SYS(pidfd_open), SCMP_SYS(pidfd_send_signal)}) {
      add(SCMP_ACT_ERRNO(EPERM), call);
    }
    // Nor may it continue itself when the judge stops it: a pending stop is gone with such a signal, and a
    // timer sends one to a process that stands still. What a timer sends lies in memory.
    for (const int call : {SCMP_SYS(kill), SCMP_SYS(rt_sigqueueinfo)}) {
      add(SCMP_ACT_ERRNO(EPERM), call, SCMP_A1(SCMP_CMP_MASKED_EQ, kInt, SIGCONT));
    }
    for (const int call : {SCMP_SYS(tgkill), SCMP_SYS(rt_tgsigqueueinfo)}) {
      add(SCMP_ACT_ERRNO(EPERM), call, SCMP_A2(SCMP_CMP_MASKED_EQ, kInt, SIGCONT));
    }
    add(SCMP_ACT_ERRNO(EAGAIN), SCMP_SYS(timer_create));
    add(SCMP_ACT_ERRNO(EINVAL), SCMP_SYS(fcntl), SCMP_A1(SCMP_CMP_MASKED_EQ, kInt, F_SETSIG));
  }

  // Memory that is in no process: it would be counted nowhere. A driver of a GPU needs some of it.
  void keep_memory_countable() {
    for (const int call : {SCMP_SYS(shmget), SCMP_SYS(msgget), SCMP_SYS(semget), SCMP_SYS(mq_open),
                           SCMP_SYS(memfd_create), SCMP_SYS(memfd_secret), SCMP_SYS(io_setup)}) {
      add(SCMP_ACT_ERRNO(ENOSYS), call);
    }
    // A linker may ask for room in a file; a contender could only do so in files of the judge.
    if (forks_ != Forks::allow) add(SCMP_ACT_ERRNO(EOPNOTSUPP), SCMP_SYS(fallocate));
    // Pages that stay when they are taken out of the page tables, large ones that are in no count,
    // and pages that are written elsewhere.
    constexpr uint64_t kShared = MAP_SHARED | MAP_ANONYMOUS;
    constexpr uint64_t kHuge = MAP_HUGETLB;
    add(SCMP_ACT_ERRNO(ENOMEM), SCMP_SYS(mmap), SCMP_A3(SCMP_CMP_MASKED_EQ, kShared, kShared));
    add(SCMP_ACT_ERRNO(ENOMEM), SCMP_SYS(mmap), SCMP_A3(SCMP_CMP_MASKED_EQ, kHuge, kHuge));
    add(SCMP_ACT_ERRNO(EINVAL), SCMP_SYS(madvise), SCMP_A2(SCMP_CMP_MASKED_EQ, kInt, kPageOut));
    add(SCMP_ACT_ERRNO(EPERM), SCMP_SYS(process_madvise));
    // Names of mappings lie in the kernel, 80 bytes for each.
    add(SCMP_ACT_ERRNO(EINVAL), SCMP_SYS(prctl), SCMP_A0(SCMP_CMP_MASKED_EQ, kInt, kNameMapping));
  }

  Forks forks_;
  bool pipes_;
  uint32_t forbidden_;
  scmp_filter_ctx context_;
  bool valid_ = false;
};

}  // namespace

int install_filter(Forks forks, bool pipes) {
  Filter reporting(forks, pipes, SCMP_ACT_NOTIFY);
  if (reporting.load()) return reporting.listener();
  return Filter(forks, pipes, SCMP_ACT_KILL_PROCESS).load() ? -1 : -2;
}

std::string name_of_call(int number) {
  if (number == SCMP_SYS(clone)) return "clone (another process)";
  if (number == SCMP_SYS(fork) || number == SCMP_SYS(vfork)) return "fork";
  char* known = seccomp_syscall_resolve_num_arch(SCMP_ARCH_NATIVE, number);
  const std::string name = known != nullptr ? known : "?";
  free(known);
  return name;
}

}  // namespace touchstone::judge::child
