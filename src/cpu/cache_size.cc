#include "cpu/cache_size.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace touchstone::inline v0 {
namespace {

// From sysfs, not sysconf: glibc reports the caches of the whole package on some AMD machines,
// ten times what one core can reach.
std::int64_t read_last_level_cache_bytes() {
  std::int64_t largest = 0;
  for (int index = 0; index < 8; ++index) {
    std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) +
                       "/size");
    std::int64_t size = 0;
    char unit = 0;
    if (!(file >> size)) continue;
    file >> unit;
    if (unit == 'K') size <<= 10;
    if (unit == 'M') size <<= 20;
    largest = std::max(largest, size);
  }
  constexpr std::int64_t kGuess = std::int64_t{16} << 20;
  return largest > 0 ? largest : kGuess;
}

}  // namespace

std::int64_t last_level_cache_bytes() {
  static const std::int64_t bytes = read_last_level_cache_bytes();
  return bytes;
}

}  // namespace touchstone::inline v0
