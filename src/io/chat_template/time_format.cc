// strftime with the names of the C locale, without a look at the clock or the environment.
#include <array>
#include <chrono>

#include "io/chat_template/functions.h"
#include "io/chat_template/runtime.h"
#include "io/chat_template/text.h"

namespace touchstone::inline v0::io::chat {
namespace {

constexpr std::array<std::string_view, 12> kMonths = {
    "January", "February", "March",     "April",   "May",      "June",
    "July",    "August",   "September", "October", "November", "December"};
constexpr std::array<std::string_view, 7> kDays = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                                   "Thursday", "Friday", "Saturday"};
constexpr std::size_t kShortName = 3;
// Years 1 to 9999, as datetime has them.
constexpr std::int64_t kMinSeconds = -62'135'596'800;
constexpr std::int64_t kMaxSeconds = 253'402'300'799;

struct Moment {
  std::int64_t seconds = 0;
  int year = 0;
  int month = 0;  // 1 to 12
  int day = 0;
  int hour = 0;
  int minute = 0;
  int second = 0;
  int weekday = 0;  // Sunday is 0
  int day_of_year = 0;
};

Moment moment_of(std::int64_t seconds) {
  using std::chrono::days;
  using std::chrono::floor;
  using std::chrono::sys_seconds;
  const sys_seconds time{std::chrono::seconds(seconds)};
  const auto day = floor<days>(time);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss clock(time - day);
  Moment moment;
  moment.seconds = seconds;
  moment.year = static_cast<int>(date.year());
  moment.month = static_cast<int>(static_cast<unsigned>(date.month()));
  moment.day = static_cast<int>(static_cast<unsigned>(date.day()));
  moment.hour = static_cast<int>(clock.hours().count());
  moment.minute = static_cast<int>(clock.minutes().count());
  moment.second = static_cast<int>(clock.seconds().count());
  moment.weekday = static_cast<int>(std::chrono::weekday(day).c_encoding());
  const std::chrono::sys_days new_year(date.year() / 1 / 1);
  moment.day_of_year = static_cast<int>((day - new_year).count()) + 1;
  return moment;
}

// `pad`: what fills up to the width, '\0' for nothing.
std::string padded(int value, int width, char pad) {
  std::string text = std::to_string(value);
  if (pad != '\0' && static_cast<int>(text.size()) < width) {
    text.insert(0, static_cast<std::size_t>(width) - text.size(), pad);
  }
  return text;
}

int hour_of_twelve(const Moment& moment) { return moment.hour % 12 == 0 ? 12 : moment.hour % 12; }

// "" for a directive that is not known. flag: '-' and so on, '\0' for none.
std::string directive(char letter, char flag, const Moment& moment) {
  const auto number = [&](int value, int width, char pad) {
    const char chosen = flag == '-' ? '\0' : flag == '_' ? ' ' : flag == '0' ? '0' : pad;
    return padded(value, width, chosen);
  };
  const auto parts = [&](std::string_view format) {
    std::string all;
    for (const char c : format) {
      all += std::isalpha(static_cast<unsigned char>(c)) != 0 ? directive(c, '\0', moment)
                                                              : std::string(1, c);
    }
    return all;
  };
  const std::string_view month = kMonths[static_cast<std::size_t>(moment.month - 1)];
  const std::string_view day = kDays[static_cast<std::size_t>(moment.weekday)];
  switch (letter) {
    case 'a':
      return std::string(day.substr(0, kShortName));
    case 'A':
      return std::string(day);
    case 'b':
    case 'h':
      return std::string(month.substr(0, kShortName));
    case 'B':
      return std::string(month);
    case 'c':
      return parts("a b e H:M:S Y");
    case 'd':
      return number(moment.day, 2, '0');
    case 'D':
    case 'x':
      return parts("m/d/y");
    case 'e':
      return number(moment.day, 2, ' ');
    case 'f':
      return "000000";
    case 'F':
      return parts("Y-m-d");
    case 'H':
      return number(moment.hour, 2, '0');
    case 'I':
      return number(hour_of_twelve(moment), 2, '0');
    case 'j':
      return number(moment.day_of_year, 3, '0');
    case 'm':
      return number(moment.month, 2, '0');
    case 'M':
      return number(moment.minute, 2, '0');
    case 'p':
      return moment.hour < 12 ? "AM" : "PM";
    case 's':
      return std::to_string(moment.seconds);
    case 'S':
      return number(moment.second, 2, '0');
    case 'T':
    case 'X':
      return parts("H:M:S");
    case 'u':
      return std::to_string(moment.weekday == 0 ? 7 : moment.weekday);
    case 'w':
      return std::to_string(moment.weekday);
    case 'y':
      return number(moment.year % 100, 2, '0');
    case 'Y':
      return std::to_string(moment.year);
    case '%':
      return "%";
    default:
      return "";
  }
}

}  // namespace

std::string format_time(Runtime& runtime, std::string_view format, std::int64_t seconds) {
  if (seconds < kMinSeconds || seconds > kMaxSeconds) {
    runtime.fail("strftime_now: a time outside of the years 1 to 9999");
  }
  const Moment moment = moment_of(seconds);
  runtime.charge_bytes(format.size() * 16);
  std::string out;
  for (std::size_t at = 0; at < format.size(); ++at) {
    if (format[at] != '%') {
      out += format[at];
      continue;
    }
    if (++at == format.size()) runtime.unsupported("strftime_now: a '%' at the end of the format");
    char flag = '\0';
    if (format[at] == '-' || format[at] == '_' || format[at] == '0') flag = format[at++];
    const std::string part = at < format.size() ? directive(format[at], flag, moment) : "";
    if (part.empty()) {
      runtime.unsupported("strftime_now: unknown directive in " +
                          python_repr(format.substr(at - 1, 2)));
    }
    out += part;
  }
  return out;
}

}  // namespace touchstone::inline v0::io::chat
