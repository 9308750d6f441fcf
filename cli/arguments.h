// What the values of options may be.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "cli/options.h"
#include "touchstone/core/device.h"

namespace touchstone::cli {

// Whole numbers from `least` to `most`. What does not fit in 64 bits is refused, not rounded to the
// nearest number that does.
Check whole_number(std::int64_t least,
                   std::int64_t most = std::numeric_limits<std::int64_t>::max());

// The same of 64 bits without a sign: seeds.
Check seed_number();

// Numbers above 0, as from_chars reads them; no NaN and no infinity.
Check positive_number();

// "cpu", "cuda" or "cuda:1"; InvalidArgument for anything else.
Device parse_device(std::string_view name);

// The bytes of a file that an option names, which may be a pipe. FileError; CorruptData for more
// than 256 MiB of what is no regular file.
std::string read_whole_file(const std::string& path);
// The bytes of standard input. FileError.
std::string read_standard_input();
// FileError where reading standard input has failed.
void check_standard_input();
// The lines of a file, without their ends, "\n" or "\r\n", and without a byte order mark.
std::vector<std::string> read_lines(const std::string& path);

}  // namespace touchstone::cli
