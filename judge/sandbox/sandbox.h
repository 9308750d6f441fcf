// Programs in isolation: what they see, what they may do, and how their end is reported.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

namespace touchstone::judge {

// Which isolation layers are active. `probe_sandbox` tries each of them once; a missing one is named
// on every report.
struct Sandbox {
  bool enabled = true;      // false: --no-sandbox, for debugging
  bool namespaces = false;  // user, pid, net, ipc, host name, mount: all of them
  bool user = false;        // not the user 0 of the machine
  bool files = false;       // only a runtime and the contender can be seen
  bool seccomp = false;
  bool limits = false;
  std::vector<std::string> missing;  // one line each: which layer, and why
};
Sandbox probe_sandbox(bool enabled);

// touchstone-child, and what lies beside it: the same with a guarded heap, the module of the Python
// child, and the heap that counts. Error when the program was moved without them.
std::filesystem::path child_program();
std::filesystem::path guarded_child_program();
std::filesystem::path child_library();
std::filesystem::path counted_heap_library();

struct JailSpec {
  struct Bind {
    std::string from;
    std::string to;
    std::string mode = "ro";  // "rw", "dev"
  };
  std::vector<Bind> binds;
  std::vector<std::pair<std::string, std::string>> links;  // target, path of the link
  std::vector<std::pair<std::string, int64_t>> tmpfs;      // mount point, bytes
  std::vector<std::pair<std::string, int64_t>> limits;     // names as in child/jail.h
  std::vector<int> cpus;                                   // empty: those of the judge
  std::string forks = "report";                            // "allow", "refuse"
  bool pipes = false;                                      // also where forks are reported
  // /proc that its own threads can be named in, as the driver of a GPU does: settings of the kernel are
  // read-only there and process 1 is hidden. For others all of it is read-only and hides processes.
  bool open_proc = false;
  std::string folder = "/";
  std::vector<std::string> environment;
  std::vector<std::string> arguments;
  std::vector<std::pair<int, int>> descriptors;  // of the judge -> number inside
};

// What nearly every program needs: system libraries, /dev/null and its kin, a small /tmp.
void add_system_libraries(JailSpec& spec);
// What a compiler needs on top.
void add_compilers(JailSpec& spec);
// Makes a file or folder of the judge visible as `place`; without isolation it stays where
// it is. Returns the path under which the program finds it.
std::string add_path(JailSpec& spec, const Sandbox& sandbox, const std::filesystem::path& path,
                     const std::string& place, bool writable);

// A program in its jail. The destructor ends all that runs in there.
class Jail {
 public:
  Jail(const JailSpec& spec, const Sandbox& sandbox);
  ~Jail();
  Jail(const Jail&) = delete;
  Jail& operator=(const Jail&) = delete;

  // Reads what the jail reports, without waiting. Error when the jail itself could not be built.
  void read_reports();
  // Waits until there is something to read or the time is over.
  void wait(std::chrono::milliseconds time);
  void kill();

  pid_t program() const { return program_; }             // 0 until it has started
  std::optional<int> status() const { return status_; }  // wait status once it has ended
  const std::string& refused_call() const { return refused_call_; }  // empty: none
  bool over_memory() const { return over_memory_; }
  bool started() const { return layers_.has_value(); }
  uint32_t layers() const { return layers_.value_or(0); }
  const std::string& missing() const { return missing_; }  // one line for each missing layer

 private:
  pid_t supervisor_ = 0;
  pid_t program_ = 0;
  int reports_ = -1;
  int lifetime_ = -1;
  std::optional<int> status_;
  std::optional<uint32_t> layers_;
  std::string missing_;
  std::string refused_call_;
  bool over_memory_ = false;
};

struct CommandResult {
  bool finished = false;  // false: the time was over
  int status = 0;         // wait status
  std::string refused_call;
  bool over_memory = false;
  std::string output;  // standard output and error together, cut at 256 KiB
};
// Stopped early, it has not finished.
CommandResult run_in_jail(JailSpec spec, const Sandbox& sandbox, double seconds,
                          const std::stop_token& stop = {});

}  // namespace touchstone::judge
