#include "judge/measure/source/source_copy.h"

#include <fmt/format.h>

#include <algorithm>
#include <system_error>

#include "judge/contender/python.h"
#include "judge/sandbox/read_file.h"

namespace touchstone::judge {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxCopied = 4 << 20;
constexpr std::size_t kMaxFiles = 256;
constexpr int kMaxDepth = 4;

}  // namespace

SourceCopy::SourceCopy(const Session& session) : session_(session) {
  std::vector<fs::path> files = session.record.binding.sources;
  if (!session.record.binding.adapter.empty()) files.push_back(session.record.binding.adapter);
  std::error_code error;
  const fs::path& folder = session.contender.folder;
  using Walk = fs::recursive_directory_iterator;
  for (Walk i(folder, error); !error && i != Walk(); i.increment(error)) {
    std::error_code ignored;  // what cannot be looked at, or is too large for a source, stays out
    if (i->is_symlink(ignored)) continue;
    if (i->is_directory(ignored)) {
      const bool hidden = i->path().filename().string().starts_with('.');
      const bool deep = i.depth() + 1 >= kMaxDepth;
      if (deep || hidden || !session.contender.directory) i.disable_recursion_pending();
      complete_ = complete_ && !deep;
      continue;
    }
    if (!i->is_regular_file(ignored)) continue;
    if (files.size() >= kMaxFiles) {
      complete_ = false;
      break;
    }
    if (static_cast<int64_t>(i->file_size(ignored)) > kMaxCopied || ignored) {
      complete_ = false;
      continue;
    }
    files.push_back(i->path().lexically_relative(folder));
  }
  complete_ = complete_ && !error;
  fs::create_directories(folder_.path() / "source");
  make_readable(folder_.path() / "source");
  std::ranges::sort(files);
  files.erase(std::ranges::unique(files).begin(), files.end());
  files_ = files;
  for (const fs::path& name : files) {
    const fs::path to = folder_.path() / "source" / name;
    if (fs::exists(to)) continue;
    fs::create_directories(to.parent_path());
    for (fs::path below = to.parent_path(); below != folder_.path(); below = below.parent_path()) {
      make_readable(below);
    }
    put(name, read_file(session.contender.folder / name, kMaxCopied));
  }
}

void SourceCopy::put(const fs::path& file, const std::string& text) const {
  write_file(folder_.path() / "source" / file, text);
  make_readable(folder_.path() / "source" / file);
}

std::string SourceCopy::place() const {
  const Sandbox& sandbox = session_.record.sandbox;
  return sandbox.enabled && sandbox.files ? std::string("/judge")
                                          : fs::canonical(folder_.path()).string();
}

std::string SourceCopy::file(const fs::path& name) const {
  return fmt::format("{}/source/{}", place(), name.string());
}

std::string SourceCopy::put_script(const std::string& name, const std::string& text) const {
  fs::create_directories(folder_.path() / "scripts");
  write_file(folder_.path() / "scripts" / name, text);
  make_readable(folder_.path() / "scripts");
  make_readable(folder_.path() / "scripts" / name);
  return fmt::format("{}/scripts/{}", place(), name);
}

void SourceCopy::remove_outputs() const {
  std::vector<fs::path> outputs;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_.path())) {
    const std::string name = entry.path().filename().string();
    if (name != "source" && name != "scripts") outputs.push_back(entry.path());
  }
  for (const fs::path& output : outputs) fs::remove_all(output);
}

CommandResult SourceCopy::run(std::vector<std::string> words, double seconds, Tool tool) const {
  if (tool == Tool::compiler) remove_outputs();
  JailSpec spec;
  add_system_libraries(spec);
  if (tool == Tool::compiler) add_compilers(spec);
  if (tool == Tool::python) add_python(spec, require_python());
  add_path(spec, session_.record.sandbox, folder_.path(), "/judge", tool == Tool::compiler);
  // A compiler passes on the bare name of a source, and "@x" would be read as options from the file
  // x beside it: nothing of the contender lies where it works.
  spec.folder = place() + (tool == Tool::compiler ? "" : "/source");
  spec.forks = tool == Tool::compiler ? "allow" : "report";
  spec.pipes = true;
  spec.limits = {{"file_bytes", int64_t{256} << 20},
                 {"files", 256},
                 {"address_bytes", int64_t{16} << 30},
                 {"cpu_seconds", static_cast<int64_t>(seconds)},
                 {"memory_bytes", session_.options.limits.memory_bytes}};
  spec.environment = {"PATH=/usr/bin:/bin", "LC_ALL=C", "TMPDIR=/tmp", "HOME=/tmp",
                      "OPENBLAS_NUM_THREADS=1"};
  spec.arguments = std::move(words);
  return run_in_jail(std::move(spec), session_.record.sandbox, seconds);
}

std::vector<std::string> SourceCopy::sources() const {
  std::vector<std::string> files;
  for (const fs::path& source : session_.record.binding.sources) {
    files.push_back(file(source));
  }
  if (!session_.record.binding.adapter.empty()) {
    files.push_back(file(session_.record.binding.adapter));
  }
  return files;
}

}  // namespace touchstone::judge
