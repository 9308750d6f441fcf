// A 64-bit checksum for data at rest. A change within one aligned group of 8 bytes is always
// detected; other damage is missed with a probability near 2^-64. It is no defense against forgery.
//
// Our own, not XXH3 or CRC32C: cache snapshots, checkpoints and ternary files store its values, so the
// function is part of their format and must not change or go away with a dependency.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace touchstone::inline v0 {

// The same on every machine of the same byte order.
std::uint64_t checksum(std::span<const std::byte> bytes);

}  // namespace touchstone::inline v0
