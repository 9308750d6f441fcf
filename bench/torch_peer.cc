#include "bench/torch_peer.h"

#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>
#include <vector>

#include "json/json.h"
#include "touchstone/core/error.h"

extern char** environ;

namespace touchstone::bench {

// The text of torch_peer.py; torch_peer_script.cc is made from it.
extern const char* const kTorchPeerScript;

namespace {

using json = Json;

// Importing torch from a cold disk and compiling a function are the slow things.
constexpr int kPatienceMs = 300'000;

// A socket and not a pipe: writing to a process that died gives an error and no signal.
struct Channel {
  int fd = -1;
  std::string pending;

  bool write_line(std::string line) const {
    line += '\n';
    std::string_view rest = line;
    while (!rest.empty()) {
      const ssize_t sent = send(fd, rest.data(), rest.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent <= 0) return false;
      rest.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }

  bool read_line(std::string& line) {
    while (true) {
      const std::size_t end = pending.find('\n');
      if (end != std::string::npos) {
        line = pending.substr(0, end);
        pending.erase(0, end + 1);
        return true;
      }
      pollfd wait{.fd = fd, .events = POLLIN, .revents = 0};
      const int ready = poll(&wait, 1, kPatienceMs);
      if (ready < 0 && errno == EINTR) continue;
      if (ready <= 0) return false;
      char buffer[4096];
      const ssize_t got = recv(fd, buffer, sizeof(buffer), 0);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      pending.append(buffer, static_cast<std::size_t>(got));
    }
  }
};

// The environment, with what makes the comparison fair: as many threads as ours, and output memory
// that is used again instead of being returned to the system and faulted in at every call.
std::vector<std::string> child_environment(int threads) {
  std::vector<std::string> variables = {"MALLOC_MMAP_MAX_=0",
                                        "MALLOC_TRIM_THRESHOLD_=1099511627776",
                                        "OMP_NUM_THREADS=" + std::to_string(threads)};
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const bool ours = text.starts_with("MALLOC_MMAP_MAX_=") ||
                      text.starts_with("MALLOC_TRIM_THRESHOLD_=") ||
                      text.starts_with("OMP_NUM_THREADS=");
    if (!ours) variables.emplace_back(text);
  }
  return variables;
}

// For exec: the last one is null.
std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> result(words.size() + 1, nullptr);
  std::ranges::transform(words, result.begin(), [](std::string& word) { return word.data(); });
  return result;
}

// Starts `python -c script` with `fd` as standard input and output. 0, or an errno.
int spawn(const std::string& python, int threads, int fd, pid_t& child) {
  std::vector<std::string> environment = child_environment(threads);
  std::vector<char*> envp = pointers(environment);
  std::vector<std::string> words = {python, "-c", kTorchPeerScript};
  std::vector<char*> argv = pointers(words);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, fd, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, fd, STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", 1, 0);
  const int status =
      posix_spawnp(&child, python.c_str(), &actions, nullptr, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  return status;
}

}  // namespace

struct TorchPeer::State {
  Channel channel;
  pid_t child = -1;
  int threads = 1;
  int next_slot = 0;
  bool alive = true;
  std::string version;

  // Closing the channel is the end of the child's input, which is how it knows that it is done.
  ~State() {
    if (channel.fd >= 0) close(channel.fd);
    if (child <= 0) return;
    if (!alive) kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }

  json ask(const json& request) {
    std::string line;
    if (!alive || !channel.write_line(request.dump()) || !channel.read_line(line)) {
      alive = false;
      throw DeviceError("torch: the Python process does not answer");
    }
    json reply = json::parse_or_null(line);
    if (!reply.is_object()) {
      alive = false;
      throw DeviceError("torch: the Python process answers nonsense");
    }
    if (reply.contains("error")) {
      throw DeviceError("torch: " + reply.value("error", std::string()));
    }
    return reply;
  }
};

TorchPeer::TorchPeer(std::unique_ptr<State> state) : state_(std::move(state)) {}
TorchPeer::~TorchPeer() = default;

std::unique_ptr<TorchPeer> TorchPeer::start(const std::string& python, int threads,
                                            std::string& why_not) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    why_not = std::strerror(errno);
    return nullptr;
  }
  auto state = std::make_unique<State>();
  state->channel.fd = ends[0];
  state->threads = threads;
  const int status = spawn(python, threads, ends[1], state->child);
  close(ends[1]);
  if (status != 0) {
    state->child = -1;
    why_not = "cannot start " + python + ": " + std::strerror(status);
    return nullptr;
  }
  std::string line;
  if (!state->channel.read_line(line)) {
    state->alive = false;
    why_not = python + " does not answer";
    return nullptr;
  }
  const json hello = json::parse_or_null(line);
  if (!hello.is_object() || !hello.contains("torch")) {
    why_not = hello.is_object() ? hello.value("error", std::string("?")) : "unexpected answer";
    return nullptr;
  }
  state->version = hello.value("torch", std::string());
  return std::unique_ptr<TorchPeer>(new TorchPeer(std::move(state)));
}

const std::string& TorchPeer::version() const { return state_->version; }

bool TorchPeer::alive() const { return state_->alive; }

int TorchPeer::prepare(const Request& request) {
  const int slot = state_->next_slot++;
  state_->ask({{"do", "prepare"},
               {"slot", slot},
               {"op", request.operation},
               {"variant", request.variant},
               {"dtype", name_of(request.dtype)},
               {"rows", request.rows},
               {"cols", request.cols},
               {"k", request.k},
               {"device", name_of(request.device)},
               {"threads", state_->threads},
               {"sets", request.sets},
               {"launches", request.launches},
               {"sample_us", request.sample_us},
               {"compile", request.compile}});
  return slot;
}

double TorchPeer::run(int slot) {
  return state_->ask({{"do", "run"}, {"slot", slot}}).value("us", 0.0);
}

void TorchPeer::release(int slot) noexcept {
  try {
    state_->ask({{"do", "release"}, {"slot", slot}});
  } catch (...) {  // NOLINT(bugprone-empty-catch): a peer that is gone has released everything
  }
}

}  // namespace touchstone::bench
