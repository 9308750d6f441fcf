#include "cli/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cli/verbs.h"

namespace touchstone::cli {
namespace {

// A failed write to standard error (a full disk, a closed descriptor) cannot be reported.
void write_message(const std::string& text) {
  (void)!std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

// Whether a stream is a terminal that obeys escape codes.
bool is_smart_terminal(int descriptor) {
  const char* term = std::getenv("TERM");
  return term != nullptr && std::strcmp(term, "dumb") != 0 && isatty(descriptor) == 1;
}

bool colors() {
  static const bool wanted = [] {
    const char* no_color = std::getenv("NO_COLOR");
    return (no_color == nullptr || *no_color == '\0') && is_smart_terminal(STDOUT_FILENO);
  }();
  return wanted;
}

// Whether standard error can have a line that is rewritten in place.
bool moves() {
  static const bool able = is_smart_terminal(STDERR_FILENO);
  return able;
}

// Paths may hold anything, and a terminal obeys escape codes.
std::string without_controls(std::string_view line) {
  std::string shown(line);
  std::ranges::replace_if(
      shown, [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return shown;
}

// The beginning of a line that a terminal shows in one row. The last column stays free: a line that
// ends in it has left the row, on some terminals, and would not be overwritten.
std::string_view one_row(std::string_view line) {
  winsize window{};
  const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 1;
  const std::size_t columns = known ? window.ws_col - 1U : 79U;
  std::size_t characters = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const bool begins = (static_cast<unsigned char>(line[i]) & 0xc0U) != 0x80U;
    if (begins && ++characters > columns) return line.substr(0, i);
  }
  return line;
}

}  // namespace

void occupy_standard_descriptors() {
  // The lowest free number is taken, and /dev/null for reading cannot be written.
  int opened = 0;
  while (opened >= 0 && opened <= STDERR_FILENO) opened = ::open("/dev/null", O_RDONLY);
  if (opened > STDERR_FILENO) ::close(opened);
}

void print(std::string_view text) {
  const bool written =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (written) return;
  const int reason = errno;
  if (reason != EPIPE) log(fmt::format("standard output: {}", std::strerror(reason)));
  // The reader has closed the pipe, and destructors have nothing left to save.
  std::_Exit(reason == EPIPE ? kOk : kBadData);
}

void print_json(const Json& value) { print(value.dump(2) + "\n"); }

void log(std::string_view line) {
  std::fflush(stdout);
  // On a terminal there may be a progress line in the way.
  write_message(
      fmt::format("{}touchstone: {}\n", moves() ? "\r\x1b[K" : "", without_controls(line)));
}

std::string colored(std::string_view text, Color color) {
  if (color == Color::plain || !colors()) return std::string(text);
  const char* code = color == Color::good ? "32" : color == Color::bad ? "31" : "2";
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

Table::Table(std::vector<std::string> headings) : headings_(std::move(headings)) {
  for (std::string& heading : headings_) {
    right_.push_back(heading.starts_with('>'));
    if (right_.back()) heading.erase(0, 1);
  }
}

void Table::add(std::vector<std::string> cells, Color color) {
  cells.resize(headings_.size());
  rows_.push_back({std::move(cells), color});
}

std::string Table::text() const {
  std::vector<std::size_t> widths;
  for (std::size_t i = 0; i < headings_.size(); ++i) {
    std::size_t width = headings_[i].size();
    for (const Row& row : rows_) width = std::max(width, row.cells[i].size());
    widths.push_back(width);
  }
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string text;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      text += i == 0 ? "" : "  ";
      text += right_[i] ? fmt::format("{:>{}}", cells[i], widths[i])
                        : fmt::format("{:<{}}", cells[i], widths[i]);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    return text;
  };
  std::string text = colored(line(headings_), Color::dim) + "\n";
  for (const Row& row : rows_) text += colored(line(row.cells), row.color) + "\n";
  return text;
}

Progress::Progress() : active_(moves()) {}

Progress::~Progress() { wipe(); }

void Progress::show(std::string_view what) {
  if (!active_) return;
  const std::string line = without_controls(what);
  write_message(fmt::format("\r\x1b[K{}", one_row(line)));
  shown_ = true;
}

void Progress::wipe() {
  if (!shown_) return;
  write_message("\r\x1b[K");
  shown_ = false;
}

std::string bytes_string(std::int64_t bytes) {
  constexpr std::array<const char*, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  const bool whole = value == static_cast<double>(static_cast<std::int64_t>(value));
  return whole ? fmt::format("{:.0f} {}", value, kUnits[unit])
               : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace touchstone::cli
