#include "judge/report/text_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "judge/report/score.h"

namespace touchstone::judge {

std::string format_bytes(double bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (std::abs(bytes) >= 1024.0 && unit + 1 < kUnits.size()) {
    bytes /= 1024.0;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", bytes, unit == 0 || bytes >= 100 ? 0 : 1, kUnits[unit]);
}

std::string format_seconds(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.3g} us", seconds * 1e6);
  if (seconds < 1.0) return fmt::format("{:.3g} ms", seconds * 1e3);
  return fmt::format("{:.3g} s", seconds);
}

std::string format_shape(const CaseSpec& spec) {
  std::string text;
  for (const auto& [name, value] : spec.parameters) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, value);
  }
  return text;
}

std::string format_interval(const Interval& interval, std::string_view unit) {
  return fmt::format("{:.3g}{} ({:.3g} to {:.3g})", interval.value, unit, interval.low,
                     interval.high);
}

std::string format_points(double points) {
  // A whole 100 is for what lost nothing.
  if (points >= 99.5 && points < 100.0) return fmt::format("{:.1f}", std::min(99.9, points));
  return fmt::format("{:.0f}", points);
}

std::string format_score(const Score& score) {
  return score.value.has_value() ? format_points(*score.value) : "-";
}

namespace {

// The code point that `text` begins with, and its length; a length of 0 where that is no UTF-8.
std::pair<uint32_t, std::size_t> first_code_point(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return {byte(0), 1};
  const std::size_t length = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || text.size() < length) return {0, 0};
  uint32_t code = byte(0) & (0xffU >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0U) != 0x80U) return {0, 0};
    code = code << 6 | (byte(i) & 0x3fU);
  }
  constexpr std::array<uint32_t, 5> kLeast = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  if (code < kLeast.at(length) || code > 0x10ffff || surrogate) return {0, 0};
  return {code, length};
}

// What a terminal obeys instead of showing it: control characters of both sets, ends of lines and marks
// that turn the direction of what follows.
bool is_obeyed(uint32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x61c || code == 0x200e ||
         code == 0x200f || (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

}  // namespace

std::string printable(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const auto [code, length] = first_code_point(text);
    if (length == 0 || is_obeyed(code)) {
      result += '?';
    } else {
      result += text.substr(0, length);
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return result;
}

std::string plural(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string dimension_title(std::string_view dimension) {
  std::string title(dimension);
  std::ranges::replace(title, '_', ' ');
  return title;
}

std::string dimension_short(std::string_view dimension) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kShort = {{
      {"correctness", "correct"},
      {"completeness", "complete"},
      {"stability", "stable"},
      {"robustness", "robust"},
      {"determinism", "same bits"},
  }};
  for (const auto& [name, title] : kShort) {
    if (name == dimension) return std::string(title);
  }
  return dimension_title(dimension);
}

std::string format_noise(const std::vector<Record>& records) {
  const auto twin =
      std::ranges::find_if(records, [](const Record& r) { return r.twin.has_value(); });
  if (twin == records.end()) return {};
  std::string text = fmt::format("A/A {:.3f} ({:.3f} to {:.3f})", twin->twin->value,
                                 twin->twin->low, twin->twin->high);
  if (!twin->speeds_withheld.empty()) return text + ", speeds withheld";
  // How far the ends of the speeds' intervals are from their middles, in percent.
  std::vector<double> doubts;
  for (const Record& record : records) {
    const auto speed = record.scores.find("speed");
    if (speed == record.scores.end() || !speed->second.value.has_value()) continue;
    const Score& score = speed->second;
    if (!(score.low > 0.0) || score.low == score.high) continue;
    doubts.push_back(100.0 *
                     std::max(*score.value / score.low - 1.0, score.high / *score.value - 1.0));
  }
  if (doubts.empty()) return text;
  const auto [least, most] = std::ranges::minmax(doubts);
  const double low = std::ceil(least);
  const double high = std::ceil(most);
  return text + (low == high ? fmt::format(", speeds known to {:.0f} %", high)
                             : fmt::format(", speeds known to {:.0f}-{:.0f} %", low, high));
}

std::string format_sandbox(const Sandbox& sandbox) {
  if (!sandbox.enabled) return "NO SANDBOX: switched off by --no-sandbox";
  if (sandbox.missing.empty()) return "sandbox whole";
  return fmt::format("sandbox without: {}", fmt::join(sandbox.missing, "; "));
}

std::vector<std::vector<Record>> by_task(const std::vector<Record>& records) {
  std::vector<std::vector<Record>> groups;
  for (const Record& record : records) {
    const auto group = std::ranges::find_if(
        groups, [&](const std::vector<Record>& g) { return g.front().task == record.task; });
    if (group == groups.end()) {
      groups.push_back({record});
    } else {
      group->push_back(record);
    }
  }
  return groups;
}

}  // namespace touchstone::judge
