#include "cli/arguments.h"

#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "touchstone/core/error.h"

namespace touchstone::cli {
namespace {

template <class T>
bool parse(std::string_view text, T& value) {
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  return result.ec == std::errc{} && result.ptr == end;
}

}  // namespace

Check whole_number(std::int64_t least, std::int64_t most) {
  return [least, most](const std::string& text) -> std::string {
    std::int64_t value = 0;
    if (parse(text, value) && value >= least && value <= most) return {};
    const std::string limit = most == std::numeric_limits<std::int64_t>::max()
                                  ? fmt::format("of at least {}", least)
                                  : fmt::format("from {} to {}", least, most);
    return fmt::format("expected a whole number {}, got '{}'", limit, text);
  };
}

Check seed_number() {
  return [](const std::string& text) -> std::string {
    std::uint64_t value = 0;
    if (parse(text, value)) return {};
    return fmt::format("expected a whole number from 0 to {}, got '{}'",
                       std::numeric_limits<std::uint64_t>::max(), text);
  };
}

Check positive_number() {
  return [](const std::string& text) -> std::string {
    double value = 0;
    if (parse(text, value) && value > 0 && std::isfinite(value)) return {};
    return fmt::format("expected a finite number above 0, got '{}'", text);
  };
}

Device parse_device(std::string_view name) {
  if (name == "cpu") return Device::cpu();
  if (name == "cuda") return Device::cuda(0);
  constexpr std::string_view kPrefix = "cuda:";
  int index = -1;
  if (name.starts_with(kPrefix) && parse(name.substr(kPrefix.size()), index) && index >= 0) {
    return Device::cuda(index);
  }
  throw InvalidArgument(
      fmt::format("--device: expected cpu, cuda or cuda:<number>, got '{}'", name));
}

std::string read_whole_file(const std::string& path) {
  const auto fail = [&](int error) {
    throw FileError(fmt::format("{}: {}", path, std::strerror(error)));
  };
  std::error_code ignored;
  // A directory opens, and its bytes are what fails, without its name.
  if (std::filesystem::is_directory(path, ignored)) fail(EISDIR);
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(errno);
  // A file has an end, a device like /dev/zero has none.
  constexpr std::size_t kMostOfAStream = std::size_t{256} << 20;
  const bool endless = !std::filesystem::is_regular_file(path, ignored);
  constexpr std::size_t kChunk = std::size_t{1} << 16;
  std::string text;
  while (file) {
    const std::size_t before = text.size();
    text.resize(before + kChunk);
    file.read(text.data() + before, static_cast<std::streamsize>(kChunk));
    text.resize(before + static_cast<std::size_t>(file.gcount()));
    if (endless && text.size() > kMostOfAStream) {
      throw CorruptData(fmt::format("{}: not a regular file, and more than 256 MiB", path));
    }
  }
  if (file.bad()) fail(errno);
  return text;
}

std::string read_standard_input() {
  std::string text;
  std::vector<char> chunk(std::size_t{1} << 16);
  for (std::size_t got = 0; (got = std::fread(chunk.data(), 1, chunk.size(), stdin)) > 0;) {
    text.append(chunk.data(), got);
  }
  check_standard_input();
  return text;
}

void check_standard_input() {
  if (std::ferror(stdin) == 0) return;
  throw FileError(fmt::format("standard input: {}", std::strerror(errno)));
}

std::vector<std::string> read_lines(const std::string& path) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  std::string whole = read_whole_file(path);
  if (whole.starts_with(kByteOrderMark)) whole.erase(0, kByteOrderMark.size());
  std::istringstream text(std::move(whole));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) {
    if (line.ends_with('\r')) line.pop_back();
    lines.push_back(line);
  }
  return lines;
}

}  // namespace touchstone::cli
