#include "bench/llama_bench.h"

#include <fmt/format.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <sstream>

#include "json/json.h"
#include "touchstone/core/error.h"

namespace touchstone::bench {
namespace {

// For the shell.
std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

// Tokens per second of the only test of a run.
double rate_of(const std::string& command) {
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"),
                                             [](FILE* file) { return pclose(file); });
  if (!pipe) throw Unsupported("llama-bench: cannot be started");
  std::string output;
  char buffer[4096];
  while (const std::size_t got = std::fread(buffer, 1, sizeof buffer, pipe.get())) {
    output.append(buffer, got);
  }
  const int status = pclose(pipe.release());
  const Json results = Json::parse_or_null(output);
  if (status != 0 || !results.is_array() || results.size() != 1 || !results[0].contains("avg_ts")) {
    throw Unsupported(fmt::format("llama-bench: no result (exit {}): {}",
                                  WIFEXITED(status) ? WEXITSTATUS(status) : -1, command));
  }
  return results[0]["avg_ts"].get<double>();
}

}  // namespace

std::string find_llama_bench() {
  const char* const path = std::getenv("PATH");
  if (path == nullptr) return "";
  std::istringstream folders(path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::filesystem::path program = std::filesystem::path(folder) / "llama-bench";
    std::error_code error;
    if (std::filesystem::is_regular_file(program, error)) return program.string();
  }
  return "";
}

LlamaBenchRates run_llama_bench(const std::string& program, const std::string& model, int threads,
                                std::int64_t context, std::int64_t tokens) {
  const std::string common =
      fmt::format("{} -m {} -t {} -ngl 0 -r 1 -o json", quoted(program), quoted(model), threads);
  return {
      .prefill = rate_of(fmt::format("{} -p {} -n 0 2>/dev/null", common, context)),
      .decode = rate_of(fmt::format("{} -p 0 -n {} -d {} 2>/dev/null", common, tokens, context))};
}

}  // namespace touchstone::bench
