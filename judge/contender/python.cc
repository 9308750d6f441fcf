#include "judge/contender/python.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

// Standard output of a trusted command, or nothing when it failed.
std::optional<std::string> output_of(const std::string& line) {
  FILE* pipe = popen(line.c_str(), "re");
  if (pipe == nullptr) return std::nullopt;
  std::string text;
  char buffer[512];
  std::size_t got = 0;
  while ((got = fread(buffer, 1, sizeof buffer, pipe)) > 0) text.append(buffer, got);
  if (pclose(pipe) != 0) return std::nullopt;
  return text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::size_t begin = 0;
  for (std::size_t end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    lines.push_back(text.substr(begin, end - begin));
  }
  return lines;
}

std::optional<Python> try_python(const std::string& program) {
  const std::optional<std::string> text = output_of(
      program +
      // Inside a virtual environment the unresolved name is what tells Python where it is.
      " -I -c 'import os, sys, numpy; e = sys.executable; print(e if sys.prefix != sys.base_prefix"
      " else os.path.realpath(e), sys.prefix, sys.base_prefix, "
      "os.path.dirname(os.path.dirname(numpy.__file__)), numpy.__version__,"
      " sep=\"\\n\")' 2>/dev/null");
  if (!text) return std::nullopt;
  const std::vector<std::string> lines = lines_of(*text);
  if (lines.size() != 5) return std::nullopt;
  return Python{lines[0], {lines[1], lines[2], lines[3]}, lines[4]};
}

}  // namespace

const std::optional<Python>& find_python() {
  static const std::optional<Python> found = []() -> std::optional<Python> {
    if (const char* const chosen = std::getenv("TOUCHSTONE_PYTHON"); chosen != nullptr) {
      return std::strchr(chosen, '\'') == nullptr ? try_python(fmt::format("'{}'", chosen))
                                                  : std::nullopt;
    }
    for (const char* program :
         {"python3", "/usr/bin/python3", "/usr/local/bin/python3", "python"}) {
      if (std::optional<Python> python = try_python(program)) return python;
    }
    return std::nullopt;
  }();
  return found;
}

const Python& require_python() {
  const std::optional<Python>& python = find_python();
  if (!python) throw Unsupported("no Python with NumPy here (Debian: python3-numpy)");
  return *python;
}

void add_python(JailSpec& spec, const Python& python) {
  // The program of a virtual environment is a link, which comes with its prefix; what it leads to,
  // step by step, has to be there too.
  namespace fs = std::filesystem;
  std::error_code error;
  const std::string real = fs::canonical(python.program, error).string();
  fs::path path = python.program;
  if (error || !fs::is_symlink(path)) spec.binds.push_back({python.program, python.program, "ro"});
  constexpr int kMaxLinks = 40;  // what a kernel follows
  for (int i = 0; i < kMaxLinks && fs::is_symlink(path); ++i) {
    path = (path.parent_path() / fs::read_symlink(path)).lexically_normal();
    spec.binds.push_back({real, path.string(), "ro"});
  }
  // NumPy's linear algebra comes through here on Debian.
  if (std::filesystem::exists("/etc/alternatives")) {
    spec.binds.push_back({"/etc/alternatives", "/etc/alternatives", "ro"});
  }
  for (const std::string& prefix : python.prefixes) {
    // The system's own packages lie in /usr/lib, which is there already.
    if (prefix == "/usr" || prefix.starts_with("/usr/lib/")) continue;
    spec.binds.push_back({prefix, prefix, "ro"});
  }
}

}  // namespace touchstone::judge
