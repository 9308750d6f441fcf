// Small files from outside, read whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace touchstone::judge {

// FileError when it is no plain file or cannot be read, CorruptData when it is larger than `most`.
std::string read_file(const std::filesystem::path& path, int64_t most);

void write_file(const std::filesystem::path& path, const std::string& text);  // FileError

}  // namespace touchstone::judge
