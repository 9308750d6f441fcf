// Output of verbs: results on standard output, messages on standard error, progress on a terminal only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "json/json.h"

namespace touchstone::cli {

// Standard streams that were closed when the program began stay unusable: else the next file that is
// opened would get their number, and what is printed.
void occupy_standard_descriptors();

// Data. A reader that went away (`| head`) ends the program quietly.
void print(std::string_view text);
void print_json(const Json& value);

// Talk: one line on standard error, "touchstone: " in front.
void log(std::string_view line);

enum class Color : std::uint8_t { plain, good, bad, dim };

// Text wrapped in a color when standard output is a terminal and NO_COLOR is not set.
std::string colored(std::string_view text, Color color);

// A table with aligned columns, printed as a whole. Columns align to the left, or to the right
// where the heading starts with '>' (numbers).
class Table {
 public:
  explicit Table(std::vector<std::string> headings);
  void add(std::vector<std::string> cells, Color color = Color::plain);
  std::string text() const;

 private:
  struct Row {
    std::vector<std::string> cells;
    Color color = Color::plain;
  };
  std::vector<std::string> headings_;
  std::vector<bool> right_;
  std::vector<Row> rows_;
};

// One row on standard error, as wide as the terminal, rewritten in place and wiped at the end; silent
// unless standard error is a terminal that can do so.
class Progress {
 public:
  Progress();
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void show(std::string_view what);

 private:
  void wipe();
  bool active_ = false;
  bool shown_ = false;
};

// "12.3 MiB"
std::string bytes_string(std::int64_t bytes);

}  // namespace touchstone::cli
