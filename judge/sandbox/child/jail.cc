// Three processes. The first (the supervisor) is outside the new pid namespace and polls the pipe
// whose other end the judge holds. The second (init) is process 1 of the namespace: when it ends,
// the kernel ends everything inside. The third becomes the program; it cannot be process 1, which
// signals with default actions do not reach.
#include "jail.h"

#include <fcntl.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "protocol.h"
#include "sandbox_layers.h"

namespace touchstone::judge::child {
namespace {

using namespace protocol;

void report(uint32_t kind, int32_t value, const std::string& text = "") {
  Report message{};
  message.kind = kind;
  message.value = value;
  snprintf(message.text, sizeof message.text, "%s", text.c_str());
  send(kReportFd, &message, sizeof message, MSG_NOSIGNAL);
}

[[noreturn]] void broken(const std::string& what, int error) {
  report(kBroken, error, what + ": " + strerror(error));
  _exit(125);
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = text.find(at, begin);
    if (end == std::string::npos) {
      parts.push_back(text.substr(begin));
      break;
    }
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

void read_line(const std::string& line, Spec& spec) {
  std::vector<std::string> words = split(line, '\t');
  words.resize(4);
  const std::string& key = words[0];
  if (key == "isolated") spec.isolated = words[1] == "1";
  if (key == "root") spec.root = words[1] == "1";
  if (key == "bind") spec.binds.push_back({words[1], words[2], words[3]});
  if (key == "link") spec.links.push_back({words[1], words[2]});
  if (key == "tmpfs") spec.tmpfs.push_back({words[1], words[2]});
  if (key == "proc" || key == "open_proc") spec.proc = true;
  if (key == "open_proc") spec.open_proc = true;
  if (key == "limit") spec.limits.push_back({words[1], strtoul(words[2].c_str(), nullptr, 10)});
  if (key == "folder") spec.folder = words[1];
  if (key == "env") spec.environment.push_back(words[1]);
  if (key == "arg") spec.arguments.push_back(words[1]);
  if (key == "cpus") {
    for (const std::string& cpu : split(words[1], ',')) spec.cpus.push_back(atoi(cpu.c_str()));
  }
  if (key == "pipes") spec.pipes = true;
  if (key == "forks") {
    spec.forks = words[1] == "allow"    ? Forks::allow
                 : words[1] == "refuse" ? Forks::refuse
                                        : Forks::report;
  }
}

Spec read_spec() {
  std::string text;
  char buffer[4096];
  lseek(kSpecFd, 0, SEEK_SET);
  ssize_t got = 0;
  while ((got = read(kSpecFd, buffer, sizeof buffer)) > 0) {
    text.append(buffer, static_cast<size_t>(got));
  }
  Spec spec;
  for (const std::string& line : split(text, '\n')) read_line(line, spec);
  if (spec.arguments.empty()) broken("jail: nothing to run", EINVAL);
  return spec;
}

struct ActiveLayers {
  uint32_t active = 0;
  std::string missing;
  bool leaves_root = false;  // the program becomes another user than the one that sets it up

  void note(uint32_t layer, const char* name, int error) {
    if (error == 0) {
      active |= layer;
    } else {
      missing += std::string(name) + ": " + strerror(error) + "\n";
    }
  }
};

void enter_spaces(ActiveLayers& layers, bool root) {
  int ordinary = 0;
  layers.note(kUserSpace, "user namespace", enter_user_space(ordinary));
  // Without a file system of its own the program would not find its files as another user.
  const bool other = geteuid() == 0;
  if (other && !root) ordinary = ENOTSUP;
  layers.note(kUser, "unprivileged user", ordinary);
  if (ordinary == 0 && other) layers.leaves_root = true;
  const auto enter = [&](uint32_t layer, const char* name, int flag) {
    layers.note(layer, name, unshare(flag) == 0 ? 0 : errno);
  };
  if (root && unshare(CLONE_NEWNS) != 0) broken("mount namespace", errno);
  if (root) layers.active |= kMountSpace;
  enter(kNetSpace, "network namespace", CLONE_NEWNET);
  enter(kIpcSpace, "ipc namespace", CLONE_NEWIPC);
  enter(kNameSpace, "host name namespace", CLONE_NEWUTS);
  enter(kPidSpace, "pid namespace", CLONE_NEWPID);
}

int send_descriptor(int socket, int fd) {
  char byte = 0;
  iovec part{&byte, 1};
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = space;
    message.msg_controllen = sizeof space;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL) < 0 ? errno : 0;
}

int receive_descriptor(int socket) {
  char byte = 0;
  iovec part{&byte, 1};
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = space;
  message.msg_controllen = sizeof space;
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) <= 0) return -1;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return -1;
  int fd = -1;
  memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return fd;
}

// The third process, from here to exec. `layers` gains those that only this process can set up.
[[noreturn]] void become_program(const Spec& spec, ActiveLayers& layers, int socket) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  setsid();  // signals to its group do not reach the others
  report(kHere, 0);
  set_cpus(spec);
  signal(SIGXFSZ, SIG_IGN);  // a full log is no reason to die
  signal(SIGPIPE, SIG_DFL);
  if (chdir(spec.folder.c_str()) != 0) broken("jail: " + spec.folder, errno);
  layers.note(kRlimits, "resource limits", set_limits(spec));
  if (spec.isolated) drop_bounding_set();
  if (layers.leaves_root) {
    if (const int error = leave_root()) broken("jail: unprivileged user", error);
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // a change of user clears it
  }
  if (spec.isolated) drop_capabilities();
  int listener = -2;
  if (spec.isolated) {
    listener = install_filter(spec.forks, spec.pipes);
    layers.note(kFilter, "system call filter", listener == -2 ? ENOSYS : 0);
  }
  report(kLayers, static_cast<int32_t>(layers.active), layers.missing);
  send_descriptor(socket, listener >= 0 ? listener : -1);
  if (listener >= 0) close(listener);
  close(socket);

  std::vector<char*> arguments;
  arguments.reserve(spec.arguments.size() + 1);
  for (const std::string& word : spec.arguments)
    arguments.push_back(const_cast<char*>(word.data()));
  arguments.push_back(nullptr);
  std::vector<char*> environment;
  environment.reserve(spec.environment.size() + 1);
  for (const std::string& word : spec.environment) {
    environment.push_back(const_cast<char*>(word.data()));
  }
  environment.push_back(nullptr);
  fcntl(kReportFd, F_SETFD, FD_CLOEXEC);
  fcntl(kSpecFd, F_SETFD, FD_CLOEXEC);
  fcntl(kLifetimeFd, F_SETFD, FD_CLOEXEC);
  execve(arguments[0], arguments.data(), environment.data());
  broken(std::string("jail: ") + arguments[0], errno);
}

// Reports a forbidden call and ends the program that made it.
void answer_forbidden(int listener, pid_t program) {
  seccomp_notif request{};
  if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &request) != 0) return;
  report(kRefusedCall, request.data.nr, name_of_call(request.data.nr));
  kill(program, SIGKILL);
}

// Whether the program has ended; every other orphan is reaped on the way.
bool reap(pid_t program, int& status) {
  int one = 0;
  pid_t pid = 0;
  bool ended = false;
  while ((pid = waitpid(-1, &one, WNOHANG)) > 0) {
    if (pid == program) {
      status = one;
      ended = true;
    }
  }
  return ended || (pid < 0 && errno == ECHILD);
}

// All signals are blocked; the end of a child is read from the descriptor. A child that is only
// stopped or goes on is no news: the judge does that around every call.
int child_signals() {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  struct sigaction plain {};
  plain.sa_handler = SIG_DFL;
  plain.sa_flags = SA_NOCLDSTOP;
  sigaction(SIGCHLD, &plain, nullptr);
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  return signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
}

int64_t memory_limit(const Spec& spec) {
  for (const Limit& limit : spec.limits) {
    if (limit.name == "memory_bytes") return static_cast<int64_t>(limit.value);
  }
  return 0;
}

// The second process: waits for the end of the program, for forbidden calls, and for processes that
// together hold too much memory.
[[noreturn]] void guard(const Spec& spec, pid_t program, int socket, bool watch_lifetime) {
  constexpr int kLookMilliseconds = 10;
  const int signals = child_signals();
  const int listener = receive_descriptor(socket);
  close(socket);
  const int64_t most = memory_limit(spec);
  int status = 0;
  while (!reap(program, status)) {
    pollfd fds[3] = {
        {listener, POLLIN, 0}, {watch_lifetime ? kLifetimeFd : -1, 0, 0}, {signals, POLLIN, 0}};
    const int ready = poll(fds, 3, most > 0 ? kLookMilliseconds : -1);
    if (ready < 0 && errno != EINTR) {
      // Without a wait there is nobody to guard: better no program than an unguarded one.
      kill(program, SIGKILL);
      broken("jail: poll", errno);
    }
    signalfd_siginfo news{};
    while (read(signals, &news, sizeof news) > 0) {
    }
    if (most > 0 && held_by_all(spec) > most) {
      report(kOverMemory, 0);
      kill(program, SIGKILL);
    }
    if (ready <= 0) continue;
    if ((fds[0].revents & POLLIN) != 0) answer_forbidden(listener, program);
    if (fds[0].revents != 0 && (fds[0].revents & POLLIN) == 0) {
      // Nobody is left who uses the filter: the program is ending.
      int one = 0;
      if (waitpid(program, &one, 0) == program) status = one;
      break;
    }
    if ((fds[1].revents & (POLLHUP | POLLERR)) != 0) kill(program, SIGKILL);
  }
  report(kEnded, status);
  _exit(0);
}

[[noreturn]] void start_program(const Spec& spec, ActiveLayers layers, bool watch_lifetime) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) broken("jail", errno);
  // Nobody looks into this process; of the program its exec takes that back.
  prctl(PR_SET_DUMPABLE, 0);
  const pid_t program = fork();
  if (program < 0) broken("jail: fork", errno);
  if (program == 0) {
    close(pair[0]);
    become_program(spec, layers, pair[1]);
  }
  close(pair[1]);
  guard(spec, program, pair[0], watch_lifetime);
}

[[noreturn]] void run_init(const Spec& spec, ActiveLayers layers) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if ((layers.active & kMountSpace) != 0) {
    bool has_proc = false;
    std::string step;
    if (const int error = build_root(spec, has_proc, step)) {
      broken("jail: " + step, error);
    }
    if (spec.proc) layers.note(kProc, "own /proc", has_proc ? 0 : EPERM);
  }
  start_program(spec, layers, false);
}

}  // namespace

int jail() {
  const Spec spec = read_spec();
  offer_to_end_first();
  ActiveLayers layers;
  if (spec.isolated) enter_spaces(layers, spec.root);
  if ((layers.active & kPidSpace) == 0) {
    // No namespace dies with its first process here: this process stays and ends the program.
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if ((layers.active & kMountSpace) != 0) run_init(spec, layers);
    start_program(spec, layers, true);
  }
  const pid_t init = fork();
  if (init < 0) broken("jail: fork", errno);
  if (init == 0) run_init(spec, layers);
  close(kReportFd);
  // SIGCHLD ends the wait below, and is only let in there.
  sigset_t none;
  sigemptyset(&none);
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child, nullptr);
  struct sigaction wake {};
  wake.sa_handler = [](int) {};
  sigaction(SIGCHLD, &wake, nullptr);
  while (waitpid(init, nullptr, WNOHANG) != init) {
    pollfd lifetime{kLifetimeFd, 0, 0};
    if (ppoll(&lifetime, 1, nullptr, &none) > 0) {
      kill(init, SIGKILL);
      waitpid(init, nullptr, 0);
      break;
    }
  }
  return 0;
}

}  // namespace touchstone::judge::child
