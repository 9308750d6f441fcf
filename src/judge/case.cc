#include "judge/case.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>

#include "touchstone/core/error.h"

namespace touchstone::judge {
namespace {

[[noreturn]] void refuse(const std::string& text, std::string_view why) {
  throw InvalidArgument(
      fmt::format("case: '{}': {}; expected family:name=number,...:seed", text, why));
}

template <class Number>
Number parse_number(const std::string& text, std::string_view part) {
  Number value = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
  if (error != std::errc() || end != part.data() + part.size() || part.empty()) {
    refuse(text, fmt::format("'{}' is no number", part));
  }
  return value;
}

bool is_name(std::string_view word) {
  if (word.empty()) return false;
  for (const char c : word) {
    const bool known = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
    if (!known) return false;
  }
  return true;
}

}  // namespace

std::string format_spec(const CaseSpec& spec) {
  std::string parameters;
  for (const auto& [name, value] : spec.parameters) {
    parameters += fmt::format("{}{}={}", parameters.empty() ? "" : ",", name, value);
  }
  return fmt::format("{}:{}:{}", spec.family, parameters, spec.seed);
}

CaseSpec parse_spec(const std::string& text) {
  const size_t first = text.find(':');
  const size_t last = text.rfind(':');
  if (first == std::string::npos || first == last) refuse(text, "two colons are needed");
  CaseSpec spec;
  spec.family = text.substr(0, first);
  if (!is_name(spec.family)) refuse(text, "the family has no name");
  spec.seed = parse_number<uint64_t>(text, std::string_view(text).substr(last + 1));
  std::string_view rest = std::string_view(text).substr(first + 1, last - first - 1);
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos || !is_name(item.substr(0, equals))) {
      refuse(text, fmt::format("'{}' is not name=number", item));
    }
    const std::string name(item.substr(0, equals));
    const auto value = parse_number<int64_t>(text, item.substr(equals + 1));
    if (!spec.parameters.emplace(name, value).second) {
      refuse(text, fmt::format("'{}' is given twice", name));
    }
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
  }
  return spec;
}

}  // namespace touchstone::judge
