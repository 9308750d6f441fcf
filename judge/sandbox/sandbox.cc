#include "judge/sandbox/sandbox.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "judge/sandbox/child/protocol.h"
#include "judge/sandbox/descriptor.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

namespace fs = std::filesystem;

fs::path beside_program(const char* name) {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  const fs::path here = self.parent_path();
  for (const fs::path& place : {here / name, here.parent_path() / name,
                                here.parent_path() / "libexec" / "touchstone" / name}) {
    if (fs::exists(place, error)) return place;
  }
  throw Error(fmt::format("judge: {} is not beside the program in {}", name, here.string()));
}

// The spec is text with tabs and newlines between its words.
const std::string& word(const std::string& text) {
  if (text.find_first_of("\t\n") != std::string::npos || text.find('\0') != std::string::npos) {
    // A file of a contender, whose name is its own fault.
    throw CorruptData(fmt::format("'{}': a path may not contain tabs or line ends", text));
  }
  return text;
}

std::string spec_text(const JailSpec& spec, const Sandbox& sandbox) {
  std::string text = fmt::format("isolated\t{}\nroot\t{}\n", sandbox.enabled ? 1 : 0,
                                 sandbox.enabled && sandbox.files ? 1 : 0);
  for (const JailSpec::Bind& b : spec.binds) {
    text += fmt::format("bind\t{}\t{}\t{}\n", word(b.from), word(b.to), b.mode);
  }
  for (const auto& [target, at] : spec.links) {
    text += fmt::format("link\t{}\t{}\n", word(target), word(at));
  }
  for (const auto& [at, bytes] : spec.tmpfs) text += fmt::format("tmpfs\t{}\t{}\n", at, bytes);
  text += spec.open_proc ? "open_proc\n" : "proc\n";
  for (const auto& [name, value] : spec.limits) text += fmt::format("limit\t{}\t{}\n", name, value);
  if (!spec.cpus.empty()) text += fmt::format("cpus\t{}\n", fmt::join(spec.cpus, ","));
  if (spec.pipes) text += "pipes\n";
  text += fmt::format("forks\t{}\nfolder\t{}\n", spec.forks, word(spec.folder));
  for (const std::string& e : spec.environment) text += fmt::format("env\t{}\n", word(e));
  for (const std::string& a : spec.arguments) text += fmt::format("arg\t{}\n", word(a));
  return text;
}

// Starts the supervisor with exactly these descriptors.
pid_t spawn_supervisor(const std::vector<std::pair<int, int>>& descriptors) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  std::vector<Descriptor> high;  // out of the way of the numbers they will have inside
  std::vector<bool> taken(13, false);
  high.reserve(descriptors.size());
  for (const auto& [from, to] : descriptors) high.emplace_back(fcntl(from, F_DUPFD_CLOEXEC, 64));
  for (std::size_t i = 0; i < descriptors.size(); ++i) {
    posix_spawn_file_actions_adddup2(&actions, high[i].get(), descriptors[i].second);
    taken[static_cast<std::size_t>(descriptors[i].second)] = true;
  }
  for (int fd = 0; fd < 3; ++fd) {
    if (taken[static_cast<std::size_t>(fd)]) continue;
    posix_spawn_file_actions_addopen(&actions, fd, "/dev/null", O_RDWR, 0);
    taken[static_cast<std::size_t>(fd)] = true;
  }
  posix_spawn_file_actions_addclosefrom_np(&actions, 13);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  sigset_t all;
  sigfillset(&all);
  posix_spawnattr_setsigdefault(&attributes, &all);
  const std::string program = child_program().string();
  char* const arguments[] = {const_cast<char*>(program.c_str()), const_cast<char*>("jail"),
                             nullptr};
  char* const environment[] = {nullptr};
  pid_t pid = 0;
  const int error =
      posix_spawn(&pid, program.c_str(), &actions, &attributes, arguments, environment);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) throw Error(fmt::format("judge: {}: {}", program, strerror(error)));
  return pid;
}

}  // namespace

fs::path child_program() { return beside_program("touchstone-child"); }

fs::path guarded_child_program() { return beside_program("touchstone-child-guarded"); }

fs::path counted_heap_library() { return beside_program("touchstone_child_heap.so"); }

fs::path child_library() { return beside_program("touchstone_child.so"); }

namespace {

// A folder of the system as it is: Debian's /lib is a link to /usr/lib.
void add_system_folder(JailSpec& spec, const char* path) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  if (fs::is_symlink(status)) {
    spec.links.emplace_back(fs::read_symlink(path, error).string(), path);
  } else if (fs::exists(status)) {
    spec.binds.push_back({path, path, "ro"});
  }
}

}  // namespace

void add_system_libraries(JailSpec& spec) {
  for (const char* path : {"/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache"}) {
    add_system_folder(spec, path);
  }
  // Not /dev/zero: mapped as shared it is memory that no count sees once it is unmapped.
  for (const char* path : {"/dev/null", "/dev/full", "/dev/random", "/dev/urandom"}) {
    spec.binds.push_back({path, path, "dev"});
  }
  spec.tmpfs.emplace_back("/tmp", int64_t{64} << 20);
  spec.tmpfs.emplace_back("/dev/shm", int64_t{64} << 20);
}

void add_compilers(JailSpec& spec) {
  for (const char* path :
       {"/bin", "/usr/bin", "/usr/include", "/usr/libexec", "/etc/alternatives"}) {
    add_system_folder(spec, path);
  }
}

std::string add_path(JailSpec& spec, const Sandbox& sandbox, const fs::path& path,
                     const std::string& place, bool writable) {
  std::string real = fs::canonical(path).string();
  if (!sandbox.enabled || !sandbox.files) return real;
  spec.binds.push_back({real, place, writable ? "rw" : "ro"});
  return place;
}

Jail::Jail(const JailSpec& spec, const Sandbox& sandbox) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
    throw Error(fmt::format("judge: socketpair: {}", strerror(errno)));
  }
  reports_ = pair[0];
  const Descriptor far_reports(pair[1]);
  const int yes = 1;
  setsockopt(reports_, SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes);
  int lifetime[2];
  if (pipe2(lifetime, O_CLOEXEC) != 0) throw Error(fmt::format("judge: pipe: {}", strerror(errno)));
  const Descriptor far_lifetime(lifetime[0]);
  lifetime_ = lifetime[1];
  const Descriptor text_file(memfd_create("spec", MFD_CLOEXEC));
  const std::string text = spec_text(spec, sandbox);
  if (write(text_file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    throw Error(fmt::format("judge: memfd: {}", strerror(errno)));
  }
  std::vector<std::pair<int, int>> descriptors = {{far_reports.get(), protocol::kReportFd},
                                                  {text_file.get(), protocol::kSpecFd},
                                                  {far_lifetime.get(), protocol::kLifetimeFd}};
  descriptors.insert(descriptors.end(), spec.descriptors.begin(), spec.descriptors.end());
  supervisor_ = spawn_supervisor(descriptors);
}

Jail::~Jail() {
  kill();
  if (reports_ >= 0) close(reports_);
}

void Jail::kill() {
  if (lifetime_ >= 0) close(lifetime_);
  lifetime_ = -1;
  if (supervisor_ == 0) return;
  // The supervisor ends everything when the pipe closes; one that does not is ended itself, and
  // init with it.
  for (int i = 0; i < 400; ++i) {
    if (waitpid(supervisor_, nullptr, WNOHANG) != 0) {
      supervisor_ = 0;
      return;
    }
    usleep(i < 100 ? 100 : 5000);
  }
  ::kill(supervisor_, SIGKILL);
  waitpid(supervisor_, nullptr, 0);
  supervisor_ = 0;
}

void Jail::read_reports() {
  while (reports_ >= 0) {
    protocol::Report report{};
    iovec part{&report, sizeof report};
    alignas(cmsghdr) char space[CMSG_SPACE(sizeof(ucred))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = space;
    message.msg_controllen = sizeof space;
    const ssize_t got = recvmsg(reports_, &message, MSG_DONTWAIT);
    if (got < 0) return;
    if (got == 0) {
      // Nobody is left inside. Without a word about the program, its end is all that is known.
      close(reports_);
      reports_ = -1;
      if (!status_) status_ = SIGKILL;
      return;
    }
    report.text[sizeof report.text - 1] = '\0';
    switch (report.kind) {
      case protocol::kHere:
        if (const cmsghdr* header = CMSG_FIRSTHDR(&message)) {
          ucred sender{};
          memcpy(&sender, CMSG_DATA(header), sizeof sender);
          program_ = sender.pid;
        }
        break;
      case protocol::kLayers:
        layers_ = static_cast<uint32_t>(report.value);
        missing_ = report.text;
        break;
      case protocol::kEnded:
        status_ = report.value;
        break;
      case protocol::kOverMemory:
        over_memory_ = true;
        break;
      case protocol::kRefusedCall:
        refused_call_ = report.text;
        break;
      default:
        throw Error(fmt::format("judge: {}", report.text));
    }
  }
}

void Jail::wait(std::chrono::milliseconds time) {
  pollfd fd{reports_, POLLIN, 0};
  poll(&fd, 1, static_cast<int>(time.count()));
  read_reports();
}

CommandResult run_in_jail(JailSpec spec, const Sandbox& sandbox, double seconds,
                          const std::stop_token& stop) {
  constexpr std::size_t kMaxOutput = 256 << 10;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw Error(fmt::format("judge: pipe: {}", strerror(errno)));
  const Descriptor near(ends[0]);
  Descriptor far(ends[1]);
  spec.descriptors.emplace_back(far.get(), 1);
  spec.descriptors.emplace_back(far.get(), 2);
  Jail jail(spec, sandbox);
  far.reset();
  CommandResult result;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  const auto in_time = [&] {
    return std::chrono::steady_clock::now() < deadline && !stop.stop_requested();
  };
  bool open = true;
  // The pipe ends only when every process that holds it has: then the output is whole.
  while (open && in_time()) {
    pollfd fd{near.get(), POLLIN, 0};
    if (poll(&fd, 1, 50) > 0) {
      char buffer[16384];
      const ssize_t got = read(near.get(), buffer, sizeof buffer);
      open = got > 0;
      if (got > 0 && result.output.size() < kMaxOutput) {
        result.output.append(buffer, static_cast<std::size_t>(got));
      }
    }
    jail.read_reports();
    if (jail.status() && open && poll(&fd, 1, 0) == 0) break;
  }
  while (!jail.status() && in_time()) {
    jail.wait(std::chrono::milliseconds(20));
  }
  result.finished = jail.status().has_value();
  result.status = jail.status().value_or(0);
  result.refused_call = jail.refused_call();
  result.over_memory = jail.over_memory();
  return result;
}

namespace {

Sandbox try_layers(bool files) {
  Sandbox sandbox;
  sandbox.files = files;
  JailSpec spec;
  add_system_libraries(spec);
  const std::string program =
      add_path(spec, sandbox, child_program(), "/child/touchstone-child", false);
  spec.arguments = {program, "nothing"};
  Jail jail(spec, sandbox);
  for (int i = 0; i < 200 && !jail.status(); ++i) jail.wait(std::chrono::milliseconds(50));
  if (!jail.status() || *jail.status() != 0)
    throw Error("judge: the trial program did not end well");
  const uint32_t layers = jail.layers();
  constexpr uint32_t kSpaces = protocol::kUserSpace | protocol::kPidSpace | protocol::kNetSpace |
                               protocol::kIpcSpace | protocol::kNameSpace | protocol::kMountSpace;
  sandbox.namespaces = (layers & kSpaces) == kSpaces;
  sandbox.files = files && (layers & protocol::kMountSpace) != 0;
  sandbox.user = (layers & protocol::kUser) != 0;
  sandbox.seccomp = (layers & protocol::kFilter) != 0;
  sandbox.limits = (layers & protocol::kRlimits) != 0;
  std::string text = jail.missing();
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (end > 0) sandbox.missing.push_back(text.substr(0, end));
    text.erase(0, end + 1);
  }
  return sandbox;
}

}  // namespace

Sandbox probe_sandbox(bool enabled) {
  if (!enabled) {
    Sandbox none;
    none.enabled = false;
    none.limits = true;
    none.missing.emplace_back("all layers: switched off by --no-sandbox");
    return none;
  }
  std::string why;
  try {
    return try_layers(true);
  } catch (const Error& error) {
    why = error.what();
  }
  Sandbox sandbox = try_layers(false);
  sandbox.namespaces = false;
  sandbox.missing.push_back(fmt::format("own file system: {}", why));
  return sandbox;
}

}  // namespace touchstone::judge
