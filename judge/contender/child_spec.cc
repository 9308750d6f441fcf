#include "judge/contender/child_spec.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <set>
#include <string>

#include "judge/contender/binding.h"
#include "judge/contender/python.h"
#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

namespace fs = std::filesystem;

const char* kind_name(ArgumentKind kind) {
  static constexpr const char* kNames[] = {"i64", "f32", "input", "output", "state", "handle"};
  return kNames[static_cast<std::size_t>(kind)];
}

// The contract as the Python child reads it: child/python_serve.cc.
std::string functions_text(const TaskCard& card, const Contender& contender) {
  static constexpr const char* kReturns[] = {"status", "size", "handle", "nothing"};
  std::string text;
  for (const Function& function : card.functions) {
    const auto bound = contender.binding.functions.find(function.name);
    text += fmt::format("{}{},{},{}", text.empty() ? "" : ";",
                        bound == contender.binding.functions.end() ? function.name : bound->second,
                        kReturns[static_cast<std::size_t>(function.returns)],
                        is_optional(card, function, contender.language) ? 1 : 0);
    for (const Argument& argument : function.arguments) {
      const bool may_be_omitted =
          argument.kind == ArgumentKind::output &&
          std::ranges::find(card.lacks, argument.name, &Feature::output) != card.lacks.end();
      text += fmt::format(",{}{}:{}", kind_name(argument.kind), may_be_omitted ? "?" : "",
                          argument.name);
    }
  }
  return text;
}

// The driver's library is wherever the machine's loader finds it.
void add_driver(JailSpec& spec) {
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY);
  if (driver == nullptr) return;
  link_map* map = nullptr;
  std::set<std::string> folders;
  if (dlinfo(driver, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr) {
    const fs::path file = map->l_name;
    std::error_code error;
    const fs::path real = fs::canonical(file, error);
    folders.insert(file.parent_path().string());
    if (!error) folders.insert(real.parent_path().string());
  }
  dlclose(driver);
  std::string search = "LD_LIBRARY_PATH=";
  for (const std::string& folder : folders) {
    spec.binds.push_back({folder, folder, "ro"});
    if (!search.ends_with('=')) search += ':';
    search += folder;
  }
  if (!folders.empty()) spec.environment.push_back(search);
}

void add_device(JailSpec& spec) {
  spec.forks = "refuse";  // the driver tries to start a helper, and does without
  spec.open_proc = true;  // without it the driver does not start
  const std::vector<fs::path> nodes = gpu_nodes();
  if (nodes.empty()) throw Unsupported("no NVIDIA GPU here");
  for (const fs::path& node : nodes) spec.binds.push_back({node.string(), node.string(), "dev"});
  spec.binds.push_back({"/dev/zero", "/dev/zero", "dev"});  // the driver maps it
  add_driver(spec);
  for (const char* path : {"/sys", "/usr/local/cuda", "/etc/nvidia"}) {
    std::error_code error;
    const fs::path real = fs::canonical(path, error);
    if (!error) spec.binds.push_back({real.string(), real.string(), "ro"});
  }
}

}  // namespace

std::vector<fs::path> gpu_nodes() {
  std::vector<fs::path> nodes;
  bool gpu = false;
  std::error_code error;
  for (fs::directory_iterator i("/dev", error); !error && i != fs::directory_iterator();
       i.increment(error)) {
    const std::string name = i->path().filename().string();
    if (!name.starts_with("nvidia") && name != "dxg") continue;
    nodes.push_back(i->path());
    // nvidiactl and others are there without a GPU too.
    gpu = gpu || name == "dxg" || (name.size() > 6 && name[6] >= '0' && name[6] <= '9');
  }
  if (!gpu) nodes.clear();
  std::ranges::sort(nodes);
  return nodes;
}

JailSpec child_spec(const Contender& contender, const BuildResult& build, const Task& task,
                    const Sandbox& sandbox, bool sanitized, ChildHeap heap) {
  JailSpec spec;
  add_system_libraries(spec);
  spec.limits = {{"file_bytes", int64_t{64} << 20}, {"files", 256}};
  spec.environment = {"PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8", "HOME=/tmp", "TMPDIR=/tmp"};
  spec.folder = sandbox.enabled && sandbox.files ? "/tmp" : fs::temp_directory_path().string();
  if (contender.language == Language::numpy) {
    const Python& python = require_python();
    add_python(spec, python);
    const fs::path work = build.library.parent_path().parent_path();
    const std::string place = add_path(spec, sandbox, work, "/judge", false);
    const fs::path module =
        add_path(spec, sandbox, child_library(), "/child/touchstone_child.so", false);
    constexpr const char* kStart =
        "import sys; sys.path.append(sys.argv[1]); import touchstone_child";
    spec.arguments = {python.program,
                      "-I",
                      "-B",
                      "-c",
                      kStart,
                      module.parent_path().string(),
                      functions_text(task.card(), contender)};
    if (heap == ChildHeap::counted) {
      spec.environment.push_back("LD_PRELOAD=" + add_path(spec, sandbox, counted_heap_library(),
                                                          "/child/touchstone_child_heap.so",
                                                          false));
      // Else small objects would come from pools of the interpreter, which only grow.
      spec.environment.emplace_back("PYTHONMALLOC=malloc");
    }
    for (const fs::path& file : contender.binding.sources) {
      spec.arguments.push_back(place + "/source/" + file.string());
    }
    if (!contender.binding.adapter.empty()) {
      spec.arguments.push_back("adapter:" + place + "/source/" +
                               contender.binding.adapter.string());
    }
    return spec;
  }
  const std::string place = add_path(spec, sandbox, build.library.parent_path(), "/judge", false);
  // From inside one looks like the other.
  const std::string program = add_path(
      spec, sandbox, heap == ChildHeap::guarded ? guarded_child_program() : child_program(),
      "/child/touchstone-child", false);
  spec.arguments = {program, "serve", place + "/abi_shim.so",
                    place + "/" + build.library.filename().string()};
  for (const std::string& symbol :
       resolve_symbols(task.card(), contender, exported_functions(build.library))) {
    spec.arguments.push_back(symbol);
  }
  if (sanitized) {
    spec.pipes = true;  // by which the run time looks whether memory can be read
    spec.environment.emplace_back("LD_PRELOAD=libasan.so.8 libstdc++.so.6");
    // Leaks are looked for with ptrace, which is forbidden in there.
    spec.environment.emplace_back(
        "ASAN_OPTIONS=detect_leaks=0:handle_segv=0:handle_sigbus=0:exitcode=86:"
        "detect_stack_use_after_return=1");
    spec.environment.emplace_back("UBSAN_OPTIONS=print_stacktrace=0:exitcode=86");
  }
  if (contender.language == Language::cuda) add_device(spec);
  return spec;
}

}  // namespace touchstone::judge
