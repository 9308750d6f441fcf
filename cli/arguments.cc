#include "cli/arguments.h"

#include <fmt/format.h>

#include <charconv>

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

}  // namespace touchstone::cli
