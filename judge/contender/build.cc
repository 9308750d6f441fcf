// Builds contenders: fixed flags, inside the sandbox, without a network.
#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <map>
#include <mutex>

#include "judge/contender/abi_shim.h"
#include "judge/contender/adapter_heap.h"
#include "judge/contender/child_spec.h"
#include "judge/contender/contender.h"
#include "judge/contender/python.h"
#include "judge/sandbox/read_file.h"
#include "judge/sandbox/sandbox.h"
#include "judge/sandbox/work_folder.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int64_t kMaxFile = int64_t{512} << 20;
constexpr int64_t kMaxBytes = int64_t{1} << 30;
constexpr int kMaxFiles = 2000;
// Of processor time, for each process of a compiler; by the clock a busy machine gets longer.
constexpr double kCompileSeconds = 40.0;
constexpr double kCudaSeconds = 180.0;
constexpr double kBusy = 4.0;
constexpr const char* kGcc = "/usr/bin/gcc";
constexpr const char* kGxx = "/usr/bin/g++";
constexpr const char* kObjcopy = "/usr/bin/objcopy";

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

bool has_extension(const fs::path& file, std::initializer_list<const char*> extensions) {
  return std::ranges::find(extensions, file.extension().string()) != extensions.end();
}

// What a single source may include: the headers beside it.
void add_headers(const fs::path& folder, std::vector<fs::path>& files) {
  std::error_code ignored;  // what cannot be looked at is not copied
  for (fs::directory_iterator i(folder, ignored); !ignored && i != fs::directory_iterator();
       i.increment(ignored)) {
    std::error_code error;
    if (i->is_symlink(error) || !i->is_regular_file(error)) continue;
    if (has_extension(i->path(), {".h", ".hpp", ".cuh"})) files.push_back(i->path().filename());
    if (files.size() > kMaxFiles) return;
  }
}

// Plain files only, and not too many: links could lead out of the folder, and a copy cannot change
// under the compiler.
void copy_sources(const Contender& contender, const fs::path& to) {
  std::vector<fs::path> files = contender.binding.sources;
  if (fs::exists(contender.folder / "contender.json") || !contender.binding.adapter.empty() ||
      files.size() != 1) {
    files.clear();
    std::error_code ignored;  // what cannot be looked at is not copied
    constexpr auto kSkip = fs::directory_options::skip_permission_denied;
    for (auto i = fs::recursive_directory_iterator(contender.folder, kSkip); i != fs::end(i); ++i) {
      if (i->path().filename().string().starts_with(".")) {
        if (i->is_directory(ignored)) i.disable_recursion_pending();
        continue;
      }
      if (i->is_symlink(ignored) || !i->is_regular_file(ignored)) continue;
      files.push_back(i->path().lexically_relative(contender.folder));
      if (files.size() > kMaxFiles) {
        throw CorruptData(
            fmt::format("{}: more than {} files", contender.folder.string(), kMaxFiles));
      }
    }
  } else if (contender.language != Language::numpy) {
    add_headers(contender.folder, files);
  }
  int64_t total = 0;
  for (const fs::path& file : files) {
    const fs::path from = contender.folder / file;
    const auto bytes = static_cast<int64_t>(fs::file_size(from));
    total += bytes;
    if (bytes > kMaxFile || total > kMaxBytes) {
      throw CorruptData(fmt::format("{}: the contender is larger than {} bytes", from.string(),
                                    bytes > kMaxFile ? kMaxFile : kMaxBytes));
    }
    fs::create_directories((to / file).parent_path());
    fs::copy_file(from, to / file);
  }
  make_readable(to);
}

std::string without(std::string text, const std::string& part) {
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos;) {
    text.erase(at, part.size());
  }
  return text;
}

int64_t lines_of_code(const std::string& text) {
  int64_t lines = 0;
  bool blank = true;
  for (const char c : text) {
    if (c == '\n') {
      lines += blank ? 0 : 1;
      blank = true;
    } else if (std::isspace(static_cast<unsigned char>(c)) == 0) {
      blank = false;
    }
  }
  return lines + (blank ? 0 : 1);
}

class Builder {
 public:
  Builder(const Contender& contender, const Task& task, const fs::path& work,
          const Sandbox& sandbox)
      : contender_(contender), task_(task), work_(fs::canonical(work)), sandbox_(sandbox) {}

  BuildResult build(bool sanitized) {
    const Clock::time_point start = Clock::now();
    fs::create_directories(work_ / "source");
    copy_sources(contender_, work_ / "source");
    // The lines of an adapter are not the contender's.
    for (const fs::path& file : contender_.binding.sources) {
      if (!has_extension(file, {".so"})) {
        result_.source_lines += lines_of_code(read_file(work_ / "source" / file, kMaxFile));
      }
    }
    if (contender_.language == Language::numpy) {
      check_python();
    } else {
      compile_all(sanitized);
    }
    result_.log = without(result_.log, place() + "/source/");
    result_.log = without(result_.log, place() + "/");
    if (result_.built) result_.code_bytes = static_cast<int64_t>(fs::file_size(result_.library));
    result_.seconds = since(start);
    return result_;
  }

 private:
  bool cuda() const { return contender_.language == Language::cuda; }

  std::vector<fs::path> files() const {
    std::vector<fs::path> all = contender_.binding.sources;
    if (!contender_.binding.adapter.empty()) all.push_back(contender_.binding.adapter);
    return all;
  }

  // Where the work folder is seen from inside.
  std::string place() const {
    return sandbox_.enabled && sandbox_.files ? std::string("/judge") : work_.string();
  }

  JailSpec jail() const {
    JailSpec spec;
    add_system_libraries(spec);
    add_compilers(spec);
    spec.folder = add_path(spec, sandbox_, work_, "/judge", true);
    spec.forks = "allow";
    spec.limits = {{"file_bytes", int64_t{1} << 30},
                   {"files", 1024},
                   {"address_bytes", int64_t{cuda() ? 64 : 8} << 30},
                   {"memory_bytes", int64_t{cuda() ? 16 : 4} << 30}};
    spec.environment = {"PATH=/usr/bin:/bin", "LC_ALL=C", "TMPDIR=/tmp", "HOME=/tmp"};
    return spec;
  }

  CommandResult run(JailSpec spec, std::vector<std::string> words, double seconds) const {
    spec.arguments = std::move(words);
    spec.limits.emplace_back("cpu_seconds", static_cast<int64_t>(seconds));
    CommandResult result =
        run_in_jail(std::move(spec), sandbox_, kBusy * seconds, hurry_.get_token());
    if (!result.finished && !hurry_.stop_requested()) {
      throw Unsupported(fmt::format("the compiler did not end within {:g} s", kBusy * seconds));
    }
    if (!result.finished) result.status = -1;
    if (result.over_memory) result.output += "stopped: the compiler held too much memory\n";
    if (!result.refused_call.empty()) {
      result.output += fmt::format("stopped at the system call {}\n", result.refused_call);
    }
    return result;
  }

  // Names of functions as they were bound, with the types the sources give them.
  std::vector<std::optional<Signature>> signatures() const {
    std::vector<Signature> found;
    for (const fs::path& file : files()) {
      if (has_extension(file, {".so"})) continue;
      const std::string text = read_file(work_ / "source" / file, kMaxFile);
      for (Signature& s : scan_c(text)) found.push_back(std::move(s));
    }
    std::vector<std::optional<Signature>> chosen;
    for (const Function& function : task_.card().functions) {
      const auto bound = contender_.binding.functions.find(function.name);
      const std::string name =
          bound == contender_.binding.functions.end() ? function.name : bound->second;
      const std::size_t count = function.arguments.size() + (cuda() ? 1 : 0);
      std::optional<Signature> match;
      for (const Signature& s : found) {
        if (s.name == name && s.plain && s.types.size() == count) match = s;
      }
      chosen.push_back(match);
    }
    return chosen;
  }

  static std::vector<std::string> common_flags(bool sanitized, bool c) {
    std::vector<std::string> flags = {"-march=native",
                                      "-fPIC",
                                      "-shared",
                                      "-pthread",
                                      "-fopenmp",
                                      "-Wall",
                                      "-Wextra",
                                      "-fdiagnostics-color=never",
                                      "-fno-diagnostics-show-caret"};
    if (sanitized) {
      // Instrumented templates take three times as long to optimize as to compile. In C an inline
      // function need not exist unless it is inlined.
      for (const char* flag : {c ? "-O1" : "-O0", "-g1", "-fno-omit-frame-pointer",
                               "-fsanitize=address,undefined", "-fno-sanitize-recover=all"}) {
        flags.emplace_back(flag);
      }
    } else {
      for (const char* flag : {"-O3", "-Wl,-z,defs"}) flags.emplace_back(flag);
    }
    return flags;
  }

  // A machine without a compiler says nothing about the contender.
  static const char* compiler(const char* path) {
    std::error_code error;
    if (!fs::exists(path, error)) {
      throw Unsupported(fmt::format("no compiler here: {} (Debian: build-essential)", path));
    }
    return path;
  }

  // Compiles one file, without linking it.
  CommandResult compile_object(const std::string& source, const std::string& object,
                               bool sanitized) const {
    const bool c = source.ends_with(".c");
    std::vector<std::string> words = {
        compiler(c ? kGcc : kGxx), c ? "-std=gnu17" : "-std=gnu++20", "-c", source, "-o", object};
    std::ranges::copy_if(
        common_flags(sanitized, c), std::back_inserter(words),
        [](const std::string& f) { return f != "-shared" && !f.starts_with("-Wl"); });
    return run(jail(), words, kCompileSeconds);
  }

  // The adapter apart, with a heap that counts what it takes. Nothing in `objects` where there is no
  // adapter in C or C++, or no objcopy.
  CommandResult compile_adapter(std::vector<std::string>& objects) const {
    const fs::path& adapter = contender_.binding.adapter;
    std::error_code error;
    if (!has_extension(adapter, {".c", ".cc", ".cpp", ".cxx"}) || !fs::exists(kObjcopy, error)) {
      return {};
    }
    write_file(work_ / "adapter_heap.c", adapter_heap());
    make_readable(work_ / "adapter_heap.c");
    const std::string heap = place() + "/adapter_heap.o";
    const std::string object = place() + "/adapter.o";
    CommandResult all = compile_object(place() + "/source/" + adapter.string(), object, false);
    if (all.status != 0) return all;
    std::vector<std::string> words = {kObjcopy};
    for (const auto& [symbol, counted] : adapter_calls()) {
      words.push_back(fmt::format("--redefine-sym={}=touchstone_adapter_{}", symbol, counted));
    }
    words.push_back(object);
    for (const CommandResult& one :
         {compile_object(place() + "/adapter_heap.c", heap, false), run(jail(), words, 10)}) {
      all.output += one.output;
      all.status = one.status;
      if (one.status != 0) return all;
    }
    objects = {object, heap};
    return all;
  }

  // C files are compiled apart where C++ files are there too.
  CommandResult compile(const std::string& output, bool sanitized) const {
    std::vector<std::string> c_files;
    std::vector<std::string> others;
    std::vector<std::string> adapter;
    CommandResult all;
    if (!sanitized && !contender_.binding.adapter.empty()) all = compile_adapter(adapter);
    if (all.status != 0) return all;
    for (const fs::path& file : files()) {
      if (!adapter.empty() && file == contender_.binding.adapter) continue;
      (has_extension(file, {".c"}) ? c_files : others)
          .push_back(place() + "/source/" + file.string());
    }
    const bool only_c =
        others.empty() && !has_extension(contender_.binding.adapter, {".cc", ".cpp", ".cxx"});
    if (!only_c) {
      for (std::size_t i = 0; i < c_files.size(); ++i) {
        others.push_back(fmt::format("{}/{}.{}.o", place(), output, i));
        const CommandResult one = compile_object(c_files[i], others.back(), sanitized);
        all.output += one.output;
        all.status = one.status;
        if (one.status != 0) return all;
      }
    }
    std::vector<std::string> words = {compiler(only_c ? kGcc : kGxx),
                                      only_c ? "-std=gnu17" : "-std=gnu++20"};
    std::ranges::copy(common_flags(sanitized, only_c), std::back_inserter(words));
    const std::vector<std::string>& last = only_c ? c_files : others;
    words.insert(words.end(), last.begin(), last.end());
    words.insert(words.end(), adapter.begin(), adapter.end());
    for (const std::string& word :
         {std::string("-o"), place() + "/" + output, std::string("-lm")}) {
      words.push_back(word);
    }
    const CommandResult one = run(jail(), words, kCompileSeconds);
    all.output += one.output;
    all.status = one.status;
    return all;
  }

  static std::string cuda_root() {
    std::error_code error;
    for (const char* place : {"/usr/local/cuda", "/usr/lib/cuda", "/opt/cuda"}) {
      if (fs::exists(fs::path(place) / "bin" / "nvcc", error)) return fs::canonical(place).string();
    }
    throw Unsupported("no nvcc here (looked in /usr/local/cuda, /usr/lib/cuda, /opt/cuda)");
  }

  CommandResult compile_cuda(const std::vector<std::string>& inputs,
                             const std::string& output) const {
    const std::string root = cuda_root();
    JailSpec spec = jail();
    spec.binds.push_back({root, root, "ro"});
    spec.environment[0] += ":" + root + "/bin";
    // Without a GPU there is no architecture to compile for.
    const std::vector<fs::path> nodes = gpu_nodes();
    const bool device = !nodes.empty();
    for (const fs::path& node : nodes) {
      spec.binds.push_back({node.string(), node.string(), "dev"});
    }
    std::vector<std::string> words = {root + "/bin/nvcc",
                                      "-std=c++20",
                                      "-O3",
                                      "-lineinfo",
                                      device ? "-arch=native" : "-arch=sm_80",
                                      "-shared",
                                      "-Xcompiler=-fPIC,-Wall,-Wextra,-pthread,-fopenmp",
                                      "--cudart=shared",
                                      "-Xlinker=-rpath," + root + "/lib64"};
    words.insert(words.end(), inputs.begin(), inputs.end());
    words.emplace_back("-o");
    words.push_back(place() + "/" + output);
    return run(std::move(spec), words, kCudaSeconds);
  }

  CommandResult compile_abi_shim() {
    const std::string text = make_abi_shim(task_.card().functions, signatures(), cuda());
    if (cuda()) {
      write_file(work_ / "abi_shim.cu", text);
      make_readable(work_ / "abi_shim.cu");
      return compile_cuda({place() + "/abi_shim.cu"}, "abi_shim.so");
    }
    // Contenders of a task have the same one, unless their types differ. It is compiled where no file
    // of a contender is.
    static std::mutex mutex;
    static std::map<std::string, std::string> libraries;
    const std::lock_guard lock(mutex);
    std::string& library = libraries[text];
    if (library.empty()) {
      const WorkFolder apart;
      Builder builder(contender_, task_, apart.path(), sandbox_);
      write_file(builder.work_ / "abi_shim.cc", text);
      make_readable(builder.work_ / "abi_shim.cc");
      CommandResult result =
          builder.run(builder.jail(),
                      {compiler(kGxx), "-std=c++20", "-O1", "-fPIC", "-shared",
                       builder.place() + "/abi_shim.cc", "-o", builder.place() + "/abi_shim.so"},
                      kCompileSeconds);
      if (result.status != 0) return result;
      library = read_file(builder.work_ / "abi_shim.so", kMaxFile);
    }
    write_file(work_ / "abi_shim.so", library);
    make_readable(work_ / "abi_shim.so");
    return {};
  }

  CommandResult compile_contender(bool sanitized) const {
    const std::string output = sanitized ? "sanitized.so" : "contender.so";
    const std::vector<fs::path> all = files();
    const auto library = std::ranges::find_if(
        all, [](const fs::path& file) { return has_extension(file, {".so"}); });
    if (library != all.end() && all.size() == 1) {
      std::error_code error;
      fs::rename(work_ / "source" / *library, work_ / output, error);
      return {};
    }
    if (cuda()) {
      std::vector<std::string> inputs;
      inputs.reserve(all.size());
      for (const fs::path& file : all) inputs.push_back(place() + "/source/" + file.string());
      return compile_cuda(inputs, output);
    }
    return compile(output, sanitized);
  }

  void compile_all(bool sanitized) {
    const bool instrument =
        sanitized && !cuda() &&
        std::ranges::none_of(files(), [](const auto& f) { return has_extension(f, {".so"}); });
    auto timed = std::async(std::launch::async, [this] { return compile_contender(false); });
    auto second = std::async(std::launch::async, [this, instrument] {
      const CommandResult shim = compile_abi_shim();
      return std::pair(shim, instrument ? compile_contender(true) : CommandResult{});
    });
    const CommandResult plain = timed.get();
    result_.log = plain.output;
    result_.built = plain.status == 0;
    // Whoever waits for an error need not wait for the rest.
    if (!result_.built) hurry_.request_stop();
    for (std::size_t at = 0; (at = plain.output.find("warning: ", at)) != std::string::npos; ++at) {
      ++result_.warnings;
    }
    const auto [shim, checked] = second.get();
    if (result_.built && shim.status != 0) {
      throw Error(fmt::format("judge: the ABI shim for task {} does not compile: {}",
                              task_.card().id, shim.output));
    }
    if (result_.built) result_.library = work_ / "contender.so";
    if (result_.built && instrument && checked.status == 0)
      result_.sanitized = work_ / "sanitized.so";
  }

  void check_python() {
    const Python& python = require_python();
    JailSpec spec = jail();
    add_python(spec, python);
    constexpr const char* kCheck =
        "import sys; [compile(open(f).read(), f, \"exec\") for f in sys.argv[1:]]";
    std::vector<std::string> words = {python.program, "-I", "-B", "-c", kCheck};
    for (const fs::path& file : files()) words.push_back(place() + "/source/" + file.string());
    const CommandResult result = run(std::move(spec), words, kCompileSeconds);
    result_.log = result.output;
    result_.built = result.status == 0;
    if (result_.built) result_.library = work_ / "source" / contender_.binding.sources.front();
  }

  const Contender& contender_;
  const Task& task_;
  fs::path work_;
  const Sandbox& sandbox_;
  BuildResult result_;
  std::stop_source hurry_;  // ends what is still being compiled
};

}  // namespace

BuildResult build_contender(const Contender& contender, const Task& task, const fs::path& work,
                            const Sandbox& sandbox, bool sanitized) {
  return Builder(contender, task, work, sandbox).build(sanitized);
}

}  // namespace touchstone::judge
