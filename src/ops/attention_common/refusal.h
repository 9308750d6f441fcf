// Why an implementation refuses a problem, with the limit and the number that broke it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace touchstone::attention_common {

inline std::string above(const char* what, std::int64_t value, std::int64_t limit) {
  return std::string(what) + " " + std::to_string(value) + " > " + std::to_string(limit);
}

inline std::string below(const char* what, std::int64_t value, std::int64_t limit) {
  return std::string(what) + " " + std::to_string(value) + " < " + std::to_string(limit);
}

inline std::string no_multiple(const char* what, std::int64_t value, std::int64_t of) {
  return std::string(what) + " " + std::to_string(value) + " is no multiple of " +
         std::to_string(of);
}

inline std::string needs(const char* what, std::string_view wanted, std::string_view got) {
  return std::string(what) + " " + std::string(got) + ", needs " + std::string(wanted);
}

}  // namespace touchstone::attention_common
