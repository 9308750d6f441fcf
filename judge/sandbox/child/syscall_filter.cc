#include "syscall_filter.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <vector>

// A deny list written out as BPF: fifty lines of it are less than a library to depend on.
namespace touchstone::judge::child {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
#error "filter.cc: name the audit architecture of this processor"
#endif

struct NamedCall {
  int number;
  const char* name;
};

// Calls by which a process looks into others, leaves its namespaces, talks to the kernel's larger
// machinery, or hides work from the watchdogs. Numerical code has no use for any of them.
constexpr NamedCall kForbidden[] = {
    {SYS_ptrace, "ptrace"},
    {SYS_process_vm_readv, "process_vm_readv"},
    {SYS_process_vm_writev, "process_vm_writev"},
    {SYS_pidfd_getfd, "pidfd_getfd"},
    {SYS_kcmp, "kcmp"},
    {SYS_keyctl, "keyctl"},
    {SYS_add_key, "add_key"},
    {SYS_request_key, "request_key"},
    {SYS_bpf, "bpf"},
    {SYS_perf_event_open, "perf_event_open"},
    {SYS_userfaultfd, "userfaultfd"},
    {SYS_io_uring_setup, "io_uring_setup"},
    {SYS_io_uring_enter, "io_uring_enter"},
    {SYS_io_uring_register, "io_uring_register"},
    {SYS_mount, "mount"},
    {SYS_umount2, "umount2"},
    {SYS_pivot_root, "pivot_root"},
    {SYS_chroot, "chroot"},
    {SYS_fsopen, "fsopen"},
    {SYS_fsmount, "fsmount"},
    {SYS_open_tree, "open_tree"},
    {SYS_move_mount, "move_mount"},
    {SYS_mount_setattr, "mount_setattr"},
    {SYS_open_by_handle_at, "open_by_handle_at"},
    {SYS_name_to_handle_at, "name_to_handle_at"},
    {SYS_unshare, "unshare"},
    {SYS_setns, "setns"},
    {SYS_init_module, "init_module"},
    {SYS_finit_module, "finit_module"},
    {SYS_delete_module, "delete_module"},
    {SYS_kexec_load, "kexec_load"},
    {SYS_reboot, "reboot"},
    {SYS_swapon, "swapon"},
    {SYS_swapoff, "swapoff"},
    {SYS_acct, "acct"},
    {SYS_quotactl, "quotactl"},
    {SYS_settimeofday, "settimeofday"},
    {SYS_clock_settime, "clock_settime"},
    {SYS_sethostname, "sethostname"},
    {SYS_setdomainname, "setdomainname"},
    {SYS_seccomp, "seccomp"},
};

constexpr uint32_t kNewSpaces = CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC |
                                CLONE_NEWUTS | CLONE_NEWNS | CLONE_NEWCGROUP;

class Program {
 public:
  void add(uint16_t code, uint32_t k, uint8_t if_true = 0, uint8_t if_false = 0) {
    code_.push_back({code, if_true, if_false, k});
  }
  void load(size_t offset) { add(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset)); }
  void answer(uint32_t action) { add(BPF_RET | BPF_K, action); }
  // `action` when the loaded word equals `value`.
  void answer_if_equal(uint32_t value, uint32_t action) {
    add(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
    answer(action);
  }
  sock_fprog view() { return {static_cast<unsigned short>(code_.size()), code_.data()}; }

 private:
  std::vector<sock_filter> code_;
};

uint32_t refusal(int error) { return SECCOMP_RET_ERRNO | static_cast<uint32_t>(error); }

Program make_program(Forks forks, uint32_t forbidden) {
  Program p;
  p.load(offsetof(seccomp_data, arch));
  p.add(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0);
  p.answer(SECCOMP_RET_KILL_PROCESS);
  p.load(offsetof(seccomp_data, nr));
#if defined(__x86_64__)
  // The x32 table would be a way round the list.
  p.add(BPF_JMP | BPF_JGE | BPF_K, 0x40000000U, 0, 1);
  p.answer(SECCOMP_RET_KILL_PROCESS);
#endif
  for (const NamedCall& call : kForbidden) {
    p.answer_if_equal(static_cast<uint32_t>(call.number), forbidden);
  }
  const uint32_t fork_answer = forks == Forks::report ? forbidden : refusal(EAGAIN);
  if (forks != Forks::allow) {
#if defined(__x86_64__)
    p.answer_if_equal(SYS_fork, fork_answer);
    p.answer_if_equal(SYS_vfork, fork_answer);
#endif
  }
  // Which processors it runs on is the judge's choice. Honest code that places its threads is told
  // that it did; nothing depends on it.
  p.answer_if_equal(SYS_sched_setaffinity, refusal(0));
  // Its flags lie in memory, where a filter cannot look; the C library falls back to clone.
  p.answer_if_equal(SYS_clone3, refusal(ENOSYS));
  // clone: new namespaces never; a new process by `forks`; threads always.
  const uint8_t clone_lines = forks == Forks::allow ? 4 : 6;
  p.add(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, clone_lines);
  p.load(offsetof(seccomp_data, args[0]));
  p.add(BPF_JMP | BPF_JSET | BPF_K, kNewSpaces, 0, 1);
  p.answer(forbidden);
  if (forks != Forks::allow) {
    p.add(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 1, 0);
    p.answer(fork_answer);
  }
  p.answer(SECCOMP_RET_ALLOW);
  // Sockets: only those that stay in this machine and in this mount namespace.
  p.add(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3);
  p.load(offsetof(seccomp_data, args[0]));
  p.add(BPF_JMP | BPF_JEQ | BPF_K, AF_UNIX, 1, 0);
  p.answer(refusal(EACCES));
  p.answer(SECCOMP_RET_ALLOW);
  return p;
}

}  // namespace

int install_filter(Forks forks) {
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -2;
  Program reporting = make_program(forks, SECCOMP_RET_USER_NOTIF);
  sock_fprog view = reporting.view();
  const long fd =
      syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &view);
  if (fd >= 0) return static_cast<int>(fd);
  Program killing = make_program(forks, SECCOMP_RET_KILL_PROCESS);
  view = killing.view();
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &view, 0, 0) == 0 ? -1 : -2;
}

const char* name_of_call(int number) {
  for (const NamedCall& call : kForbidden) {
    if (call.number == number) return call.name;
  }
  if (number == SYS_clone) return "clone (another process)";
#if defined(__x86_64__)
  if (number == SYS_fork || number == SYS_vfork) return "fork";
#endif
  return "?";
}

}  // namespace touchstone::judge::child
