// Deterministic mutations of small files for tests: the same seed gives the same file everywhere.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <vector>

namespace touchstone::inline v0::io {

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {  // splitmix64
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15U);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
  }
  std::size_t pick(std::size_t count) { return count == 0 ? 0 : next() % count; }

  // One to four changes of `file`, some of them with bytes of `other`.
  void mutate(std::vector<std::byte>& file, const std::vector<std::byte>& other) {
    for (std::size_t changes = 1 + pick(4); changes > 0; --changes) change(file, other);
  }

 private:
  void change(std::vector<std::byte>& file, const std::vector<std::byte>& other) {
    const std::size_t at = pick(file.size());
    const auto from = static_cast<std::ptrdiff_t>(at);
    const std::size_t count = std::min(1 + pick(32), file.size() - at);
    switch (file.empty() ? 6 : pick(9)) {
      case 0:
        file[at] ^= static_cast<std::byte>(1U << pick(8));
        return;
      case 1:
        file[at] = static_cast<std::byte>(next());
        return;
      case 2:
      case 3:
        overwrite_number(file, at);
        return;
      case 4:
        file.erase(file.begin() + from, file.begin() + from + static_cast<std::ptrdiff_t>(count));
        return;
      case 5:
        std::memmove(&file[at], &file[pick(file.size() - count + 1)], count);
        return;
      case 6:
        file.insert(file.begin() + from, pick(16) + 1, static_cast<std::byte>(next()));
        return;
      case 7:
        file.resize(at);
        return;
      default: {
        const std::size_t part = pick(other.size());
        const std::size_t length = std::min({count, other.size() - part, file.size() - at});
        if (length != 0) std::memcpy(&file[at], &other[part], length);
      }
    }
  }

  // Numbers at which sums and products wrap, as 1 to 8 bytes.
  void overwrite_number(std::vector<std::byte>& file, std::size_t at) {
    constexpr std::uint64_t kNumbers[] = {0,
                                          1,
                                          0x7f,
                                          0xff,
                                          0x7fff,
                                          0xffff,
                                          0x7fffffff,
                                          0x80000000,
                                          0xffffffff,
                                          0x100000000,
                                          0x3fffffffffffffff,
                                          0x7fffffffffffffff,
                                          0x8000000000000000,
                                          0xfffffffffffffffe,
                                          0xffffffffffffffe0,
                                          0xffffffffffffffff};
    std::uint64_t number = kNumbers[pick(std::size(kNumbers))];
    if (pick(4) == 0) number = next() >> pick(64);
    std::memcpy(&file[at], &number, std::min(std::size_t{1} << pick(4), file.size() - at));
  }

  std::uint64_t state_;
};

}  // namespace touchstone::inline v0::io
