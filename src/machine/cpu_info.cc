#include "machine/cpu_info.h"

#include <sched.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "core/thread_pool.h"

namespace touchstone::machine {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with("model name")) continue;
    const std::size_t colon = line.find(": ");
    if (colon != std::string::npos) return line.substr(colon + 2);
  }
  return {};
}

// "32768K" -> bytes
std::int64_t parse_size(const std::string& text) {
  std::int64_t value = 0;
  std::size_t i = 0;
  for (; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i) {
    value = value * 10 + (text[i] - '0');
  }
  if (i < text.size() && text[i] == 'K') value <<= 10;
  if (i < text.size() && text[i] == 'M') value <<= 20;
  return value;
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return text;
}

std::vector<CpuCache> cpu_caches() {
  // Cores that share a cache name the same cores in shared_cpu_list.
  using Key = std::tuple<int, std::string, std::int64_t>;
  std::map<Key, std::set<std::string>> instances;
  for (const int cpu : usable_cpus()) {
    for (int index = 0;; ++index) {
      const std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                                 "/cache/index" + std::to_string(index) + "/";
      const std::string level = first_line(folder + "level");
      if (level.empty() || level[0] < '1' || level[0] > '9') break;
      const Key key(level[0] - '0', lower(first_line(folder + "type")),
                    parse_size(first_line(folder + "size")));
      instances[key].insert(first_line(folder + "shared_cpu_list"));
    }
  }
  std::vector<CpuCache> caches;
  for (const auto& [key, where] : instances) {
    const auto& [level, type, bytes] = key;
    caches.push_back({level, type, bytes, static_cast<int>(where.size())});
  }
  return caches;
}

}  // namespace

std::vector<int> usable_cpus() {
  std::vector<int> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

CpuInfo cpu_info() { return {cpu_model(), available_threads(), cpu_caches()}; }

std::int64_t last_level_cache_bytes(const CpuInfo& info) {
  std::int64_t bytes = 0;
  int level = 0;
  for (const CpuCache& cache : info.caches) {
    if (cache.type == "instruction" || cache.level < level) continue;
    if (cache.level > level) bytes = 0;
    level = cache.level;
    bytes += cache.bytes * cache.count;
  }
  return bytes > 0 ? bytes : std::int64_t{32} << 20;
}

std::int64_t available_memory_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  std::int64_t kib = 0;
  std::string unit;
  while (file >> name >> kib) {
    if (name == "MemAvailable:") return kib << 10;
    std::getline(file, unit);
  }
  return std::numeric_limits<std::int64_t>::max();
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  const std::size_t length = std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return {text, length};
}

}  // namespace touchstone::machine
