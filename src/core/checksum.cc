#include "core/checksum.h"

#include <array>
#include <bit>
#include <cstring>

namespace touchstone::inline v0 {
namespace {

// Independent chains, so that one multiplication does not wait for the one before it.
constexpr std::size_t kLanes = 4;
constexpr std::size_t kBlock = kLanes * sizeof(std::uint64_t);
constexpr std::uint64_t kWordMultiplier = 0x9e3779b97f4a7c15ULL;  // both odd: reversible
constexpr std::uint64_t kStateMultiplier = 0xc2b2ae3d27d4eb4fULL;

// Reversible in `state` for any word and in `word` for any state: two inputs that differ in one
// word only end in different states, whatever follows. The word is mixed before it is combined with
// the state, so that no few bits of the next word undo a few bits of this one.
std::uint64_t absorb(std::uint64_t state, std::uint64_t word) {
  word *= kWordMultiplier;
  word ^= word >> 32;
  return std::rotl((state ^ word) * kStateMultiplier, 31);
}

// The finalizer of splitmix64, reversible too.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

void absorb_block(std::array<std::uint64_t, kLanes>& lanes, const std::byte* block) {
  for (std::size_t i = 0; i < kLanes; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, block + i * sizeof(word), sizeof(word));
    lanes[i] = absorb(lanes[i], word);
  }
}

}  // namespace

std::uint64_t checksum(std::span<const std::byte> bytes) {
  std::array<std::uint64_t, kLanes> lanes{};
  for (std::size_t i = 0; i < kLanes; ++i) lanes[i] = mix(i + 1);
  std::size_t done = 0;
  for (; done + kBlock <= bytes.size(); done += kBlock) absorb_block(lanes, bytes.data() + done);
  if (done < bytes.size()) {
    std::array<std::byte, kBlock> last{};  // zeros after the end; the size tells them from data
    std::memcpy(last.data(), bytes.data() + done, bytes.size() - done);
    absorb_block(lanes, last.data());
  }
  std::uint64_t result = bytes.size();
  for (const std::uint64_t lane : lanes) result = mix(absorb(result, lane));
  return result;
}

}  // namespace touchstone::inline v0
