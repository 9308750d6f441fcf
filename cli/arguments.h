// What the values of options may be.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <string_view>

#include "touchstone/core/device.h"

namespace touchstone::cli {

// Whole numbers from `least` to `most`. Unlike CLI11's own checks it refuses what does not fit in
// 64 bits instead of taking the nearest number that does.
CLI::Validator whole_number(std::int64_t least,
                            std::int64_t most = std::numeric_limits<std::int64_t>::max());

// "cpu", "cuda" or "cuda:1"; InvalidArgument for anything else.
Device parse_device(std::string_view name);

}  // namespace touchstone::cli
