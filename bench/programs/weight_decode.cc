// Rates of decoding weights to f32 against that of a copy, on one thread, out of cache:
//   ninja -C build/release weight_decode_bench && build/release/weight_decode_bench
// Bytes are those read and written by either. Interleaved; the best of the rounds.
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "touchstone/core/device.h"
#include "touchstone/core/weight_format.h"

namespace {

// CPU time of this thread: what other processes take does not count, what they do to caches does.
double seconds(const auto& body) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  };
  const double begin = now();
  body();
  return now() - begin;
}

}  // namespace

int main() {
  constexpr std::size_t kElements = std::size_t{1} << 24;  // 64 MB of f32
  constexpr int kRounds = 15;
  const auto formats = touchstone::weight_formats();
  // Aligned as the memory of a Tensor is.
  std::vector<float> storage(kElements + 16);
  void* aligned = storage.data();
  std::size_t space = storage.size() * 4;
  const std::span<float> out(static_cast<float*>(std::align(64, kElements * 4, aligned, space)),
                             kElements);
  std::vector<float> in(kElements, 1.0F);
  std::vector<std::vector<std::byte>> blocks;
  for (const auto& format : formats) {
    const auto bytes = touchstone::weight_bytes(format, kElements);
    blocks.emplace_back(static_cast<std::size_t>(bytes), std::byte{0x15});
  }
  double copy = 1e9;
  std::vector<double> times(formats.size(), 1e9);
  for (int round = 0; round < kRounds; ++round) {
    copy = std::min(copy, seconds([&] { std::memcpy(out.data(), in.data(), kElements * 4); }));
    for (std::size_t i = 0; i < formats.size(); ++i) {
      times[i] = std::min(times[i], seconds([&] { decode_weights(formats[i], blocks[i], out); }));
    }
  }
  const double rate = 8.0 * kElements / copy * 1e-9;
  fmt::print("{}: copy {:.2f} GB/s, {} elements, best of {}\n", touchstone::simd_target(), rate,
             kElements, kRounds);
  for (std::size_t i = 0; i < formats.size(); ++i) {
    const double bytes = 4.0 * kElements + static_cast<double>(blocks[i].size());
    const double decoded = bytes / times[i] * 1e-9;
    fmt::print("{:<10} {:8.2f} GB/s  {:.2f} of copy\n", formats[i].name, decoded, decoded / rate);
  }
}
