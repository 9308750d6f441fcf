// Reads numbers from an untrusted config.json: each key is checked for its type and its range, and
// every error names the file, the key and the value.
#pragma once

#include <fmt/format.h>

#include <string>

#include "json/json.h"
#include "touchstone/core/error.h"

namespace touchstone::inline v0::plan {

class ConfigReader {
 public:
  ConfigReader(std::string file, const Json& object) : file_(std::move(file)), object_(object) {}

  [[noreturn]] void fail(std::string_view what) const {
    throw CorruptData(fmt::format("{}: {}", file_, what));
  }

  const std::string& file() const { return file_; }

  // A key that holds null is as good as absent: configurations are full of them.
  bool has(const char* key) const { return object_.contains(key) && !object_.at(key).is_null(); }

  // The first key with this beginning that holds something; "" where there is none.
  std::string first_key(std::string_view beginning) const {
    for (const auto& [key, value] : object_.items()) {
      if (key.starts_with(beginning) && !value.is_null()) return key;
    }
    return {};
  }

  std::int64_t integer(const char* key, std::int64_t least, std::int64_t most) const {
    if (!has(key)) fail(fmt::format("{}: is missing", key));
    return checked(object_.at(key), key, least, most);
  }

  std::int64_t integer_or(const char* key, std::int64_t otherwise, std::int64_t least,
                          std::int64_t most) const {
    return has(key) ? integer(key, least, most) : otherwise;
  }

  bool boolean_or(const char* key, bool otherwise) const {
    if (!has(key)) return otherwise;
    if (!object_.at(key).is_boolean()) {
      fail(fmt::format("{}: expected true or false, got {}", key, object_.at(key).type_name()));
    }
    return object_.at(key).get<bool>();
  }

  std::string string_or(const char* key, const char* otherwise) const {
    if (!has(key)) return otherwise;
    if (!object_.at(key).is_string()) {
      fail(fmt::format("{}: expected a string, got {}", key, object_.at(key).type_name()));
    }
    return object_.at(key).get<std::string>();
  }

  // A list of exactly `size` entries.
  const Json& list(const char* key, std::int64_t size) const {
    const Json& value = object_.at(key);
    if (!value.is_array()) {
      fail(fmt::format("{}: expected a list, got {}", key, value.type_name()));
    }
    if (static_cast<std::int64_t>(value.size()) != size) {
      fail(fmt::format("{}: expected {} entries, one per layer, got {}", key, size, value.size()));
    }
    return value;
  }

  std::int64_t checked(const Json& value, const char* key, std::int64_t least,
                       std::int64_t most) const {
    if (!value.is_number_integer()) {
      fail(fmt::format("{}: expected a whole number, got {}", key,
                       value.is_number() ? "a fraction" : value.type_name()));
    }
    // What is above the signed range would come back negative.
    const bool huge =
        value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(most);
    if (huge || value.get<std::int64_t>() < least) {
      fail(fmt::format("{}: expected {} to {}, got {}", key, least, most, value.dump()));
    }
    return value.get<std::int64_t>();
  }

 private:
  std::string file_;
  const Json& object_;
};

// No model comes near these, and products of them stay within 64 bits or are refused.
inline constexpr std::int64_t kMaxLayers = 10'000;
inline constexpr std::int64_t kMaxHeads = 1 << 14;
inline constexpr std::int64_t kMaxHeadDim = 1 << 14;
inline constexpr std::int64_t kMaxWidth = 1 << 20;
inline constexpr std::int64_t kMaxVocabulary = 1 << 26;
inline constexpr std::int64_t kMaxTokens = std::int64_t{1} << 40;
inline constexpr std::int64_t kMaxExperts = 1 << 16;

}  // namespace touchstone::inline v0::plan
