// Signed 64-bit sizes as indices of standard containers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace touchstone::inline v0 {

// values[at(i)] for a signed i >= 0.
constexpr std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

}  // namespace touchstone::inline v0
