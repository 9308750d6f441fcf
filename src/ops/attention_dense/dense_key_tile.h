// The size of a tile of keys on the CPU, for tests: results must not depend on it beyond rounding.
#pragma once

#include <cstdint>

namespace touchstone::dense_attention {

// Keys of a tile at most.
inline constexpr std::int64_t kMaxKeyTile = 1024;

// The key tile of calls of this thread; 0 = the default of each implementation.
std::int64_t key_tile();

// Sets it until the end of the scope. Throws InvalidArgument unless it is from 0 to kMaxKeyTile.
class ScopedKeyTile {
 public:
  explicit ScopedKeyTile(std::int64_t tile);
  ~ScopedKeyTile();
  ScopedKeyTile(const ScopedKeyTile&) = delete;
  ScopedKeyTile& operator=(const ScopedKeyTile&) = delete;

 private:
  std::int64_t before_;
};

}  // namespace touchstone::dense_attention
