#include "io/container/gguf_split.h"

#include <fmt/format.h>

#include <algorithm>

#include "touchstone/core/error.h"

namespace touchstone::inline v0::io {
namespace {

constexpr std::int64_t kMaxParts = 99999;  // five digits in a name

std::int64_t number_of(std::span<const MetadataValue> metadata, std::string_view key,
                       std::int64_t otherwise) {
  const auto at = std::find_if(metadata.begin(), metadata.end(),
                               [&](const MetadataValue& value) { return value.key() == key; });
  return at == metadata.end() ? otherwise : at->as_int();
}

std::string ending(std::int64_t part, std::int64_t parts) {
  return fmt::format("-{:05}-of-{:05}.gguf", part + 1, parts);
}

}  // namespace

std::vector<std::filesystem::path> further_gguf_parts(const std::filesystem::path& first,
                                                      std::span<const MetadataValue> metadata) {
  const std::int64_t parts = number_of(metadata, "split.count", 1);
  if (parts <= 1) return {};
  if (parts > kMaxParts) {
    throw CorruptData(
        fmt::format("{}: split.count {}, at most {}", first.string(), parts, kMaxParts));
  }
  check_gguf_part(first.string(), metadata, 0, parts);
  const std::string name = first.filename().string();
  const std::string expected = ending(0, parts);
  if (!name.ends_with(expected)) {
    throw CorruptData(
        fmt::format("{}: the first of {} files of a model, expected a name like NAME{}",
                    first.string(), parts, expected));
  }
  const std::string stem = name.substr(0, name.size() - expected.size());
  std::vector<std::filesystem::path> files;
  // Not reserved: the number is the file's, and the first part that is missing ends the loop.
  for (std::int64_t part = 1; part < parts; ++part) {
    std::filesystem::path file = first.parent_path() / (stem + ending(part, parts));
    std::error_code error;
    if (!std::filesystem::exists(file, error)) {
      throw FileError(
          fmt::format("{}: part {} of {} of the model is missing", file.string(), part + 1, parts));
    }
    files.push_back(std::move(file));
  }
  return files;
}

void check_gguf_part(const std::string& file, std::span<const MetadataValue> metadata,
                     std::int64_t part, std::int64_t parts) {
  const std::int64_t number = number_of(metadata, "split.no", -1);
  const std::int64_t count = number_of(metadata, "split.count", 1);
  if (number == part && count == parts) return;
  const std::string hint = part == 0 ? "; open the first of them" : "";
  throw CorruptData(fmt::format("{}: split.no {}, split.count {}, expected {} and {}{}", file,
                                number, count, part, parts, hint));
}

void check_gguf_tensors(const std::string& file, std::span<const MetadataValue> metadata,
                        std::size_t tensors) {
  const auto found = static_cast<std::int64_t>(tensors);
  const std::int64_t expected = number_of(metadata, "split.tensors.count", found);
  if (expected == found) return;
  throw CorruptData(
      fmt::format("{}: split.tensors.count {}, the files hold {}", file, expected, found));
}

bool is_further_gguf_part(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  const std::size_t length = ending(0, 1).size();
  if (name.size() <= length) return false;
  std::string shape = name.substr(name.size() - length);
  const std::string number = shape.substr(1, 5);
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  std::replace_if(shape.begin(), shape.end(), is_digit, '0');
  return shape == "-00000-of-00000.gguf" && number != "00001";
}

}  // namespace touchstone::inline v0::io
